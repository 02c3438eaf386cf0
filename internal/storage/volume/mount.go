package volume

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"sheaf.dev/sheaf/internal/storage/vfs"
)

// Mount is the kernel's information about the file system that holds a folder.
type Mount struct {
	// FileSystem is the type of the file system: ext2, ext3, ext4, xfs, btrfs, overlay, tmpfs... If the ext4 driver has
	// mounted an ext3 disk, the type is ext3. A file system in memory, as tests use, has the type "mem".
	FileSystem string
	Options    []string // options of the mount, followed by those of the file system
	Source     string
	Rotational *bool // nil if it is not known
}

// ErrMount means that a folder's file system is not the required one.
var ErrMount = errors.New("wrong file system")

// MountOf returns the mount that holds a folder. The folder need not belong to a volume. If it does not exist,
// MountOf uses the nearest parent folder that exists. MountOf reads /proc/self/mountinfo and the queue of the block
// device, and writes nothing. If the ext4 driver has mounted the disk, the disk may be ext2, ext3 or ext4. MountOf
// then looks at the flags of the volume's superblock file, which is written anew at every start, or at those of the
// folder if there is no such file. On ext4, files and folders that the driver creates have extents.
func MountOf(fsys vfs.FS, dir string) (Mount, error) {
	if inMemory(fsys) {
		return Mount{FileSystem: "mem", Source: "none"}, nil
	}
	m, err := mountOf(dir)
	if err != nil {
		return Mount{}, fmt.Errorf("mount of volume %s: %w", dir, err)
	}
	return m, nil
}

// Mount is like MountOf, for the folder of the volume.
func (v *Volume) Mount() (Mount, error) { return MountOf(v.fs, v.dir) }

// inMemory reports whether a file system is in memory and not on a disk. A file system for tests says so with its
// method InMemory.
func inMemory(fsys vfs.FS) bool {
	for {
		if on, ok := fsys.(interface{ InMemory() bool }); ok {
			return on.InMemory()
		}
		wrapper, ok := fsys.(interface{ Unwrap() vfs.FS })
		if !ok {
			return false
		}
		fsys = wrapper.Unwrap()
	}
}

func mountOf(dir string) (Mount, error) {
	dir, err := filepath.Abs(dir)
	if err != nil {
		return Mount{}, err
	}
	for dir != "/" {
		if _, err := os.Stat(dir); !errors.Is(err, fs.ErrNotExist) {
			break
		}
		dir = path.Dir(dir)
	}
	info, err := findMount(dir)
	if err != nil {
		return Mount{}, err
	}
	m := info.Mount
	m.Rotational = rotational(info)
	if m.FileSystem != "ext4" {
		return m, nil
	}
	sample := path.Join(dir, superblockName)
	if _, err := os.Stat(sample); errors.Is(err, fs.ErrNotExist) {
		sample = dir
	}
	m.FileSystem, err = extFamily(info, sample)
	return m, err
}

// unchecked reports whether Check ignores an option, because the option is for mount(8) and not for the kernel, or has
// no effect.
func unchecked(option string) bool {
	switch option {
	case "", "defaults", "auto", "noauto", "nofail", "_netdev", "user", "nouser", "users", "owner", "group":
		return true
	}
	return strings.HasPrefix(option, "x-")
}

// opposites maps each default option to the option that switches it off. The kernel does not list a default option
// that is in force. If the option is switched off, the kernel lists its opposite.
var opposites = map[string]string{
	"atime": "noatime", "exec": "noexec", "suid": "nosuid", "dev": "nodev", "async": "sync", "diratime": "nodiratime",
	"rw": "ro",
}

