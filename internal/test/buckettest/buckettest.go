// Package buckettest has the tests that every bucket.Bucket must pass, whether it is a folder or the bucket of a cloud
// provider.
package buckettest

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
	"testing/iotest"

	"sheaf.dev/sheaf/internal/archive/bucket"
)

// Run tests a bucket. open returns an empty bucket, which Run closes.
func Run(t *testing.T, open func(t *testing.T) bucket.Bucket) {
	for _, test := range []struct {
		name string
		run  func(t *testing.T, b bucket.Bucket)
	}{
		{"AnObjectIsReadBack", readBack},
		{"AnObjectIsNeverReplaced", neverReplaced},
		{"OneOfManyCreatorsWins", oneWins},
		{"AContentOfAnotherLengthMakesNoObject", otherLength},
		{"AnEndedContextMakesNoObject", ended},
		{"ListIsOrdered", ordered},
		{"Delete", remove},
		{"BadNamesAreRefused", badNames},
	} {
		t.Run(test.name, func(t *testing.T) {
			b := open(t)
			test.run(t, b)
			if err := b.Close(); err != nil {
				t.Errorf("close: %v", err)
			}
		})
	}
}

// Content returns n bytes that depend only on the seed.
func Content(n int, seed byte) []byte {
	b := make([]byte, n)
	_, _ = rand.NewChaCha8([32]byte{seed}).Read(b)
	return b
}

func create(t *testing.T, b bucket.Bucket, name string, content []byte) {
	t.Helper()
	if err := b.Create(t.Context(), name, int64(len(content)), bytes.NewReader(content)); err != nil {
		t.Fatalf("create %s: %v", name, err)
	}
}

// Read returns a part of an object.
func Read(t *testing.T, b bucket.Bucket, name string, offset, length int64) []byte {
	t.Helper()
	r, err := b.Open(t.Context(), name, offset, length)
	if err != nil {
		t.Fatalf("open %s: %v", name, err)
	}
	got, err := io.ReadAll(r)
	if err := errors.Join(err, r.Close()); err != nil {
		t.Fatalf("read %s: %v", name, err)
	}
	return got
}

func absent(t *testing.T, b bucket.Bucket, name string) {
	t.Helper()
	if _, err := b.Stat(t.Context(), name); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("stat of %s: %v", name, err)
	}
	if _, err := b.Open(t.Context(), name, 0, -1); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("open of %s: %v", name, err)
	}
}

func readBack(t *testing.T, b bucket.Bucket) {
	absent(t, b, "a/b")
	for _, n := range []int{0, 1, 1000, 1 << 20, 3<<20 + 1, 17 << 20} {
		name := fmt.Sprintf("a/%d", n)
		content := Content(n, 1)
		create(t, b, name, content)
		if got := Read(t, b, name, 0, -1); !bytes.Equal(got, content) {
			t.Errorf("%s: %d other bytes", name, len(got))
		}
		info, err := b.Stat(t.Context(), name)
		if err != nil || info.Name != name || info.Bytes != int64(n) || info.Created.IsZero() {
			t.Errorf("stat: %+v, %v", info, err)
		}
	}
	content := Content(1000, 1)
	for _, r := range [][2]int64{{0, 0}, {0, 1}, {999, 1}, {100, 300}, {0, 1000}, {500, -1}} {
		want := content[r[0]:]
		if r[1] >= 0 {
			want = want[:r[1]]
		}
		if got := Read(t, b, "a/1000", r[0], r[1]); !bytes.Equal(got, want) {
			t.Errorf("range %v: %d other bytes", r, len(got))
		}
	}
}

func neverReplaced(t *testing.T, b bucket.Bucket) {
	create(t, b, "x", []byte("first"))
	if err := b.Create(t.Context(), "x", 6, bytes.NewReader([]byte("second"))); !errors.Is(err, fs.ErrExist) {
		t.Fatalf("error %v", err)
	}
	if got := Read(t, b, "x", 0, -1); string(got) != "first" {
		t.Fatalf("it is %q now", got)
	}
}

