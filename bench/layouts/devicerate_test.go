package layouts

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"sheaf.dev/sheaf/internal/storage/vfs"
	"sheaf.dev/sheaf/internal/test/must"
)

func TestMeasureDevice(t *testing.T) {
	dir := t.TempDir()
	must.OK(t, os.WriteFile(filepath.Join(dir, "there"), []byte("stays"), 0o600))
	rate, err := MeasureDevice(t.Context(), dir, "tiny")
	if !readsDirectly(t, dir) {
		if err == nil || !strings.Contains(err.Error(), "page cache") {
			t.Errorf("without O_DIRECT: %+v, %v", rate, err)
		}
		t.Skip("the folder of the tests cannot be read past the page cache")
	}
	must.OK(t, err)
	if rate.Kind != deviceRateKind || rate.ReadBytesPerSecond <= 0 || rate.SampleBytes != scales["tiny"].sample ||
		rate.FileSystem == "" {
		t.Errorf("%+v", rate)
	}
	ctx, cancel := context.WithCancelCause(t.Context())
	stop := errors.New("stop")
	cancel(stop)
	if _, err := MeasureDevice(ctx, dir, "tiny"); !errors.Is(err, stop) {
		t.Errorf("interrupted: %v", err)
	}
	if names, err := os.ReadDir(dir); err != nil || len(names) != 1 {
		t.Errorf("left behind: %v %v", names, err)
	}
	if _, err := MeasureDevice(t.Context(), filepath.Join(dir, "none"), "tiny"); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("no folder: %v", err)
	}
}

func readsDirectly(t *testing.T, dir string) bool {
	t.Helper()
	f, err := vfs.OS{}.OpenDirect(filepath.Join(dir, "there"))
	must.OK(t, err)
	defer f.Close()
	return f.Direct()
}
