package host

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/uuid"

	"sheaf.dev/sheaf/client/recordv1"
	"sheaf.dev/sheaf/internal/placement"
	"sheaf.dev/sheaf/internal/storage/vfs"
	"sheaf.dev/sheaf/internal/storage/volume"
	"sheaf.dev/sheaf/internal/test/must"
)

// TestAVolumeThatCannotBeLookedAtIsNamed checks that the error of a failed inspection names the expected volume,
// whatever made the inspection fail.
func TestAVolumeThatCannotBeLookedAtIsNamed(t *testing.T) {
	dir := t.TempDir()
	file := filepath.Join(dir, "file")
	must.OK(t, os.WriteFile(file, nil, 0o600))
	id := uuid.New()
	for _, at := range []string{filepath.Join(file, "below"), file} {
		who := Identity{Name: "s1", Dir: at, FS: vfs.OS{}, Wanted: Wanted{Volume: id}}
		if _, held := who.inspect(); held == nil || !strings.Contains(held.Error(), id.String()) {
			t.Errorf("%s: %v", at, held)
		}
	}
}

// TestEveryErrorOfAVolumeHasAState checks that each volume error leads to a shard state that shows how to remedy it.
func TestEveryErrorOfAVolumeHasAState(t *testing.T) {
	for _, c := range []struct {
		err   error
		state recordv1.ShardState
	}{
		{placement.ErrRolledBack, recordv1.ShardState_SHARD_STATE_DISK_LOST},
		{volume.ErrDamaged, recordv1.ShardState_SHARD_STATE_DISK_LOST},
		{syscall.EIO, recordv1.ShardState_SHARD_STATE_DISK_LOST},
		{placement.ErrNameTaken, recordv1.ShardState_SHARD_STATE_FOREIGN},
		{volume.ErrNotEmpty, recordv1.ShardState_SHARD_STATE_FOREIGN},
		{volume.ErrMount, recordv1.ShardState_SHARD_STATE_FILE_SYSTEM_MISMATCH},
		{errEtcd, recordv1.ShardState_SHARD_STATE_PENDING},
		{hold(recordv1.ShardState_SHARD_STATE_FOREIGN, "held: %w", syscall.EIO), recordv1.ShardState_SHARD_STATE_FOREIGN},
	} {
		if got := classify(fmt.Errorf("opening: %w", c.err)).state; got != c.state {
			t.Errorf("%v: %s, want %s", c.err, got.Word(), c.state.Word())
		}
	}
}

func TestStartupFailsOnlyWhereALoadStandsStill(t *testing.T) {
	var p progress
	now := time.Now()
	for _, step := range []struct {
		after time.Duration
		bytes int64
		still time.Duration
	}{{0, 0, 0}, {time.Minute, 0, time.Minute}, {2 * time.Minute, 5, 0}, {time.Hour, 5, 58 * time.Minute},
		{2 * time.Hour, 6, 0}} {
		if still := p.moved(&recordv1.Load{BytesDone: step.bytes}, now.Add(step.after)); still != step.still {
			t.Errorf("after %v: still for %v, want %v", step.after, still, step.still)
		}
	}
}
