package main

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"sheaf.dev/sheaf/internal/test/etcdserver"
	"sheaf.dev/sheaf/internal/test/loopback"
)

// Limits of the soak. The live data is a tenth of the disk, and is overwritten many times.
const (
	soakGroups  = 4
	soakSegment = 4 << 20
	soakDisk    = 512 << 20
	soakMemory  = 512 << 20
)

// soakStore is a store of one copy: etcd, a gateway and a shard as separate processes. The gateway and the shard may
// each use 512 MiB of memory, including their page cache. The kernel kills a process that uses more. The shard's disk
// is small.
type soakStore struct {
	t              *testing.T
	disk, dir      string
	common         []string
	gateway, shard *process
	limits         map[string]*memoryCgroup // keyed by process name
	addresses      map[string][2]string     // addresses of gRPC and HTTP, by name of the process
}

func newSoakStore(t *testing.T) *soakStore {
	server, err := etcdserver.Start(t.TempDir())
	must(t, err)
	t.Cleanup(server.Close)
	s := &soakStore{
		t: t, disk: smallDisk(t, soakDisk), common: []string{"--etcd", strings.Join(server.Endpoints(), ","), "--store",
			"soak"},
		limits: map[string]*memoryCgroup{}, addresses: map[string][2]string{},
	}
	s.dir = filepath.Join(s.disk, "volume")
	for _, name := range []string{"gateway", "shard"} {
		s.limits[name] = newMemoryCgroup(t, "sheaf-soak-"+name+"-"+strconv.Itoa(os.Getpid()), soakMemory)
		s.addresses[name] = [2]string{loopback.Free(t), loopback.Free(t)}
	}
	s.startGateway()
	s.gateway.waitReady(t)
	s.startShard()
	return s
}

// begin starts a process of the store within its memory limit, each time at the same addresses.
func (s *soakStore) begin(name string, args ...string) *process {
	s.t.Helper()
	at := s.addresses[name]
	args = append(append([]string{sheafBinary}, args...), "--listen", at[0], "--http", at[1])
	p := s.limits[name].serve(nil, append(args, s.common...)...)
	p.server, p.http = at[0], at[1]
	return p
}

func (s *soakStore) startGateway() {
	s.gateway = s.begin("gateway", "gateway", "--create", "--groups", strconv.Itoa(soakGroups))
}

func (s *soakStore) startShard() {
	s.shard = s.begin("shard", "shard", "--name", "a", "--dir", s.dir, "--segment-bytes", strconv.Itoa(soakSegment))
	s.shard.waitReady(s.t)
}

// free returns the free bytes of the disk.
func (s *soakStore) free() int64 {
	var fs syscall.Statfs_t
	must(s.t, syscall.Statfs(s.disk, &fs))
	return int64(fs.Bavail) * fs.Bsize
}

// files returns the total number of files in all groups.
func (s *soakStore) files() int {
	names, err := filepath.Glob(filepath.Join(s.dir, "groups", "*", "*"))
	must(s.t, err)
	return len(names)
}

// smallDisk mounts an ext4 file system of this size on a loop device until the test ends.
func smallDisk(t *testing.T, bytes int64) string {
	t.Helper()
	image, dir := filepath.Join(t.TempDir(), "image"), t.TempDir()
	must(t, os.WriteFile(image, nil, 0o600))
	must(t, os.Truncate(image, bytes))
	for _, args := range [][]string{{"mkfs.ext4", "-q", "-F", "-m", "0", image},
		{"mount", "-o", "loop,noatime", image, dir}} {
		if out, err := exec.Command(args[0], args[1:]...).CombinedOutput(); err != nil {
			t.Fatalf("%s: %v: %s", strings.Join(args, " "), err, out)
		}
	}
	t.Cleanup(func() { must(t, syscall.Unmount(dir, syscall.MNT_DETACH)) })
	return dir
}

// memoryCgroup limits the total memory of its processes, including the page cache of the files that they read and
// write.
type memoryCgroup struct {
	t   *testing.T
	dir string
	v2  bool
}

// newMemoryCgroup creates a cgroup and removes it when the test ends.
func newMemoryCgroup(t *testing.T, name string, bytes int64) *memoryCgroup {
	t.Helper()
	g := &memoryCgroup{t: t, dir: filepath.Join("/sys/fs/cgroup/memory", name)}
	limit := "memory.limit_in_bytes"
	if _, err := os.Stat("/sys/fs/cgroup/cgroup.controllers"); err == nil {
		g.dir, g.v2, limit = filepath.Join("/sys/fs/cgroup", name), true, "memory.max"
		must(t, os.WriteFile("/sys/fs/cgroup/cgroup.subtree_control", []byte("+memory"), 0o644))
	}
	must(t, os.Mkdir(g.dir, 0o755))
	t.Cleanup(func() {
		// The kernel needs a moment to release processes that have ended, so the removal may fail at first.
		for end := time.Now().Add(time.Minute); ; time.Sleep(10 * time.Millisecond) {
			err := os.Remove(g.dir)
			if err == nil {
				return
			}
			if time.Now().After(end) {
				t.Errorf("removing the cgroup: %v", err)
				return
			}
		}
	})
	must(t, os.WriteFile(filepath.Join(g.dir, limit), []byte(strconv.FormatInt(bytes, 10)), 0o644))
	return g
}

// serve starts a program in the cgroup.
func (g *memoryCgroup) serve(env []string, program ...string) *process {
	g.t.Helper()
	enter := []string{"-c", `echo $$ >"$0" && exec "$@"`, g.procs()}
	return serveProgram(g.t, env, "sh", append(enter, program...)...)
}

// procs returns the file that assigns processes to the cgroup.
func (g *memoryCgroup) procs() string { return filepath.Join(g.dir, "cgroup.procs") }

// kills counts the processes that the kernel has killed for lack of memory.
func (g *memoryCgroup) kills() int64 {
	name := "memory.oom_control"
	if g.v2 {
		name = "memory.events"
	}
	text, err := os.ReadFile(filepath.Join(g.dir, name))
	must(g.t, err)
	for line := range strings.Lines(string(text)) {
		var kills int64
		if _, err := fmt.Sscanf(line, "oom_kill %d", &kills); err == nil {
			return kills
		}
	}
	g.t.Fatalf("%s does not say how many were killed: %s", name, text)
	return 0
}
