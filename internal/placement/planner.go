package placement

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
)

// plannerLeaseSeconds is short: after a crash new groups wait for the next planner.
const plannerLeaseSeconds = 3

// RunPlanner creates the groups of Hash routing and writes the targets that Plan wants changed, on each view, until
// ctx ends. Several may run: one is elected by a lease, and its writes are void once it is not any more. It goes on
// over outages of etcd. The error is that of a policy that cannot be; nil when ctx has ended.
func RunPlanner(ctx context.Context, store *Store, policy Policy, logger *slog.Logger) error {
	if err := policy.Validate(); err != nil {
		return err
	}
	for tries := retries(); ctx.Err() == nil; tries.Wait(ctx) {
		began := time.Now()
		if err := store.plannerTerm(ctx, policy, logger); ctx.Err() == nil {
			logger.Warn("planner lost its term, tries again", "error", err)
		}
		if time.Since(began) > plannerLeaseSeconds*time.Second {
			tries.Again()
		}
	}
	return nil
}

// plannerTerm waits to be elected, then plans until the term ends.
func (s *Store) plannerTerm(ctx context.Context, policy Policy, logger *slog.Logger) error {
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
	elected := clientv3.Compare(clientv3.CreateRevision(election.Key()), "=", election.Rev())
	logger.Debug("planner elected")
	unplaced := map[string]string{}
	for view := range s.Watch(ctx) {
		if err := s.planView(ctx, view, policy, elected, unplaced, logger); err != nil {
			return err
		}
	}
	return errors.New("the lease was lost")
}

// planView acts on one view. unplaced holds what was logged before.
func (s *Store) planView(ctx context.Context, view View, policy Policy, elected clientv3.Cmp, unplaced map[string]string,
	logger *slog.Logger,
) error {
	if held := view.Held(); held != "" {
		logger.Warn("nothing is planned", "reason", held)
		return nil
	}
	if missing := missingGroups(view); len(missing) > 0 {
		logger.Info("creating groups", "groups", len(missing))
		return s.createGroups(ctx, view, missing, elected, s.notFrozen()) // the next view holds them
	}
	targets, now := Plan(view, policy)
	logUnplaced(unplaced, now, logger)
	clear(unplaced)
	maps.Copy(unplaced, now)
	if len(targets) == 0 {
		return nil
	}
	logger.Info("setting targets", "targets", len(targets), "epoch", view.Epoch)
	late, err := s.setTargets(ctx, targets, view.pair, elected, s.notFrozen())
	if len(late) > 0 {
		logger.Debug("groups changed meanwhile", "groups", len(late)) // the next view holds them
	}
	return err
}

// logUnplaced says once for each reason which groups cannot be placed now and were not known to before.
func logUnplaced(before, now map[string]string, logger *slog.Logger) {
	groups := map[string][]string{}
	for _, group := range slices.Sorted(maps.Keys(now)) {
		if reason := now[group]; before[group] != reason {
			groups[reason] = append(groups[reason], group)
		}
	}
	for _, reason := range slices.Sorted(maps.Keys(groups)) {
		names := groups[reason]
		logger.Warn("groups cannot be placed", "groups", len(names), "first", names[0], "reason", reason)
	}
}

// missingGroups lists the groups of Hash routing that are not there.
func missingGroups(view View) []Group {
	var missing []Group
	for n := range view.Meta.Routing.Groups {
		name := GroupName(n)
		if _, ok := view.Groups[name]; !ok {
			missing = append(missing, NewGroup(view.Meta.Routing, name, n))
		}
	}
	return missing
}
