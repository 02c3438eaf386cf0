package format

import (
	"errors"
	"testing"

	"github.com/google/uuid"

	"sheaf.dev/sheaf/internal/test/vfstest"
)

func sampleReplica() ReplicaFile {
	return ReplicaFile{RaftID: 77, Volume: uuid.UUID{5}, Store: uuid.UUID{1}, Group: uuid.UUID{2}, Joining: true}
}

func TestReplicaFileRoundTrips(t *testing.T) {
	fs := vfstest.NewMem()
	_, found, err := ReadReplicaFile(fs, "/v/7")
	if found || err != nil {
		t.Fatal(found, err)
	}
	for n, joining := range []bool{true, false, true, true, false} {
		want := sampleReplica()
		want.Joining, want.Founder = joining, n > 2
		ok(t, WriteReplicaFile(fs, "/v/7", want))
		got, found, err := ReadReplicaFile(fs, "/v/7")
		if got != want || !found || err != nil {
			t.Fatal(got, found, err)
		}
	}
	if err := WriteReplicaFile(fs, "/v/7", ReplicaFile{}); err == nil {
		t.Error("a replica file without a Raft id was written")
	}
}

func TestEveryBitOfAReplicaFileCounts(t *testing.T) {
	good, err := sampleReplica().Encode()
	ok(t, err)
	for bit := range len(good) * 8 {
		b := append([]byte(nil), good...)
		b[bit/8] ^= 1 << (bit % 8)
		f, bad, err := DecodeReplicaFile(b)
		if err != nil || f != sampleReplica() || bad[bit/8/BlockBytes] == nil {
			t.Fatalf("bit %d: %+v, %v, %v", bit, f, bad, err)
		}
		b[(bit/8+BlockBytes)%len(b)] ^= 1 << (bit % 8)
		if _, _, err := DecodeReplicaFile(b); !errors.Is(err, ErrCorrupt) {
			t.Fatalf("bit %d of both copies: %v", bit, err)
		}
	}
	other := sampleReplica()
	other.RaftID = 79
	b, err := other.Encode()
	ok(t, err)
	if _, _, err := DecodeReplicaFile(append(good[:BlockBytes:BlockBytes], b[:BlockBytes]...)); !errors.Is(err,
		ErrCorrupt) {
		t.Errorf("two whole copies that differ: %v", err)
	}
	newer := append([]byte(nil), good[:BlockBytes]...)
	newer[8] = FormatVersion + 1
	newer = repair(newer)
	if _, _, err := DecodeReplicaFile(append(newer, newer...)); !errors.Is(err, ErrFormatVersion) {
		t.Errorf("newer version: %v", err)
	}
}

func TestRaftIDsAreNeverZero(t *testing.T) {
	seen := map[uint64]bool{}
	for range 1000 {
		id := NewRaftID()
		if id%2 == 0 || seen[id] {
			t.Fatal(id)
		}
		seen[id] = true
	}
}