// Check compares the mount with the wanted type and options. It returns nil if the mount has the type and all of the
// options. Otherwise it returns an error that names those that are missing. An empty type accepts any type.
func (m Mount) Check(fileSystem string, options []string) error {
	if fileSystem != "" && !strings.EqualFold(fileSystem, m.FileSystem) {
		return fmt.Errorf(
			"%w: the volume is on %s (%s), wanted is %s: give the shard a disk with %s, or change what is wanted",
			ErrMount, m.FileSystem, m.Source, fileSystem, fileSystem)
	}
	var missing []string
	for _, option := range options {
		if unchecked(option) || slices.Contains(m.Options, option) {
			continue
		}
		if other, ok := opposites[option]; ok && !slices.Contains(m.Options, other) {
			continue
		}
		missing = append(missing, option)
	}
	if len(missing) > 0 {
		return fmt.Errorf("%w: %s (%s) is mounted with %s, wanted is also %s: mount it so, or change what is wanted",
			ErrMount, m.FileSystem, m.Source, strings.Join(m.Options, ","), strings.Join(missing, ","))
	}
	return nil
}

// ReadOnly reports whether the file system refuses writes. The kernel makes a file system read-only after a disk error.
func ReadOnly(fsys vfs.FS, dir string) (bool, error) {
	if inMemory(fsys) {
		return false, nil
	}
	var st unix.Statfs_t
	if err := unix.Statfs(dir, &st); err != nil {
		return false, fmt.Errorf("volume %s: %w", dir, err)
	}
	return st.Flags&unix.ST_RDONLY != 0, nil
}

// mountInfo is one line of /proc/self/mountinfo.
type mountInfo struct {
	id     int
	device string // in the form major:minor
	point  string
	Mount  // all fields except Rotational are set
}

// findMount returns the mount that holds a folder. The argument dir is an absolute path. If the kernel provides mount
// ids (5.8 or newer), findMount uses the id. Otherwise it looks at the mount points that are the folder or contain
// it, and chooses the longest of them. If there are several mounts at this point, it chooses the last one.
func findMount(dir string) (mountInfo, error) {
	resolved, err := filepath.EvalSymlinks(dir)
	if err != nil {
		return mountInfo{}, err
	}
	f, err := os.Open("/proc/self/mountinfo")
	if err != nil {
		return mountInfo{}, err
	}
	mounts, err := parseMountInfo(f)
	if err = errors.Join(err, f.Close()); err != nil {
		return mountInfo{}, err
	}
	if id, ok := mountID(resolved); ok {
		if i := slices.IndexFunc(mounts, func(m mountInfo) bool { return m.id == id }); i >= 0 {
			return mounts[i], nil
		}
	}
	return longestMount(mounts, resolved)
}

// longestMount determines the mount from the folder's path alone.
func longestMount(mounts []mountInfo, dir string) (mountInfo, error) {
	var best *mountInfo
	for i, m := range mounts {
		above := m.point == "/" || dir == m.point || strings.HasPrefix(dir, m.point+"/")
		// A later mount at the same point hides the earlier one.
		if above && (best == nil || len(m.point) >= len(best.point)) {
			best = &mounts[i]
		}
	}
	if best == nil {
		return mountInfo{}, fmt.Errorf("/proc/self/mountinfo names no mount that holds %s", dir)
	}
	return *best, nil
}

// mountID returns the kernel's id of the mount that holds a folder. It returns false if the kernel does not provide the
// id.
func mountID(dir string) (int, bool) {
	var st unix.Statx_t
	err := unix.Statx(unix.AT_FDCWD, dir, unix.AT_STATX_DONT_SYNC, unix.STATX_MNT_ID, &st)
	if err != nil || st.Mask&unix.STATX_MNT_ID == 0 {
		return 0, false
	}
	return int(st.Mnt_id), true
}

