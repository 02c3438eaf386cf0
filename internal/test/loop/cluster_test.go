package loop

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// The disks of the test cluster (hack/cluster/disks.sh) are known by numbers of loop devices. A number that belongs to
// another image by now is neither detached nor used in any other way. losetup and the nodes are played, so that the
// test needs no root.
func TestTheClusterUsesNoNumberOfSomebodyElse(t *testing.T) {
	const script = `set -euo pipefail
state=$PWD/state here=$PWD
die() { echo "cluster: $*" >&2; exit 1; }
pid() { [ "$1" = control ] && echo 1; } # no node runs
inside() { :; }
losetup() { # the device is what the file back says
  echo "losetup $*" >>calls
  case "$1" in -nO) cat back ;; -nl) echo "/dev/loop7 $(cat back)" ;; --find | --direct-io=on) return 1 ;; esac
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
	disks, err := filepath.Abs("../../../hack/cluster/disks.sh")
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		run, back string
		calls     string // the call that is made; empty: none that changes a device
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
		// A slow disk of another clone's cluster has the same file name. Its device has another number.
		{"echo 8 >state/n1/disks/a/loop; echo loops: $(disks_loops). >&2", "/sheaf-slowdisk", "", "loops: ."},
	} {
		dir := t.TempDir()
		cmd := exec.Command("bash", "-c", script)
		cmd.Dir, cmd.Env = dir, append(os.Environ(), "DISKS="+disks, "BACK="+c.back, "RUN="+c.run)
		said, err := cmd.CombinedOutput()
		if err != nil && !strings.HasPrefix(c.run, "disk_zero") && !strings.HasPrefix(c.run, "disk_grow") {
			t.Errorf("%s of %q: %v: %s", c.run, c.back, err, said)
		}
		text, err := os.ReadFile(filepath.Join(dir, "calls"))
		if err != nil {
			t.Fatal(err)
		}
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
