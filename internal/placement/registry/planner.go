package registry

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/client/v3/concurrency"

	"sheaf.dev/sheaf/internal/placement"
)

// plannerLeaseSeconds is short, because after a crash of the planner new groups have to wait until another planner is
// elected.
const plannerLeaseSeconds = 3

// RunPlanner plans the store until ctx is done. For each view, it creates the missing groups of Hash routing and
// writes the targets that Plan changes. Several planners may run at the same time. They elect one of them by means of
// a lease, and writes of a planner that has lost this lease have no effect. RunPlanner continues after outages of
// etcd. It returns an error if the policy is invalid, and nil when ctx is done.
func RunPlanner(ctx context.Context, store *Store, policy placement.Policy, logger *slog.Logger) error {
	if err := policy.Validate(); err != nil {
		return err
	}
	c := &candidate{store: store, policy: policy, logger: logger}
	for tries := retries(); ctx.Err() == nil; tries.Wait(ctx) {
		began := time.Now()
		if err := c.term(ctx); ctx.Err() == nil {
			logger.Warn("planner lost its term, tries again", "error", err)
		}
		if time.Since(began) > plannerLeaseSeconds*time.Second {
			tries.Again()
		}
	}
	return nil
}

// candidate is a planner that takes part in the election.
type candidate struct {
	store    *Store
	policy   placement.Policy
	logger   *slog.Logger
	elected  clientv3.Cmp      // condition that this planner is still elected
	unplaced map[string]string // why groups could not be placed in the previous view of this term; by group
}

// term waits until this planner is elected, and then plans until its term of office ends.
func (c *candidate) term(ctx context.Context) error {
	s := c.store
	lease, err := s.client.Grant(ctx, plannerLeaseSeconds)
	if err != nil {
		return fmt.Errorf("planner's lease: %w", err)
	}
	session, err := concurrency.NewSession(s.client, concurrency.WithLease(lease.ID), concurrency.WithContext(ctx))
	if err != nil {
		return fmt.Errorf("planner's session: %w", err)
	}
	defer s.revoke(session.Lease())
	defer session.Orphan()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	go func() {
		select {
		case <-session.Done():
			cancel()
		case <-ctx.Done():
		}
	}()
	election := concurrency.NewElection(session, s.prefix+electionKey)
	if err := election.Campaign(ctx, ""); err != nil {
		return fmt.Errorf("planner's election: %w", err)
	}
	c.elected, c.unplaced = clientv3.Compare(clientv3.CreateRevision(election.Key()), "=", election.Rev()), nil
	c.logger.Debug("planner elected")
	for view := range s.Watch(ctx) {
		if err := c.act(ctx, view); err != nil {
			return err
		}
	}
	return errors.New("the lease was lost")
}

// act creates the groups that the view lacks. If no group is missing, it makes a plan for the view and writes the
// changed targets.
func (c *candidate) act(ctx context.Context, view placement.View) error {
	if held := view.Held(); held != "" {
		c.logger.Warn("nothing is planned", "reason", held)
		return nil
	}
	if missing := missingGroups(view); len(missing) > 0 {
		c.logger.Info("creating groups", "groups", len(missing))
		// The next view will contain these groups.
		return c.store.createGroups(ctx, view, missing, c.elected, c.store.notFrozen())
	}
	targets, unplaced := placement.Plan(view, c.policy)
	c.logUnplaced(unplaced)
	c.unplaced = unplaced
	if len(targets) == 0 {
		return nil
	}
	c.logger.Info("setting targets", "targets", len(targets), "epoch", view.Epoch)
	late, err := c.store.setTargets(ctx, targets, pairsOf(view), c.elected, c.store.notFrozen())
	if len(late) > 0 {
		c.logger.Debug("groups changed meanwhile", "groups", len(late)) // the next view will show what has changed
	}
	return err
}

// logUnplaced logs the groups that cannot be placed now, with one line for each reason. It leaves out a group whose
// reason is the same as in the previous view.
func (c *candidate) logUnplaced(now map[string]string) {
	groups := map[string][]string{}
	for _, group := range slices.Sorted(maps.Keys(now)) {
		if reason := now[group]; c.unplaced[group] != reason {
			groups[reason] = append(groups[reason], group)
		}
	}
	for _, reason := range slices.Sorted(maps.Keys(groups)) {
		names := groups[reason]
		c.logger.Warn("groups cannot be placed", "groups", len(names), "first", names[0], "reason", reason)
	}
}

// missingGroups lists the groups of Hash routing that do not exist yet and are to be created. A group whose key is
// invalid counts as existing. In a store that was restored from an archive, no group is ever created here: its keys are
// written from the list of the source, and a key that is missing later was lost by etcd.
func missingGroups(view placement.View) []placement.Group {
	if view.Meta.Restore != nil {
		return nil
	}
	var missing []placement.Group
	for n := range view.Meta.Routing.Groups {
		name := placement.GroupName(n)
		if _, ok := view.Groups[name]; !ok && !view.GroupUnknown(name) {
			missing = append(missing, placement.NewGroup(view.Meta.Routing, name, n))
		}
	}
	return missing
}
