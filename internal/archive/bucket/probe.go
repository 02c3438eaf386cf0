package bucket

import (
	"bytes"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"time"

	"github.com/google/uuid"
)

// ProbePrefix is the prefix of the names of Probe's objects, which are outside the folders of stores.
const ProbePrefix = "probe/"

const (
	probeBytes      = 1000
	probeKept       = 24 * time.Hour // an older probe must be from a process that was killed
	probesListedMax = 1000
)

// These errors mean that a bucket is not suitable for an archive.
var (
	ErrReplaces = errors.New("the bucket let a second object take the name of the first: it does not know " +
		"create-if-absent (If-None-Match), without which two archivers could overwrite each other; use a bucket or a " +
		"server that does")
	ErrReadsOther = errors.New("the bucket does not return what was written to it")
)

// Probed describes the result of Probe.
type Probed struct {
	Object string // name of the object that Probe created
	// Kept is the reason why the object could not be deleted, or nil if it was deleted. An archive that is never pruned
	// does not need permission to delete.
	Kept error
}

// Probe checks whether a bucket is suitable for an archive. It creates an object, checks that a second object with
// the same name is refused, reads the first one back as a whole and in part, finds it in a listing, and deletes it.
// An error that wraps ErrReplaces or ErrReadsOther is final. Any other error means that the check could not be
// completed. Probe also deletes old probes that killed processes have left behind.
func Probe(ctx context.Context, b Bucket) (Probed, error) {
	probed := Probed{Object: ProbePrefix + uuid.NewString()}
	contents := [2][]byte{make([]byte, probeBytes), make([]byte, probeBytes)}
	for _, content := range contents {
		_, _ = rand.Read(content) // never fails
	}
	made, err := probe(ctx, b, probed.Object, contents)
	if err != nil {
		// Delete the object only if the bucket is known to be unsuitable. After any other error, Delete would fail as well.
		if errors.Is(err, ErrReplaces) || errors.Is(err, ErrReadsOther) {
			err = errors.Join(err, b.Delete(ctx, probed.Object))
		}
		return probed, err
	}
	probed.Kept = b.Delete(ctx, probed.Object)
	if probed.Kept == nil {
		probed.Kept = deleteProbes(ctx, b, made.Created.Add(-probeKept))
	}
	return probed, nil
}

func probe(ctx context.Context, b Bucket, name string, contents [2][]byte) (Info, error) {
	create := func(content []byte) error {
		return b.Create(ctx, name, int64(len(content)), bytes.NewReader(content))
	}
	// The name is new. If it exists nevertheless, an earlier attempt of this Create succeeded, and its response was
	// lost.
	if err := create(contents[0]); err != nil && !errors.Is(err, fs.ErrExist) {
		return Info{}, fmt.Errorf("probe whether objects can be created: %w", err)
	}
	switch err := create(contents[1]); {
	case err == nil:
		return Info{}, ErrReplaces
	case !errors.Is(err, fs.ErrExist):
		return Info{}, fmt.Errorf("probe whether an object can be replaced: %w", err)
	}
	for _, part := range [][2]int64{{0, -1}, {probeBytes / 2, probeBytes / 4}} {
		want := contents[0][part[0]:]
		if part[1] >= 0 {
			want = want[:part[1]]
		}
		switch got, err := readProbe(ctx, b, name, part[0], part[1]); {
		case errors.Is(err, fs.ErrNotExist):
			return Info{}, fmt.Errorf("%w: %s, which was just created, does not exist", ErrReadsOther, name)
		case err != nil:
			return Info{}, fmt.Errorf("probe whether objects can be read: %w", err)
		case bytes.Equal(got, contents[1][part[0]:part[0]+int64(len(want))]):
			return Info{}, ErrReplaces
		case !bytes.Equal(got, want):
			return Info{}, fmt.Errorf("%w: %d bytes from %d on of %s differ", ErrReadsOther, len(want), part[0], name)
		}
	}
	for info, err := range b.List(ctx, name, "") {
		if err != nil {
			return Info{}, fmt.Errorf("probe whether objects can be listed: %w", err)
		}
		if info.Name == name && info.Bytes == probeBytes {
			return info, nil
		}
	}
	return Info{}, fmt.Errorf("%w: %s, which was just created, is in no list", ErrReadsOther, name)
}

func readProbe(ctx context.Context, b Bucket, name string, offset, length int64) ([]byte, error) {
	r, err := b.Open(ctx, name, offset, length)
	if err != nil {
		return nil, err
	}
	content, err := io.ReadAll(io.LimitReader(r, probeBytes+1))
	return content, errors.Join(err, r.Close())
}

// deleteProbes deletes the probes that were created before the given time, according to the bucket's clock.
func deleteProbes(ctx context.Context, b Bucket, before time.Time) error {
	listed := 0
	for info, err := range b.List(ctx, ProbePrefix, "") {
		if err != nil {
			return err
		}
		if info.Created.Before(before) {
			if err := b.Delete(ctx, info.Name); err != nil {
				return err
			}
		}
		if listed++; listed == probesListedMax {
			break
		}
	}
	return nil
}
