package shard

import (
	"context"
	"errors"
	"fmt"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"sheaf.dev/sheaf/client/call/backoff"
	"sheaf.dev/sheaf/internal/consensus/peer"
	"sheaf.dev/sheaf/internal/shard/member"
	"sheaf.dev/sheaf/internal/shard/problems"
	"sheaf.dev/sheaf/internal/shard/replicas"
)

// The first replica of a restored group is its founder. It is installed from the source of the restore, which serves
// the groups of an archive in the same way as a member (docs/adr/0061-restores-are-installs.md).

// refusedPauses are the pauses after the source has answered that it cannot restore a group. The archive may be
// repaired meanwhile, or another source may take the place of this one. Each attempt reads the group again.
var refusedPauses = backoff.Doubling{First: 10 * time.Second, Most: 10 * time.Minute}

// unreadPauses are the pauses after the source has answered that it cannot read an object of a group at the moment,
// although the bucket answers. No pause is longer than a minute, because the bucket may refuse objects of many groups,
// and let them be read again at any time.
var unreadPauses = backoff.Doubling{First: 10 * time.Second, Most: 40 * time.Second}

// failedPauses are the pauses after an attempt that failed on this shard, for example because its disk is full.
var failedPauses = backoff.Doubling{First: time.Second, Most: time.Minute}

// unreadTries is the number of attempts after which a group that the source cannot read lets other groups go first.
// When the group has its turn again, it has a single attempt, because each one keeps the source from other groups.
const unreadTries = 5

// restoreSource is the subject of problems with the source of a restore that concern all groups.
const restoreSource = "the source of the restore"

// errNotFounding means that this shard must not install a group from the source any more.
var errNotFounding = errors.New("another shard installs the group, or has it")

// source returns the address of the source of the restore.
func (i *installer) source() (string, error) {
	if r := i.replicas.View().Meta.Restore; r != nil && r.Source != "" {
		return r.Source, nil
	}
	return "", errors.New("etcd says that the group is restored, and key meta names no source: set restore.source " +
		"there, or give up the restore of the group; it is not created empty")
}

// found installs a founder from the source of the restore, and retries until it succeeds. It returns false if this
// shard must not install the group any more, or if ctx is done.
func (i *installer) found(ctx context.Context, g *replicas.Replica) bool {
	what := problems.Restoring + g.Name
	defer i.problems.Note(what, nil)
	i.founding.Add(1)
	defer func() {
		if i.founding.Add(-1) == 0 {
			i.problems.Note(restoreSource, nil)
		}
	}()
	attempts := unreadTries
	for failures := 0; ; failures++ {
		var from string
		err := i.withSpace(ctx, func() (err error) {
			from, err = i.inTurn(ctx, g, attempts)
			return err
		})
		switch {
		case err == nil:
			return true
		case ctx.Err() != nil, errors.Is(err, errNotFounding):
			return false
		}
		pauses := failedPauses
		switch {
		case isRefused(err):
			pauses = refusedPauses
		case isUnread(err):
			pauses, attempts = unreadPauses, 1
		}
		err = fmt.Errorf("it is tried again later: %w", err)
		i.problems.Note(what, err)
		g.NoteDelay(err)
		if !i.waitForAnother(ctx, from, pauses.After(failures)) {
			return false
		}
	}
}

// inTurn waits until few other founders of this shard are being installed, and then installs this one. Until the source
// is known to work, it is asked for one founder at a time: callers need the first group soon, and a source that is away
// is not asked by many. The founder keeps its turn while the source is busy or has a problem that concerns all groups.
// If the source cannot read the group, the founder loses its turn after the given number of attempts, because other
// groups may be readable. inTurn returns the address of the source.
func (i *installer) inTurn(ctx context.Context, g *replicas.Replica, attempts int) (from string, err error) {
	for i.isBehind(g) {
		if !backoff.Sleep(ctx, firstPause) {
			return "", ctx.Err()
		}
	}
	select {
	case i.founders <- struct{}{}:
		defer func() {
			i.tried.Store(g.UUID, true)
			<-i.founders
		}()
	case <-ctx.Done():
		return "", ctx.Err()
	}
	turn := founderTurn{installer: i}
	defer turn.end()
	for tries, unread := (&backoff.Tries{Doubling: installPauses}), 0; ; {
		if !turn.begin(ctx) {
			return from, ctx.Err()
		}
		if !i.isFounding(g) {
			return from, errNotFounding
		}
		if from, err = i.source(); err != nil {
			return from, err
		}
		err = i.install(ctx, g, i.peers.hub.Source(from, g.State().RaftID), nil)
		problem := problemOfSource(from, err)
		if ctx.Err() == nil {
			i.problems.Note(restoreSource, problem)
		}
		switch {
		case err == nil:
			i.works.Store(true)
		case problem != nil:
			i.works.Store(false)
		case isUnread(err):
			unread++
		}
		again := problem != nil || errors.Is(err, peer.ErrBusy) || isUnread(err) && unread < attempts
		if !again {
			return from, err
		}
		if !tries.Wait(ctx) {
			return from, ctx.Err()
		}
	}
}

