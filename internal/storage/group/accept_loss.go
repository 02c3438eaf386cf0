package group

import (
	"context"
	"errors"
	"fmt"

	"sheaf.dev/sheaf/internal/storage/group/format"
	"sheaf.dev/sheaf/internal/storage/group/fsck"
)

// AcceptLoss declares the damage of a group lost, and returns the log that replaces this one: this log is closed,
// fsck.RepairDir repairs its folder, and the folder is loaded again. If entries were lost, new indexes jump ahead by
// 2^32 (rule 8). No Raft node may use the log meanwhile; the next one starts from InitialState of the returned log.
// Open scans end. It is allowed only for a group with one voter: in other groups, peers supply the lost data.
//
// If no damage is known, or an error occurs before the log is closed, AcceptLoss returns this log, and nothing has
// changed. After a later error, the group is loaded in its state at that time; the log is nil if it cannot be loaded.
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
	if err := l.Sync(); err != nil { // after Close, entries missing in the file would be a torn tail
		return fail(l, err)
	}
	if err := l.Close(true); err != nil {
		l.logger.Warn("closing to accept a loss", "group", l.opts.Identity.Name, "error", err)
	}
	report, err := fsck.RepairDir(ctx, l.folder.fs, l.folder.dir, nil)
	opts := l.opts
	opts.Durable = nil // it belongs to the start of the process
	// a caller who left must not leave the group out of service
	next, _, loadErr := Load(context.WithoutCancel(ctx), opts, nil)
	if err := errors.Join(err, loadErr); err != nil {
		return fail(next, err)
	}
	return next, report.Before.Damages, nil
}
