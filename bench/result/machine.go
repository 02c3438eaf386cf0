package result

import (
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// Machine describes the machine on which the measurements ran.
type Machine struct {
	CPU         string `json:"cpu"`
	CPUs        int    `json:"cpus"`
	MemoryBytes int64  `json:"memory_bytes"`
	Kernel      string `json:"kernel"`
	Go          string `json:"go"`
	Dir         string `json:"dir,omitempty"` // folder that contains the measured files
	FileSystem  string `json:"file_system,omitempty"`
	Device      string `json:"device,omitempty"` // device of the file system, with its mount options
}

// ThisMachine describes this machine, and the file system that holds dir unless dir is empty.
func ThisMachine(dir string) Machine {
	m := Machine{CPUs: runtime.NumCPU(), Go: runtime.Version(), Dir: dir}
	var u unix.Utsname
	if unix.Uname(&u) == nil {
		m.Kernel = unix.ByteSliceToString(u.Release[:])
	}
	m.CPU, _ = procField("/proc/cpuinfo", "model name")
	kib, _ := ProcNumber("/proc/meminfo", "MemTotal")
	m.MemoryBytes = kib << 10
	if dir != "" {
		m.FileSystem, m.Device = mountOf(dir)
	}
	return m
}

// words describes the machine in one line.
func (m *Machine) words() string {
	parts := []string{m.CPU, strconv.Itoa(m.CPUs) + " CPUs", Format(float64(m.MemoryBytes), "B") + " of memory",
		"Linux " + m.Kernel}
	if m.FileSystem != "" {
		parts = append(parts, m.FileSystem+" on "+m.Device)
	}
	return strings.Join(append(parts, m.Go), ", ")
}

// ProcNumber returns the number after "name:" in a /proc file, in that file's unit. After an error, it returns 0.
func ProcNumber(file, name string) (int64, error) {
	value, err := procField(file, name)
	if err != nil {
		return 0, err
	}
	number, _, _ := strings.Cut(value, " ") // the unit follows the number
	return strconv.ParseInt(number, 10, 64)
}

// procField returns the first value after "name:" in a file of /proc.
func procField(file, name string) (string, error) {
	content, err := os.ReadFile(file)
	if err != nil {
		return "", err
	}
	for line := range strings.Lines(string(content)) {
		if k, v, ok := strings.Cut(line, ":"); ok && strings.TrimSpace(k) == name {
			return strings.TrimSpace(v), nil
		}
	}
	return "", fmt.Errorf("%s has no line %s", file, name)
}

// mountOf returns the file system type and the device of the mount that contains a folder. If several mount points
// contain it, the longest path is the right one. If several mounts have the same path, the last one is.
func mountOf(dir string) (fileSystem, device string) {
	dir, err := filepath.Abs(dir)
	if err != nil {
		return "", ""
	}
	if real, err := filepath.EvalSymlinks(dir); err == nil {
		dir = real
	}
	longest := -1
	mounts, _ := os.ReadFile("/proc/self/mountinfo")
	for line := range strings.Lines(string(mounts)) {
		mount, source, ok := strings.Cut(line, " - ")
		fields, from := strings.Fields(mount), strings.Fields(source)
		if !ok || len(fields) < 6 || len(from) < 2 {
			continue
		}
		at := unescape(fields[4])
		if len(at) >= longest && (at == "/" || dir == at || strings.HasPrefix(dir, at+"/")) {
			longest, fileSystem, device = len(at), from[0], unescape(from[1])+" ("+fields[5]+")"
		}
	}
	return fileSystem, device
}

var unescape = strings.NewReplacer(`\040`, " ", `\011`, "\t", `\012`, "\n", `\134`, `\`).Replace