func oneWins(t *testing.T, b bucket.Bucket) {
	for round := range 20 {
		name := fmt.Sprintf("log/%d", round)
		errs := make([]error, 8)
		var wait sync.WaitGroup
		for i := range errs {
			wait.Go(func() {
				content := Content(2000, byte(i))
				errs[i] = b.Create(t.Context(), name, 2000, bytes.NewReader(content))
			})
		}
		wait.Wait()
		winner := slices.IndexFunc(errs, func(err error) bool { return err == nil })
		if winner < 0 {
			t.Fatalf("nobody won: %v", errors.Join(errs...))
		}
		for i, err := range errs {
			if i != winner && !errors.Is(err, fs.ErrExist) {
				t.Fatalf("creator %d beside the winner %d: %v", i, winner, err)
			}
		}
		if got := Read(t, b, name, 0, -1); !bytes.Equal(got, Content(2000, byte(winner))) {
			t.Fatal("the object is not the winner's")
		}
	}
}

func otherLength(t *testing.T, b bucket.Bucket) {
	content := Content(100, 1)
	for _, size := range []int64{0, 99, 101} {
		if err := b.Create(t.Context(), "x", size, bytes.NewReader(content)); err == nil {
			t.Errorf("%d bytes pass for %d", len(content), size)
		}
		absent(t, b, "x")
	}
	broken := errors.New("broken")
	half := io.MultiReader(bytes.NewReader(content), iotest.ErrReader(broken))
	if err := b.Create(t.Context(), "x", 200, half); err == nil {
		t.Error("a content that could not be read makes an object")
	}
	absent(t, b, "x")
}

func ended(t *testing.T, b bucket.Bucket) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := b.Create(ctx, "x", 1, bytes.NewReader([]byte("x"))); !errors.Is(err, context.Canceled) {
		t.Errorf("error %v", err)
	}
	absent(t, b, "x")
}

func list(t *testing.T, b bucket.Bucket, prefix, after string, most int) (names []string) {
	t.Helper()
	for info, err := range b.List(t.Context(), prefix, after) {
		if err != nil {
			t.Fatal(err)
		}
		if info.Bytes != 3 || info.Created.IsZero() {
			t.Errorf("listed as %+v", info)
		}
		if names = append(names, info.Name); len(names) == most {
			break
		}
	}
	return names
}

func ordered(t *testing.T, b bucket.Bucket) {
	names := []string{"a-b", "a.b", "a/a/x", "a/b", "a/b-", "a/c/x", "aa", "b"}
	for _, i := range rand.Perm(len(names)) {
		create(t, b, names[i], []byte("abc"))
	}
	for _, c := range []struct {
		prefix, after string
		most          int
		want          []string
	}{
		{"", "", 0, names},
		{"", "", 2, names[:2]},
		{"a", "", 0, names[:7]},
		{"a/", "", 0, names[2:6]},
		{"a/b", "", 0, names[3:5]},
		{"a/c/", "", 0, names[5:6]},
		{"a/c/x", "", 0, names[5:6]},
		{"", "a/b", 0, names[4:]},
		{"", "a/a/x", 0, names[3:]},
		{"a/", "a/b-", 0, names[5:6]},
		{"a/", "a/z", 0, nil},
		{"no", "", 0, nil},
		{"a/no/", "", 0, nil},
	} {
		if got := list(t, b, c.prefix, c.after, c.most); !slices.Equal(got, c.want) {
			t.Errorf("prefix %q after %q: %q, want %q", c.prefix, c.after, got, c.want)
		}
	}
}

func remove(t *testing.T, b bucket.Bucket) {
	create(t, b, "a/b", []byte("abc"))
	for range 2 {
		if err := b.Delete(t.Context(), "a/b"); err != nil {
			t.Fatal(err)
		}
		absent(t, b, "a/b")
	}
	if err := b.Delete(t.Context(), "no/no"); err != nil {
		t.Errorf("delete of nothing: %v", err)
	}
	create(t, b, "a/b", []byte("new"))
}

func badNames(t *testing.T, b bucket.Bucket) {
	for _, name := range []string{"", "/a", "a/", "a//b", ".", "a/../b", "a b", "a\x00", "é", string(make([]byte, 600))} {
		if err := b.Create(t.Context(), name, 0, bytes.NewReader(nil)); err == nil {
			t.Errorf("create %q passes", name)
		}
		if _, err := b.Stat(t.Context(), name); err == nil {
			t.Errorf("stat %q passes", name)
		}
		if err := b.Delete(t.Context(), name); err == nil {
			t.Errorf("delete %q passes", name)
		}
	}
}
