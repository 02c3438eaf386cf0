package main

import (
	"os"
	"strings"
	"syscall"
	"testing"

	"github.com/google/uuid"

	"sheaf.dev/sheaf/client/recordv1"
	"sheaf.dev/sheaf/internal/storage/vfs"
	"sheaf.dev/sheaf/internal/storage/volume"
)

// While a shard runs with a real etcd, its folder is copied. Later, a shard is started on this image, at the same
// address. It reports that the folder is outdated, and serves nothing. When the shard is started on the current folder,
// it serves again.
func TestAnImageOfARunningShardIsNotServed(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	a := c.shards["a"]
	right, id := c.dirs["a"], statusOf(t, a.http).Shard.GetVolumeUuid()
	step := func() volume.Step {
		sb, _, err := volume.VerifySuperblock(vfs.OS{}, right)
		must(t, err)
		return sb.Step
	}
	image := t.TempDir()
	must(t, a.cmd.Process.Signal(syscall.SIGSTOP)) // so that the folder does not change while it is copied
	must(t, os.CopyFS(image, os.DirFS(right)))
	must(t, a.cmd.Process.Signal(syscall.SIGCONT))
	before := step()
	c.putAll()
	// Wait until the shard has taken two more steps. It takes the second one only after etcd has recorded the first, so
	// etcd then shows that the image is outdated.
	eventually(t, func() bool {
		sheaf(t, strings.NewReader("r1"), "put", clusterIDs[0], "--server", c.gateway.server)
		sheaf(t, strings.NewReader("r2"), "put", clusterIDs[1], "--server", c.gateway.server)
		sheaf(t, strings.NewReader("r3"), "put", clusterIDs[2], "--server", c.gateway.server)
		sheaf(t, strings.NewReader("r4"), "put", clusterIDs[3], "--server", c.gateway.server)
		return step().Number >= before.Number+2
	})
	a.kill()
	c.dirs["a"] = image
	c.startShard("a", "--expect-volume", id)
	eventually(t, func() bool { return c.shards["a"].alive() })
	eventually(t, func() bool {
		st := statusOf(t, c.shards["a"].http)
		return st.Shard.GetState() == recordv1.ShardState_SHARD_STATE_DISK_LOST &&
			strings.Contains(st.Shard.GetMessage(), "earlier state of itself")
	})
	if sb, _, err := volume.VerifySuperblock(vfs.OS{}, image); err != nil || sb.Volume != uuid.MustParse(id) {
		t.Errorf("the image is volume %s now, %v", sb.Volume, err)
	}
	c.shards["a"].kill()
	c.dirs["a"] = right
	c.startShard("a", "--expect-volume", id)
	c.checkRecords("the right folder is back", true)
}
