package layouts

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"syscall"
)

// fileSystem is a kind of file system, with the commands that make, mount and check it.
type fileSystem struct {
	name    string
	driver  string   // name of the kernel's driver in /proc/filesystems; empty if the kernel no longer has one
	options string   // mount options
	mkfs    []string // mkfs command, to which the device is appended
	inodes  string   // mkfs option that sets the number of inodes; empty if inodes are created as needed
	check   []string // command that checks the file system, to which the device is appended
	fine    []int    // exit codes of check that mean success, in addition to 0
	debian  string   // Debian package that contains the commands
	fuse    []string // program that serves the file system if the kernel has no driver; it may contain $DEVICE and $POINT
	fuseDeb string
	gone    string // reason why no current kernel supports the file system
	// unindexed means that a lookup in a folder reads the folder's entries from the first one on.
	unindexed bool
	// filesMax limits the number of records in a measurement, because the FUSE program is too slow for more records. 0
	// means that there is no limit.
	filesMax int
	// bytesMin is the smallest device that mkfs accepts.
	bytesMin int64
}

// fileSystems are the file systems on which the five texts report measurements (see the package comment), and the
// successors of these file systems.
var fileSystems = []fileSystem{
	{name: "ext2", driver: "ext2", unindexed: true, mkfs: []string{"mke2fs", "-q", "-F", "-t", "ext2", "-E", "nodiscard"},
		inodes: "-N",
		check:  []string{"e2fsck", "-f", "-y"}, fine: []int{1}, debian: "e2fsprogs"},
	{name: "ext3", driver: "ext3", mkfs: []string{"mke2fs", "-q", "-F", "-t", "ext3", "-O", "dir_index", "-E",
		"nodiscard"}, inodes: "-N",
		check: []string{"e2fsck", "-f", "-y"}, fine: []int{1}, debian: "e2fsprogs"},
	{name: "ext3-nodirindex", driver: "ext3", unindexed: true, mkfs: []string{"mke2fs", "-q", "-F", "-t", "ext3", "-O",
		"^dir_index", "-E", "nodiscard"}, inodes: "-N",
		check: []string{"e2fsck", "-f", "-y"}, fine: []int{1}, debian: "e2fsprogs"},
	{name: "ext4", driver: "ext4", options: "noinit_itable", mkfs: []string{"mke2fs", "-q", "-F", "-t", "ext4", "-E",
		"nodiscard"}, inodes: "-N",
		check: []string{"e2fsck", "-f", "-y"}, fine: []int{1}, debian: "e2fsprogs"},
	{name: "xfs", driver: "xfs", mkfs: []string{"mkfs.xfs", "-q", "-f", "-K"}, check: []string{"xfs_repair"},
		debian: "xfsprogs", bytesMin: 320 << 20},
	{name: "btrfs", driver: "btrfs", options: "nodiscard", mkfs: []string{"mkfs.btrfs", "-q", "-f", "-K"},
		check: []string{"btrfs", "check"}, debian: "btrfs-progs", bytesMin: 512 << 20},
	{name: "ntfs", driver: "ntfs3", mkfs: []string{"mkntfs", "-q", "-Q", "-F"}, check: []string{"ntfsfix", "-n"},
		debian: "ntfs-3g",
		fuse:   []string{"ntfs-3g", "-o", "no_detach,noatime", "$DEVICE", "$POINT"}, fuseDeb: "ntfs-3g", filesMax: 20000},
	{name: "fat32", driver: "vfat", mkfs: []string{"mkfs.fat", "-F", "32"}, check: []string{"fsck.fat", "-a"},
		fine: []int{1}, debian: "dosfstools",
		fuse: []string{"fusefat", "-f", "-o", "rw+", "$DEVICE", "$POINT"}, fuseDeb: "fusefat", filesMax: 200,
		bytesMin: 64 << 20},
	{name: "reiserfs", gone: "ReiserFS was removed from Linux in 6.13"},
	{name: "jfs", driver: "jfs", mkfs: []string{"mkfs.jfs", "-q"}, check: []string{"fsck.jfs", "-f"}, fine: []int{1},
		debian: "jfsutils"},
}

