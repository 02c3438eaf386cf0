package group

import (
	"context"
	"errors"
	"fmt"

	"sheaf.dev/sheaf/internal/storage/group/format"
	"sheaf.dev/sheaf/internal/storage/group/fsck"
)

// AcceptLoss declares the damage of a group lost, and gives the log that takes the place of this one: this one is
// closed, its folder is repaired by fsck.RepairDir, and loaded anew. Where entries were lost, new indexes jump ahead by
// 2^32 (rule 8). No Raft node may use the log meanwhile; the next one starts from InitialState of the log that is
// given. Open scans end. Only a group with one voter may: what others lost comes from their peers.
//
// Where no damage is known, or an error came before the log was closed, this log is given, and nothing has changed.
// With a later error, the group is loaded as it is then; the log is nil where it cannot be.
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
	if err := l.Sync(); err != nil { // after Close, what the file lacks would be a torn tail
		return fail(l, err)
	}
	if err := l.Close(true); err != nil {
		l.logger.Warn("closing to accept a loss", "group", l.opts.Identity.Name, "error", err)
	}
	report, err := fsck.RepairDir(ctx, l.folder.fs, l.folder.dir, nil)
	opts := l.opts
	opts.Durable = nil // of the start of the process
	// a caller who left must not leave the group out of service
	next, _, loadErr := Load(context.WithoutCancel(ctx), opts, nil)
	if err := errors.Join(err, loadErr); err != nil {
		return fail(next, err)
	}
	return next, report.Before.Damages, nil
}
