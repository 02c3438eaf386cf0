package group

import (
	"context"
	"errors"
	"fmt"

	"sheaf.dev/sheaf/internal/storage/group/format"
	"sheaf.dev/sheaf/internal/storage/group/fsck"
)

// AcceptLoss declares the damaged data of a group lost, and returns the log that replaces this one. It closes this
// log, repairs the folder with fsck.RepairDir, and loads the folder again. If entries were lost, the next index jumps
// ahead by 2^32 (rule 8). No Raft node may use the log during the call. The next node must start from InitialState of
// the returned log. Open scans fail. AcceptLoss is allowed only for a group with one voter, because in other groups
// peers can supply the lost data.
//
// If no damage is known, or if an error occurs before the log is closed, AcceptLoss changes nothing and returns this
// log. If an error occurs later, AcceptLoss loads the group in the state that it then has. The returned log is nil if
// the group cannot be loaded.
func (l *Log) AcceptLoss(ctx context.Context) (*Log, []format.Damage, error) {
	fail := func(next *Log, err error) (*Log, []format.Damage, error) {
		return next, nil, fmt.Errorf("group %s: accept loss: %w", l.opts.Identity.Name, err)
	}
	if !l.Damaged() {
		return l, nil, l.usable()
	}
	l.state.mu.RLock()
	voters := len(format.VotersOf(l.state.conf))
	l.state.mu.RUnlock()
	if voters > 1 {
		return fail(l, fmt.Errorf("it has %d voters, and what is lost here comes from the others", voters))
	}
	// Without this sync, the next load would mistake an entry that never reached the file for a torn tail.
	if err := l.Sync(); err != nil {
		return fail(l, err)
	}
	if err := l.Close(true); err != nil {
		l.folder.logger.Warn("closing to accept a loss", "error", err)
	}
	report, err := fsck.RepairDir(ctx, l.folder.fs, l.folder.dir, nil)
	opts := l.opts
	opts.Durable = nil // Durable covers only data that was written before this process started
	// The load does not use the caller's context, because the group would remain out of service if that context were
	// canceled.
	next, _, loadErr := Load(context.WithoutCancel(ctx), opts, nil)
	if err := errors.Join(err, loadErr); err != nil {
		return fail(next, err)
	}
	return next, report.Before.Damages, nil
}
