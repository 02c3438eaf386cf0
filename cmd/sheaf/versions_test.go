package main

import (
	"os"
	"strconv"
	"testing"

	"sheaf.dev/sheaf/internal/storage/volume"
)

// TestTwoVersions replaces an older version of this program with the current one, process by process, under load. If
// the older version can open the volumes of the current one, the test then returns some of the processes to the older
// version, as a rolling upgrade and its rollback do. No call fails, and all acknowledged records exist. `make
// test-versions` builds the older version.
func TestTwoVersions(t *testing.T) {
	older := os.Getenv("SHEAF_OLDER")
	if older == "" {
		t.Skip("of make test-versions: SHEAF_OLDER names no older program")
	}
	s := newCopiesStoreOf(t, older)
	s.waitReady()
	l := s.load(false, true, false, true)
	l.awaitMore(300)
	replace := func(program string, names ...string) {
		t.Helper()
		s.program = program
		for _, name := range names {
			if code := s.shards[name].stop(t); code != 0 {
				t.Fatalf("shard %s ended with %d:\n%s", name, code, s.shards[name].stderr)
			}
			l.awaitMore(100) // the two shards that were not replaced answer these calls
			s.start(name)
			s.shards[name].waitReady(t)
			l.awaitMore(300)
		}
		if code := s.gateway.stop(t); code != 0 {
			t.Fatalf("the gateway ended with %d:\n%s", code, s.gateway.stderr)
		}
		s.startGateway()
		l.awaitMore(300)
	}
	replace(sheafBinary, "a", "b") // now shards of both versions run with the newer gateway
	if format := strconv.Itoa(volume.FormatVersion); os.Getenv("SHEAF_OLDER_SUPERBLOCK") == format {
		replace(older, "b", "a")
	} else {
		t.Logf("nothing is taken back: the older program knows superblocks up to format version %q, this one writes %s",
			os.Getenv("SHEAF_OLDER_SUPERBLOCK"), format)
	}
	replace(sheafBinary, copiesShards...)
	l.end()
	for _, name := range copiesShards {
		s.shards[name].kill()
		t.Logf("%d records are there without shard %s", l.check(), name)
		s.start(name)
		s.shards[name].waitReady(t)
	}
}
