// Package floors says on which floor of the house each package stands, as docs/architecture.md draws it, and its test
// keeps that so: an import goes down or stays on its floor, and a package that is on no floor fails the build.
package floors