// founderTurn is the right to ask the source. Only one goroutine uses it.
type founderTurn struct {
	installer *installer
	alone     bool
}

// begin waits until the source is known to work, or until no other founder waits for that. It returns false if ctx is
// done first.
func (t *founderTurn) begin(ctx context.Context) bool {
	i := t.installer
	if t.alone || i.works.Load() {
		return true
	}
	select {
	case i.alone <- struct{}{}:
		t.alone = true
	case <-ctx.Done():
		return false
	}
	if i.works.Load() {
		t.end()
	}
	return true
}

func (t *founderTurn) end() {
	if t.alone {
		t.alone = false
		<-t.installer.alone
	}
}

// firstPause is the pause between two looks at whether groups that come first have had their turn.
const firstPause = time.Second

// isBehind reports whether groups that come before this one, according to Restore.First, wait for their first turn on
// this shard. A group that had its turn and was not installed does not hold up others, because only the archive knows
// when it can be read.
func (i *installer) isBehind(g *replicas.Replica) bool {
	view := i.replicas.View()
	if view.Meta.Restore == nil {
		return false
	}
	for _, name := range view.Meta.Restore.First {
		if name == g.Name {
			return false
		}
		first := i.replicas.Find(view.Groups[name].UUID)
		if first == nil || first.State().Phase != member.Joining || !i.isFounding(first) {
			continue
		}
		if _, tried := i.tried.Load(first.UUID); !tried {
			return true
		}
	}
	return false
}

// isFounding reports whether this shard must install the group from the source of the restore, according to etcd.
func (i *installer) isFounding(g *replicas.Replica) bool {
	state, ok := i.replicas.GroupOf(g)
	return ok && state.Restoring && len(state.Members) == 0 && len(state.Target) > 0 && state.Target[0] == i.name
}

// isRefused reports whether the source has answered that it cannot restore the group.
func isRefused(err error) bool {
	return errors.Is(err, peer.ErrNotHere) || status.Code(err) == codes.DataLoss
}

// isUnread reports whether the source has answered that it cannot read an object of the group at the moment, although
// the bucket answers.
func isUnread(err error) bool { return status.Code(err) == codes.Aborted }

// problemOfSource returns the problem of the source, given the error of a call to it. It returns nil if the error
// concerns only the group, or this shard.
func problemOfSource(from string, err error) error {
	var answered interface{ GRPCStatus() *status.Status }
	if !errors.As(err, &answered) {
		return nil
	}
	st, advice := answered.GRPCStatus(), ""
	switch st.Code() {
	case codes.DataLoss, codes.InvalidArgument, codes.Aborted:
		return nil
	case codes.FailedPrecondition, codes.Unimplemented, codes.PermissionDenied, codes.Unauthenticated:
		advice = "; key meta in etcd names the address of the source, and another process has it, or it is the source of " +
			"another restore: start `sheaf-archive source` for this store, or correct restore.source"
	}
	return fmt.Errorf("%s answers %s: %s%s", from, st.Code(), st.Message(), advice)
}

// waitForAnother waits for a pause, but only until etcd names another source than the given one. It returns false if
// ctx is done first.
func (i *installer) waitForAnother(ctx context.Context, source string, pause time.Duration) bool {
	for end := time.Now().Add(pause); time.Now().Before(end); {
		if !backoff.Sleep(ctx, min(time.Second, time.Until(end))) {
			return false
		}
		if now, _ := i.source(); now != source {
			return true
		}
	}
	return true
}