// parseMountInfo reads lines such as
//
//	36 35 98:0 /mnt1 /mnt2 rw,noatime master:1 - ext3 /dev/root rw,errors=continue
//
// with any number of optional fields before the "-". See proc_pid_mountinfo(5). It returns an error for a line that
// does not have this form.
func parseMountInfo(r io.Reader) ([]mountInfo, error) {
	var mounts []mountInfo
	scanner := bufio.NewScanner(r)
	scanner.Buffer(nil, 1<<20) // overlay mounts can have many options, which make the line long
	for scanner.Scan() {
		fields := strings.Split(scanner.Text(), " ")
		dash := slices.Index(fields, "-")
		if dash < 6 || len(fields) < dash+4 {
			return nil, fmt.Errorf("/proc/self/mountinfo: a line that is not understood: %q", scanner.Text())
		}
		id, err := strconv.Atoi(fields[0])
		if err != nil {
			return nil, fmt.Errorf("/proc/self/mountinfo: a line that is not understood: %q: %w", scanner.Text(), err)
		}
		m := mountInfo{id: id, device: fields[2], point: unescape(fields[4]),
			Mount: Mount{FileSystem: fields[dash+1], Source: unescape(fields[dash+2])}}
		for option := range strings.SplitSeq(fields[5]+","+fields[dash+3], ",") {
			if option = unescape(option); option != "" && !slices.Contains(m.Options, option) {
				m.Options = append(m.Options, option)
			}
		}
		mounts = append(mounts, m)
	}
	return mounts, scanner.Err()
}

// unescape decodes the octal escapes (space, tab, newline, backslash, #) in a field of mountinfo.
func unescape(s string) string {
	return octal.ReplaceAllStringFunc(s, func(escape string) string {
		// ParseUint never fails, because the expression matches only numbers up to octal 377.
		c, _ := strconv.ParseUint(escape[1:], 8, 8)
		return string([]byte{byte(c)})
	})
}

var octal = regexp.MustCompile(`\\[0-3][0-7]{2}`)

// flagExtents is FS_EXTENT_FL of FS_IOC_GETFLAGS (linux/fs.h). On an ext4 file system with inline_data, small files
// lack this flag, but a superblock file is too large for inline data.
const flagExtents = 0x00080000

// extFamily determines whether a disk that the ext4 driver has mounted is ext2, ext3 or ext4. It uses the flags of a
// file that the driver has created, and whether the file system has a journal.
func extFamily(info mountInfo, newFile string) (string, error) {
	f, err := os.Open(newFile)
	if err != nil {
		return "", err
	}
	flags, err := unix.IoctlGetUint32(int(f.Fd()), unix.FS_IOC_GETFLAGS)
	if err = errors.Join(err, f.Close()); err != nil {
		return "", fmt.Errorf("read the flags of %s, to tell ext3 from ext4: %w", newFile, err)
	}
	if flags&flagExtents != 0 {
		return "ext4", nil
	}
	// This file contains the name of the journal's task, or <none> if there is no journal.
	if device, err := os.Readlink("/sys/dev/block/" + info.device); err == nil {
		task, err := os.ReadFile("/sys/fs/ext4/" + path.Base(device) + "/journal_task")
		if err == nil && bytes.Contains(task, []byte("<none>")) {
			return "ext2", nil
		}
	}
	return "ext3", nil
}

// rotational reports whether the block device of a mount is a rotating disk. For a partition, it looks at the disk
// that contains the partition. If the kernel does not know, rotational returns nil.
func rotational(info mountInfo) *bool {
	device := info.device
	// The device number of btrfs and of some other file systems is not that of a block device.
	if strings.HasPrefix(device, "0:") {
		var st unix.Stat_t
		if err := unix.Stat(info.Source, &st); err != nil || st.Mode&unix.S_IFMT != unix.S_IFBLK {
			return nil
		}
		device = fmt.Sprintf("%d:%d", unix.Major(st.Rdev), unix.Minor(st.Rdev))
	}
	// The path must not be cleaned, because the ".." in it is relative to the target of a link.
	for _, queue := range []string{"/queue/", "/../queue/"} {
		content, err := os.ReadFile("/sys/dev/block/" + device + queue + "rotational")
		if err != nil {
			continue
		}
		if spins, err := strconv.ParseBool(strings.TrimSpace(string(content))); err == nil {
			return &spins
		}
	}
	return nil
}
