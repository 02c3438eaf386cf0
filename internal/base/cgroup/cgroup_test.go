package cgroup

import (
	"maps"
	"os"
	"path/filepath"
	"testing"

	"sheaf.dev/sheaf/internal/test/must"
)

func TestMemoryLimit(t *testing.T) {
	for _, c := range []struct {
		own   string
		files map[string]string
		limit int64
	}{
		{"", nil, 0},
		{"0::/\n", map[string]string{"sys/fs/cgroup/memory.max": "1073741824\n"}, 1 << 30},
		{"0::/\n", map[string]string{"sys/fs/cgroup/memory.max": "max\n"}, 0},
		{"0::/kubepods/pod1/c1\n", map[string]string{"sys/fs/cgroup/memory.max": "1000000\n"}, 1000000},
		{"0::/a/b\n", map[string]string{"sys/fs/cgroup/a/memory.max": "500\n", "sys/fs/cgroup/a/b/memory.max": "900\n"}, 500},
		{"4:memory:/x\n", map[string]string{"sys/fs/cgroup/memory/x/memory.limit_in_bytes": "700\n"}, 700},
		{"4:memory:/x\n", map[string]string{"sys/fs/cgroup/memory/memory.limit_in_bytes": "9223372036854771712\n"}, 0},
		{"4:cpu:/x\n", map[string]string{"sys/fs/cgroup/memory/x/memory.limit_in_bytes": "700\n"}, 0},
	} {
		root := t.TempDir()
		c.files = withFile(c.files, "proc/self/cgroup", c.own)
		for name, content := range c.files {
			must.OK(t, os.MkdirAll(filepath.Dir(filepath.Join(root, name)), 0o755))
			must.OK(t, os.WriteFile(filepath.Join(root, name), []byte(content), 0o600))
		}
		if limit := MemoryLimit(root); limit != c.limit {
			t.Errorf("%q: limit %d, want %d", c.own, limit, c.limit)
		}
	}
}

func withFile(files map[string]string, name, content string) map[string]string {
	out := map[string]string{name: content}
	maps.Copy(out, files)
	return out
}
