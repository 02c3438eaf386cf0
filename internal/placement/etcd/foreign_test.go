package etcd_test

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"sheaf.dev/sheaf/internal/placement/etcd"
	"sheaf.dev/sheaf/internal/test/must"
)

// A member must be the only user of its disk, as a shard must. Before the member writes anything, it checks the
// folder. Files that belong to somebody else must remain unchanged, and the error must name them. The test uses real
// files, because etcd cannot write to any other kind of file system.
func TestAMemberRefusesADiskThatHoldsSomethingElse(t *testing.T) {
	for name, row := range map[string]struct {
		there []string // existing files, and folders, whose names end with a slash
		named string   // the name that the error must contain; empty if the disk is accepted
	}{
		"a blank disk":               {there: nil},
		"a new ext4":                 {there: []string{"lost+found/"}},
		"interrupted while claiming": {there: []string{"lost+found/", "etcd/sheaf-etcd.json.tmp", "snapshots/"}},
		"somebody's files":           {there: []string{"lost+found/", "payroll/2026.csv"}, named: `"payroll"`},
		"a hidden file":              {there: []string{".bashrc"}, named: `".bashrc"`},
		"the volume of a shard": {there: []string{"groups/g/1", "lock", "superblock"},
			named: `"groups", "lock", "superblock"`},
		"many files": {there: []string{"1", "2", "3", "4", "5", "6", "7"},
			named: `"1", "2", "3", "4", "5" and 2 more`},
		"files in the folder":    {there: []string{"etcd/notes.txt"}, named: `"notes.txt"`},
		"snapshots without data": {there: []string{"snapshots/1.db"}, named: `"1.db"`},
		"foreign files beside a claim without data": {
			there: []string{"etcd/sheaf-etcd.json", "payroll/2026.csv"}, named: `"payroll"`},
	} {
		t.Run(name, func(t *testing.T) {
			cfg := memberConfig(t, "a")
			cfg.Mount = filepath.Dir(cfg.Dir)
			cfg.Snapshots.Dir = filepath.Join(cfg.Mount, "snapshots")
			for _, file := range row.there {
				path := filepath.Join(cfg.Mount, file)
				err := os.MkdirAll(filepath.Dir(path), 0o700)
				if strings.HasSuffix(file, "/") {
					err = os.MkdirAll(path, 0o700)
				} else if err == nil {
					err = os.WriteFile(path, []byte(`{"format":1,"name":"a","token":"t1"}`), 0o600)
				}
				must.OK(t, err)
			}
			before := tree(t, cfg.Mount)
			if row.named == "" {
				again(t, "ready", startMember(t, cfg).Ready)
				return
			}
			m, err := etcd.StartMember(testContext(t), cfg)
			if err == nil {
				m.Close()
			}
			if !errors.Is(err, etcd.ErrForeign) || !strings.Contains(err.Error(), row.named) {
				t.Errorf("error %v, wanted are the names %s", err, row.named)
			}
			if after := tree(t, cfg.Mount); !slices.Equal(before, after) {
				t.Errorf("the disk was written to: it had %q, has %q", before, after)
			}
		})
	}
}

// TestAnOddOwnerFileIsNamed checks that a member does not start if its folder has an owner file from which the owner
// cannot be determined. The error must name that file, and the folder must remain unchanged.
func TestAnOddOwnerFileIsNamed(t *testing.T) {
	for name, content := range map[string]string{
		"empty": "", "null": "null", "a list": "[1]", "an empty object": "{}", "zeros": strings.Repeat("\x00", 4096),
		"a format of later":  `{"format":2,"name":"a","token":"t1"}`,
		"an absurd format":   `{"format":1e300,"name":"a","token":"t1"}`,
		"a name that is odd": `{"format":1,"name":["a"],"token":"t1"}`,
		"of another":         `{"format":1,"name":"b","token":"t1"}`,
		"deep":               strings.Repeat("[", 1<<15),
		"very large":         `{"format":1,"name":"a","token":"t1"` + strings.Repeat(" ", 1<<20) + "}",
	} {
		t.Run(name, func(t *testing.T) {
			cfg := memberConfig(t, "a")
			file := filepath.Join(cfg.Dir, "sheaf-etcd.json")
			must.OK(t, errors.Join(os.MkdirAll(cfg.Dir, 0o700), os.WriteFile(file, []byte(content), 0o600)))
			before := tree(t, cfg.Dir)
			m, err := etcd.StartMember(testContext(t), cfg)
			if err == nil {
				m.Close()
			}
			if err == nil || !strings.Contains(err.Error(), cfg.Dir) {
				t.Errorf("error %v does not name %s", err, cfg.Dir)
			}
			if after := tree(t, cfg.Dir); !slices.Equal(before, after) {
				t.Errorf("the folder was written to: it had %q, has %q", before, after)
			}
		})
	}
}

// A member that has data must be able to restart even if somebody has added other files next to the data, because the
// cluster may need the member for its quorum.
func TestAMemberWithDataStartsBesideOtherFiles(t *testing.T) {
	cfg := memberConfig(t, "a")
	cfg.Mount = filepath.Dir(cfg.Dir)
	startMember(t, cfg).Close()
	must.OK(t, os.WriteFile(filepath.Join(cfg.Mount, "notes.txt"), nil, 0o600))
	m := startMember(t, cfg)
	again(t, "ready", m.Ready)
	m.Close()

	other := cfg
	other.Token = "t2"
	if _, err := etcd.StartMember(testContext(t), other); !errors.Is(err, etcd.ErrOtherCluster) {
		t.Errorf("the etcd of another store: error %v", err)
	}
}

// tree lists all files and folders below a folder.
func tree(t *testing.T, dir string) []string {
	t.Helper()
	var paths []string
	must.OK(t, filepath.WalkDir(dir, func(path string, _ fs.DirEntry, err error) error {
		paths = append(paths, path)
		return err
	}))
	return paths
}
