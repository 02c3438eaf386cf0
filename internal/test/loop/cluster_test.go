package loop

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"sheaf.dev/sheaf/internal/test/must"
)

// The cluster records the disks that it uses (hack/cluster/disks.sh) by the numbers of their loop devices. If such a
// number now belongs to another image, the script must neither detach that device nor use it in any other way. The test
// simulates losetup and the nodes, so that it needs no root.
func TestClusterIgnoresForeignLoopDevices(t *testing.T) {
	const script = `set -euo pipefail
state=$PWD/state here=$PWD
die() { echo "cluster: $*" >&2; exit 1; }
pid() { [ "$1" = control ] && echo 1; } # no node runs
inside() { :; }
losetup() { # the device is what the file back says
  echo "losetup $*" >>calls
  case "$1" in -nO) cat back ;; -nl) echo "/dev/loop7 $(cat back) 0:39" ;; --find | --direct-io=on) return 1 ;; esac
}
blockdev() { echo "blockdev $*" >>calls; }
nsenter() { echo "nsenter $*" >>calls; echo /dev/loop9; }
source "$DISKS"
mkdir -p state/n1/disks/a
truncate -s 1M state/n1/disks/a/image
echo 7 >state/n1/disks/a/loop
echo "$BACK" | sed "s#IMAGE#$(realpath state/n1/disks/a/image)#" >back
: >calls
eval "$RUN"
`
	disks := scriptPath(t, "disks.sh")
	for _, c := range []struct {
		run, back string
		calls     string // the call that changes a device; empty if no such call is made
		says      string
	}{
		{"disk_detach n1 a", "IMAGE", "losetup -d /dev/loop7", ""},
		{"disk_detach n1 a", "/images/payroll.img", "", "/dev/loop7 is /images/payroll.img now, and not this disk"},
		{"disk_detach n1 a", "", "", "/dev/loop7 is no device now"},
		{"disk_rm n1 a", "/images/payroll.img", "", "It is left alone"},
		{"disk_zero n1 a", "IMAGE", "blockdev --flushbufs /dev/loop7", ""},
		{"disk_zero n1 a || true", "/images/payroll.img", "", "It is left alone"},
		{"disk_grow n1 a 2M", "IMAGE", "losetup --set-capacity /dev/loop7", ""},
		{"disk_grow n1 a 2M || true", "/images/payroll.img", "", "It is left alone"},
		{"disk_attach n1 a; cat state/n1/disks/a/loop >&2", "IMAGE", "", "7"},
		{"disk_attach n1 a; cat state/n1/disks/a/loop >&2", "/images/payroll.img",
			"nsenter --mount=/proc/self/ns/mnt -- losetup --find", "9"},
		{"disks_forget n1; ls state/n1/disks/a >&2", "/images/payroll.img", "", "It is left alone"},
		{"disk_list >&2", "/images/payroll.img", "", "lost /dev/loop7"},
		{"disks_loops >&2", "IMAGE", "", "/dev/loop7 /"},
		{"disks_loops >&2", "/sheaf-slowdisk", "", "/dev/loop7 /sheaf-slowdisk"},
		// The repository may have another clone, whose cluster has a slow disk with the same file name. That disk must not
		// be mistaken for this one. The two differ in the numbers of their devices.
		{"echo 8 >state/n1/disks/a/loop; echo loops: $(disks_loops). >&2", "/sheaf-slowdisk", "", "loops: ."},
		// The kubelet had attached another device to the disk before the kubelet's node was removed.
		{"echo loops: $(disks_loops). >&2", "/", "", "loops: ."},
		{"printf '0:38\\n0:39\\n' >state/n1/dev; echo loops: $(disks_loops). >&2", "/", "", "loops: /dev/loop7 / 0:39."},
		{"echo 0:39 >state/n1/dev; echo loops: $(disks_loops). >&2", "/images/payroll.img", "", "loops: ."},
	} {
		dir := t.TempDir()
		cmd := exec.Command("bash", "-c", script)
		cmd.Dir, cmd.Env = dir, append(os.Environ(), "DISKS="+disks, "BACK="+c.back, "RUN="+c.run)
		said, err := cmd.CombinedOutput()
		if err != nil && !strings.HasPrefix(c.run, "disk_zero") && !strings.HasPrefix(c.run, "disk_grow") {
			t.Errorf("%s of %q: %v: %s", c.run, c.back, err, said)
		}
		text, err := os.ReadFile(filepath.Join(dir, "calls"))
		must.OK(t, err)
		var changes []string
		for call := range strings.Lines(string(text)) {
			if !strings.HasPrefix(call, "losetup -n") {
				changes = append(changes, strings.TrimSpace(call))
			}
		}
		got := strings.Join(changes, "; ")
		if !strings.Contains(got, c.calls) || c.calls == "" && got != "" || !strings.Contains(string(said), c.says) {
			t.Errorf("%s of %q: calls %q, want %q; says %q, want %q", c.run, c.back, got, c.calls, said, c.says)
		}
	}
}

