package result

import (
	"bufio"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// Machine says where something was measured.
type Machine struct {
	CPU         string `json:"cpu"`
	CPUs        int    `json:"cpus"`
	MemoryBytes int64  `json:"memory_bytes"`
	Kernel      string `json:"kernel"`
	Go          string `json:"go"`
	Dir         string `json:"dir,omitempty"` // where files were
	FileSystem  string `json:"file_system,omitempty"`
	Device      string `json:"device,omitempty"` // with mount options
}

// ThisMachine looks at the machine, and at what the folder is on; an empty folder is not looked at.
func ThisMachine(dir string) Machine {
	m := Machine{CPUs: runtime.NumCPU(), Go: runtime.Version(), Dir: dir}
	var u unix.Utsname
	if unix.Uname(&u) == nil {
		m.Kernel = unix.ByteSliceToString(u.Release[:])
	}
	m.CPU = procField("/proc/cpuinfo", "model name")
	kib, err := strconv.ParseInt(strings.TrimSuffix(procField("/proc/meminfo", "MemTotal"), " kB"), 10, 64)
	if err == nil {
		m.MemoryBytes = kib << 10
	}
	if dir != "" {
		m.FileSystem, m.Device = mountOf(dir)
	}
	return m
}

// words is the machine in one line.
func (m *Machine) words() string {
	parts := []string{m.CPU, strconv.Itoa(m.CPUs) + " CPUs", Format(float64(m.MemoryBytes), "B") + " of memory", "Linux " + m.Kernel}
	if m.FileSystem != "" {
		parts = append(parts, m.FileSystem+" on "+m.Device)
	}
	return strings.Join(append(parts, m.Go), ", ")
}

// procField finds "name : value" in a file of /proc; empty where there is none.
func procField(file, name string) string {
	value := ""
	eachLine(file, func(line string) bool {
		k, v, ok := strings.Cut(line, ":")
		if ok && strings.TrimSpace(k) == name {
			value = strings.TrimSpace(v)
		}
		return value == ""
	})
	return value
}

// mountOf finds what a folder is on: the longest mount point above it, the last of those mounted there.
func mountOf(dir string) (fileSystem, device string) {
	dir, err := filepath.Abs(dir)
	if err != nil {
		return "", ""
	}
	if real, err := filepath.EvalSymlinks(dir); err == nil {
		dir = real
	}
	longest := -1
	eachLine("/proc/self/mountinfo", func(line string) bool {
		mount, source, ok := strings.Cut(line, " - ")
		fields, from := strings.Fields(mount), strings.Fields(source)
		if !ok || len(fields) < 6 || len(from) < 2 {
			return true
		}
		at := unescape(fields[4])
		if len(at) >= longest && (at == "/" || dir == at || strings.HasPrefix(dir, at+"/")) {
			longest, fileSystem, device = len(at), from[0], unescape(from[1])+" ("+fields[5]+")"
		}
		return true
	})
	return fileSystem, device
}

var unescape = strings.NewReplacer(`\040`, " ", `\011`, "\t", `\012`, "\n", `\134`, `\`).Replace

// eachLine hands on the lines of a file until told to stop. A file that cannot be read has none.
func eachLine(file string, each func(string) bool) {
	f, err := os.Open(file)
	if err != nil {
		return
	}
	defer f.Close() //nolint:errcheck // only read from
	for lines := bufio.NewScanner(f); lines.Scan(); {
		if !each(lines.Text()) {
			return
		}
	}
}