// FileSystemNames returns all names that --fs accepts. Without --fs, all file systems are measured. A file system that
// is not available has a row with the reason.
func FileSystemNames() []string {
	names := make([]string, 0, len(fileSystems))
	for i := range fileSystems {
		names = append(names, fileSystems[i].name)
	}
	return names
}

func findFileSystem(name string) *fileSystem {
	i := slices.IndexFunc(fileSystems, func(f fileSystem) bool { return f.name == name })
	if i < 0 {
		return nil
	}
	return &fileSystems[i]
}

// missing returns the reason why this machine cannot create and mount the file system, or "" if it can. byFuse is
// true if the kernel has no driver and a FUSE program serves the file system instead.
func (f *fileSystem) missing(ctx context.Context) (why string, byFuse bool) {
	if f.gone != "" {
		return f.gone, false
	}
	if !kernelHas(ctx, f.driver) {
		if len(f.fuse) == 0 {
			return fmt.Sprintf("this kernel has no driver %s (not in /proc/filesystems)", f.driver), false
		}
		byFuse = true
		if _, err := exec.LookPath(f.fuse[0]); err != nil {
			return fmt.Sprintf(
				"this kernel has no driver %s, and %s, which serves it through FUSE, is not installed: apt-get install %s",
				f.driver, f.fuse[0], f.fuseDeb), true
		}
		if _, err := os.Stat("/dev/fuse"); err != nil {
			return fmt.Sprintf("this kernel has no driver %s, and there is no /dev/fuse for %s", f.driver, f.fuse[0]), true
		}
	}
	if _, err := exec.LookPath(f.mkfs[0]); err != nil {
		return fmt.Sprintf("%s is not installed: apt-get install %s", f.mkfs[0], f.debian), byFuse
	}
	return "", byFuse
}

// kernelHas reports whether the kernel has a driver. It tries to load the module if the driver is absent.
func kernelHas(ctx context.Context, driver string) bool {
	if inKernel(driver) {
		return true
	}
	modprobe, err := exec.LookPath("modprobe")
	if err != nil || os.Geteuid() != 0 {
		return false
	}
	_ = exec.CommandContext(ctx, modprobe, "-q", driver).Run() // errors do not matter, because inKernel checks the result
	return inKernel(driver)
}

func inKernel(driver string) bool {
	content, err := os.ReadFile("/proc/filesystems")
	if err != nil {
		return false
	}
	for line := range strings.Lines(string(content)) {
		fields := strings.Fields(line)
		if len(fields) > 0 && fields[len(fields)-1] == driver {
			return true
		}
	}
	return false
}

// mkfsCommand returns the command that creates the file system with space for the given number of files.
func (f *fileSystem) mkfsCommand(device string, files int) []string {
	command := slices.Clone(f.mkfs)
	if f.inodes != "" {
		command = append(command, f.inodes, strconv.Itoa(files+files/8+4096))
	}
	return append(command, device)
}

// command runs a program and waits for it. The error includes the program's output.
func command(ctx context.Context, fine []int, words ...string) error {
	cmd := exec.CommandContext(ctx, words[0], words[1:]...)
	// The program runs in its own process group, so that Ctrl-C reaches only this process. The program is terminated when
	// ctx is done.
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	out, err := cmd.CombinedOutput()
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	if exit, ok := errors.AsType[*exec.ExitError](err); ok && slices.Contains(fine, exit.ExitCode()) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("%s: %w: %s", strings.Join(words, " "), err, outputTail(out))
	}
	return nil
}

// outputTail returns the end of a program's output in one line.
func outputTail(out []byte) string {
	const wordsMax = 400
	s := strings.TrimSpace(string(out))
	if len(s) > wordsMax {
		s = "... " + s[len(s)-wordsMax:]
	}
	return strings.ReplaceAll(s, "\n", "; ")
}