func scriptPath(t *testing.T, name string) string {
	t.Helper()
	path, err := filepath.Abs("../../../hack/cluster/" + name)
	must.OK(t, err)
	return path
}

// runWithLoops runs a script in an empty folder. The script may attach loop devices. It may also mount file systems,
// for which it has its own mount namespace. All of this needs root.
func runWithLoops(t *testing.T, script string) {
	t.Helper()
	if err := exec.Command("losetup", "--find").Run(); err != nil || os.Getuid() != 0 {
		if os.Getenv("SHEAF_LOOP") == "required" {
			t.Fatalf("SHEAF_LOOP=required, and there are no loop devices: %v", err)
		}
		t.Skipf("it needs root and loop devices: %v", err)
	}
	cmd := exec.Command("unshare", "--mount", "bash", "-c", script)
	cmd.Dir = t.TempDir()
	cmd.Env = append(os.Environ(), "DISKS="+scriptPath(t, "disks.sh"), "NODES="+scriptPath(t, "disk-nodes.sh"))
	if said, err := cmd.CombinedOutput(); err != nil {
		t.Errorf("%v: %s", err, said)
	}
}

// A link in a node refers to a disk by the number of its loop device. If the kernel has since given this number to
// another file, the kubelet must neither format nor mount the device, nor attach it to a raw block volume.
func TestNodeRefusesDeviceOfAnotherFile(t *testing.T) {
	runWithLoops(t, `set -euo pipefail
die() { echo "$*" >&2; exit 1; }
mkdir -p node/disks/a
truncate -s 1M theirs
device=$(losetup --find --show theirs)
trap 'losetup -d "$device"' EXIT
mount -t tmpfs tmpfs /run
mount -t tmpfs tmpfs /var/log
mkdir /run/node
mount --bind node /run/node
ln -s "$device" link # as /dev/disk/by-id/virtio-a
touch mapped
mount --bind "$device" mapped # as the kubelet's folder of raw block volumes
source "$NODES"
disk_node_guard blkid losetup
echo "${device#/dev/loop}" >node/disks/a/loop

echo "$PWD/image" >node/disks/a/back
code=0
/run/guard/blkid -p -s TYPE link 2>said || code=$?
[ "$code" = 1 ] || die "blkid ends with $code: the kubelet formats a device for 2"
grep -q "$device is $PWD/theirs now, and not the disk a" said || die "it says $(cat said)"
! /run/guard/losetup -f mapped 2>/dev/null || die "losetup has attached a device"
[ "$(wc -l </var/log/disks.log)" = 2 ] || die "the node's log says $(cat /var/log/disks.log)"

echo "$PWD/theirs" >node/disks/a/back
code=0
/run/guard/blkid -p -s TYPE link || code=$?
[ "$code" = 2 ] || die "blkid of the disk itself ends with $code"
/run/guard/losetup --list "$device" >/dev/null
/run/guard/blkid -p theirs || [ $? = 2 ] || die "blkid of a file is refused"

for older in "rm node/disks/a/back" "truncate -s 0 node/disks/a/back"; do # attached by an older disks.sh
  echo "$PWD/image" >node/disks/a/back
  $older
  code=0
  /run/guard/blkid -p -s TYPE link || code=$?
  [ "$code" = 2 ] || die "blkid ends with $code after $older"
done
`)
}

// A kubelet that is killed does not detach the loop devices that it attached to raw block volumes. While these loop
// devices exist, the devices of the disks cannot be detached.
func TestDownDetachesDevicesOfKubelet(t *testing.T) {
	runWithLoops(t, `set -euo pipefail
state=$PWD/state here=$PWD
until_true() { # has no real deadline: the number of tries is limited, so that the test fails and does not hang
  shift 2
  for _ in {1..600}; do ! "$@" || return 0; sleep 0.1; done
  losetup -l >&2
  return 1
}
source "$DISKS"
mkdir -p state/n1/disks/a
truncate -s 1M state/n1/disks/a/image
device=$(losetup --find --show state/n1/disks/a/image)
cleanup() { # detaches what a failed test leaves
  losetup -nl -O NAME,BACK-MAJ:MIN | grep " $(cat state/n1/dev) *$" | cut -d" " -f1 | xargs -r losetup -d
  losetup -j "$PWD/state/n1/disks/a/image" | cut -d: -f1 | xargs -r losetup -d
}
trap 'cleanup || true' EXIT
echo "${device#/dev/loop}" >state/n1/disks/a/loop
unshare --mount bash -c 'set -e
  mkdir dev
  mount -t tmpfs tmpfs dev
  stat -c %Hd:%Ld dev >state/n1/dev
  mknod dev/disk b 7 "$0"
  touch mapped
  mount --bind dev/disk mapped
  losetup -f mapped' "${device#/dev/loop}"
disks_detach
[ -z "$(losetup -j state/n1/disks/a/image)" ]
`)
}
