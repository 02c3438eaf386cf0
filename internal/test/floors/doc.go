// Package floors holds tests of the source tree itself. They check what each folder may import, which tests run in
// virtual time, and whether the names, links and anchors in pages exist.
package floors
