// Package drill proves that an archive can be restored. A drill restores some groups as of a random time, by the same
// code as the source of a restore, into files of a scratch folder. It installs and checks these files with the code of
// the shards, and compares the records with those of the living store. See docs/archive.md, "Drills".
package drill
