package archivecli

import (
	"context"
	"fmt"
	"io"
	"slices"
	"strings"
	"syscall"
	"testing"

	"sheaf.dev/sheaf/internal/archive/object"
	"sheaf.dev/sheaf/internal/local/cli"
	"sheaf.dev/sheaf/internal/test/archivetest"
)

// watched is a bucket that notes whether a use existed whenever an object was read. It may refuse to create objects.
type watched struct {
	*archivetest.Memory
	isReadOnly         bool
	used, unused, uses int // objects that were read with and without a use; uses that were created
}

func (w *watched) Create(ctx context.Context, name string, size int64, content io.Reader) error {
	if w.isReadOnly {
		return syscall.EACCES
	}
	w.uses++
	return w.Memory.Create(ctx, name, size, content)
}

func (w *watched) Open(ctx context.Context, name string, offset, length int64) (io.ReadCloser, error) {
	if slices.ContainsFunc(w.Names(), func(name string) bool { return strings.Contains(name, "/use/") }) {
		w.used++
	} else {
		w.unused++
	}
	return w.Memory.Open(ctx, name, offset, length)
}

// Commands that read for long protect the archive from pruning all the time. With credentials that cannot create
// objects, they read only if they are told to do without.
func TestLongReadsAreProtected(t *testing.T) {
	from, living, _, index := damagedArchive(t)
	memory, ok := from.Bucket.(*archivetest.Memory)
	if !ok {
		t.Fatal("another bucket")
	}
	for name, command := range map[string]func(out *cli.Output, s Source) error{
		"verify": func(out *cli.Output, s Source) error { return Verify(t.Context(), out, s, VerifyOptions{}) },
		"copy": func(out *cli.Output, s Source) error {
			return Copy(t.Context(), out, s, living, CopyOptions{At: fmt.Sprintf("index:%d", index), Group: "alpha",
				DryRun: true, Quiet: true})
		},
	} {
		b := &watched{Memory: memory}
		got := run(false, func(out *cli.Output) error { return command(out, Source{Bucket: b}) })
		left := slices.DeleteFunc(b.Names(), func(name string) bool { return !strings.Contains(name, object.UsePrefix) })
		if b.used == 0 || b.unused > 0 || b.uses != 1 || len(left) > 0 {
			t.Errorf("%s: %d objects were read with a use, %d without, of %d uses remain %q: %v", name, b.used, b.unused,
				b.uses, left, got.err)
		}
		b = &watched{Memory: memory, isReadOnly: true}
		got = run(false, func(out *cli.Output) error { return command(out, Source{Bucket: b}) })
		if got.code != 1 || !strings.Contains(got.err.Error(), "--no-use") || b.used+b.unused > 0 {
			t.Errorf("%s of a bucket that is read-only: exit code %d, %d objects were read, %v", name, got.code, b.unused,
				got.err)
		}
		got = run(false, func(out *cli.Output) error { return command(out, Source{Bucket: b, NoUse: true}) })
		if got.err != nil && strings.Contains(got.err.Error(), "use") || b.unused == 0 {
			t.Errorf("%s without protection: %v, %d objects were read", name, got.err, b.unused)
		}
	}
}
