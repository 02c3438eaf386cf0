package chaos

import (
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"

	"sheaf.dev/sheaf/internal/test/must"
)

// hubAddress is the address from which the clients connect. Machine number n has the address 10.77.0.(10+n). The
// network namespaces have no names, so namespaces of two runs cannot collide.
const hubAddress = "10.77.0.1"

// machine is a network namespace and a mount namespace, which exist while a process holds them.
type machine struct {
	rig     *rig
	name    string
	address string
	holder  *exec.Cmd
	stdin   io.Closer
	netns   int // file descriptor of the network namespace
	slow    *slowDisk
}

// newMachine creates a machine that has no network yet.
func (r *rig) newMachine(name, address string) *machine {
	m := &machine{rig: r, name: name, address: address, holder: exec.Command("cat")}
	var err error
	m.stdin, err = m.holder.StdinPipe() // when this process exits, the pipe is closed and the holder exits
	must.OK(r.t, err)
	m.holder.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWNET | syscall.CLONE_NEWNS}
	must.OK(r.t, r.start(m.holder))
	r.mu.Lock()
	r.machines = append(r.machines, m)
	r.mu.Unlock()
	m.netns, err = unix.Open(fmt.Sprintf("/proc/%d/ns/net", m.holder.Process.Pid), unix.O_RDONLY|unix.O_CLOEXEC, 0)
	must.OK(r.t, err)
	m.must("mount", "--make-rprivate", "/")
	m.dropMounts()
	m.must("ip", "link", "set", "lo", "up")
	return m
}

// The mount namespace of a machine begins as a copy that contains the mounts of other processes. dropMounts unmounts
// these in the machine. Otherwise the other processes could not completely unmount them before the run is over.
func (m *machine) dropMounts() {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/mountinfo", m.holder.Process.Pid))
	must.OK(m.rig.t, err)
	for line := range strings.Lines(string(text)) {
		at := strings.Fields(line)[4]
		needed := slices.ContainsFunc([]string{m.rig.dir, sheafBinary, slowdiskBinary}, func(path string) bool {
			return at == "/" || strings.HasPrefix(path, at+"/")
		})
		system := slices.ContainsFunc([]string{"/proc", "/sys", "/dev"}, func(path string) bool {
			return at == path || strings.HasPrefix(at, path+"/")
		})
		if !needed && !system {
			_, _ = m.run("umount", "--lazy", at) // the owner of the mount may have unmounted it already
		}
	}
}

// newNode creates a machine that is connected to the hub.
func (r *rig) newNode(name string) *machine {
	r.mu.Lock()
	number := len(r.machines)
	r.mu.Unlock()
	m := r.newMachine(name, fmt.Sprintf("10.77.0.%d", 10+number))
	port, hub := "p"+strconv.Itoa(number), strconv.Itoa(r.hub.holder.Process.Pid)
	m.must("ip", "link", "add", "eth0", "type", "veth", "peer", "name", port, "netns", hub)
	m.must("ip", "address", "add", m.address+"/24", "dev", "eth0")
	m.must("ip", "link", "set", "eth0", "up")
	r.hub.must("ip", "link", "set", port, "master", "bridge", "up")
	return m
}

// inside returns a command line that runs a command inside the machine.
func (m *machine) inside(args ...string) []string {
	target := strconv.Itoa(m.holder.Process.Pid)
	return append([]string{"nsenter", "--target", target, "--net", "--mount", "--"}, args...)
}

func (m *machine) run(args ...string) (string, error) { return m.rig.command(m.inside(args...)...) }

func (m *machine) must(args ...string) {
	m.rig.t.Helper()
	_, err := m.run(args...)
	must.OK(m.rig.t, err)
}

// path returns the path at which this process finds one of the machine's files, even if the file is on a mount in the
// machine's own namespace.
func (m *machine) path(name string) string {
	return fmt.Sprintf("/proc/%d/root%s", m.holder.Process.Pid, name)
}

// remove kills everything that runs in the machine.
func (m *machine) remove() {
	if m.slow != nil {
		m.slow.set("off") // ends the disk's hang, because a process that waits for a hanging disk cannot be killed
	}
	_ = unix.Close(m.netns)
	_ = m.stdin.Close()
	_ = m.holder.Process.Kill()
	_ = m.holder.Wait()
}

// direction is the direction in which packets are dropped, seen from the partitioned machine.
type direction int

const (
	deaf   direction = iota + 1 // incoming packets
	mute                        // outgoing packets
	silent                      // incoming and outgoing packets
)

// cut drops packets between the machine and other machines, in one direction or both.
func (m *machine) cut(d direction, others []string) error {
	rules := "table inet chaos {\n"
	set := strings.Join(others, ", ")
	if d != mute {
		rules += "chain in {\ntype filter hook input priority 0\nip saddr { " + set + " } counter drop\n}\n"
	}
	if d != deaf {
		rules += "chain out {\ntype filter hook output priority 0\nip daddr { " + set + " } counter drop\n}\n"
	}
	file := filepath.Join(m.rig.dir, m.name+".nft")
	if err := os.WriteFile(file, []byte(rules+"}\n"), 0o644); err != nil {
		return err
	}
	_, err := m.run("nft", "--file", file)
	return err
}

var packetsWord = regexp.MustCompile(`counter packets (\d+)`)

// reconnect ends the partition. It returns, for each rule of the partition, the number of packets that the rule
// dropped.
func (m *machine) reconnect() (dropped []int, err error) {
	text, err := m.run("nft", "list", "table", "inet", "chaos")
	if err != nil {
		return nil, err
	}
	for _, match := range packetsWord.FindAllStringSubmatch(text, -1) {
		n, err := strconv.Atoi(match[1])
		if err != nil {
			return nil, err
		}
		dropped = append(dropped, n)
	}
	_, err = m.run("nft", "delete", "table", "inet", "chaos")
	return dropped, err
}
