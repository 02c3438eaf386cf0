package gateway

import (
	"context"
	"errors"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/google/uuid"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	peerv1 "sheaf.dev/sheaf/api/sheaf/peer/v1"
	"sheaf.dev/sheaf/client/batchv1"
	"sheaf.dev/sheaf/client/call/backoff"
	"sheaf.dev/sheaf/client/call/reason"
	"sheaf.dev/sheaf/client/call/routing"
	"sheaf.dev/sheaf/internal/base/parallel"
	"sheaf.dev/sheaf/internal/placement"
	"sheaf.dev/sheaf/internal/placement/registry"
	"sheaf.dev/sheaf/internal/security/access"
	"sheaf.dev/sheaf/internal/security/access/guard"
)

// viewServer implements ViewService.
type viewServer struct {
	batchv1.UnimplementedViewServiceServer
	g *Gateway
}

const (
	viewExpiresDefault = 24 * time.Hour
	viewExpiresMax     = 30 * 24 * time.Hour
	// openingTime is the time after which a view that is still being opened is removed: its gateway has died.
	openingTime = 5 * time.Minute
	// holdTime limits the time for which a gateway waits for one shard to hold a view.
	holdTime = 10 * time.Second
	// expireEvery is the interval at which a gateway removes views that have expired.
	expireEvery = 30 * time.Second
)

// expiresIn returns the time to live that a request names.
func expiresIn(seconds int64) (time.Duration, error) {
	if seconds == 0 {
		return viewExpiresDefault, nil
	}
	if most := int64(viewExpiresMax / time.Second); seconds < 1 || seconds > most {
		return 0, invalid("expires_seconds", "is %d: give 1 to %d (30 days), or 0 for 24 hours", seconds, most)
	}
	return time.Duration(seconds) * time.Second, nil
}

// OpenView implements ViewService.
func (s *viewServer) OpenView(ctx context.Context, in *batchv1.OpenViewRequest) (*batchv1.OpenViewResponse, error) {
	ctx, cancel := s.g.bounded(ctx)
	defer cancel()
	lasts, err := expiresIn(in.GetExpiresSeconds())
	if err != nil {
		return nil, err
	}
	for _, name := range in.GetGroups() {
		if err := access.May(ctx, access.Scan, name); err != nil {
			return nil, err
		}
	}
	if len(in.GetGroups()) == 0 {
		if err := access.May(ctx, access.Scan, ""); err != nil {
			return nil, err
		}
	}
	v := placement.DataView{ID: uuid.New(), Opened: time.Now().UTC(), Expires: time.Now().Add(openingTime).UTC()}
	if call := access.CallOf(ctx); call != nil {
		v.By = call.Caller().String()
	}
	t, err := s.g.router.wait(ctx)
	if err != nil {
		return nil, err
	}
	if v.Groups, err = s.groups(ctx, t, in.GetGroups()); err != nil {
		return nil, err
	}
	defer func() { viewed(ctx, "open", &v, err) }()
	if v, err = s.put(ctx, v); err != nil {
		return nil, err
	}
	if v, err = s.open(ctx, v, lasts); err != nil {
		s.drop(ctx, &v)
		return nil, err
	}
	return &batchv1.OpenViewResponse{View: viewMessage(&v)}, nil
}

// viewed records in the audit log what the caller has done with a view.
func viewed(ctx context.Context, action string, v *placement.DataView, err error) {
	call := access.CallOf(ctx)
	if call == nil {
		return
	}
	groups := make([]string, 0, len(v.Groups))
	for _, of := range v.Groups {
		groups = append(groups, of.Name)
	}
	call.Viewed(access.Viewed{Action: action, View: v.ID.String(), Groups: groups, Code: status.Code(err)})
}

// groups returns the groups of a new view, sorted by name. Without names, these are all groups of the store that exist.
func (s *viewServer) groups(ctx context.Context, t *table, names []string) (out []placement.DataViewGroup, err error) {
	if len(names) == 0 {
		if err := t.listed(); err != nil {
			return nil, err
		}
		for _, r := range t.groups() {
			if len(t.view.Groups[r.group].Members) > 0 {
				names = append(names, r.group)
			} else if r.holds {
				return nil, r.noShardError()
			}
		}
	}
	names = slices.Sorted(slices.Values(names))
	for i, name := range names {
		if i > 0 && names[i-1] == name {
			return nil, invalid("groups", "names group %s twice", name)
		}
		t, err := s.g.tableWith(ctx, name)
		if err != nil {
			return nil, err
		}
		known := t.view.Groups[name]
		if len(known.Members) == 0 {
			return nil, t.named[name].noShardError()
		}
		out = append(out, placement.DataViewGroup{Name: name, UUID: known.UUID})
	}
	if len(out) == 0 {
		return nil, fail(codes.NotFound, reason.GroupNotFound, "the store has no groups yet")
	}
	return out, nil
}

// put writes a view to etcd. Its errors are for callers.
func (s *viewServer) put(ctx context.Context, v placement.DataView) (placement.DataView, error) {
	ctx, cancel := etcdTime(ctx)
	defer cancel()
	next, err := s.g.cfg.Store.PutDataView(ctx, v)
	switch {
	case err == nil:
		return next, nil
	case errors.Is(err, registry.ErrTooManyViews), errors.Is(err, registry.ErrViewTooLarge):
		return v, fail(codes.ResourceExhausted, reason.GroupLimit, "%v", err)
	case errors.Is(err, placement.ErrChanged) && v.Revision > 0:
		return v, fail(codes.Unavailable, reason.EtcdUnavailable, "view %s was changed meanwhile: try again", v.ID)
	}
	return v, etcdFailed(err, false, "view %s cannot be written", v.ID)
}

// drop removes a view that could not be opened. If that fails, the view is removed later, because it expires.
func (s *viewServer) drop(ctx context.Context, v *placement.DataView) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), createTimeout)
	defer cancel()
	if err := s.g.cfg.Store.DeleteDataView(ctx, v.ID, v.Revision); err != nil {
		s.g.cfg.Logger.Warn("a view that could not be opened remains for now", "view", v.ID, "expires", v.Expires,
			"error", err)
	}
}

// open makes all copies hold what the view needs, and then chooses its indexes. The indexes are chosen last, because a
// copy that begins to hold history answers only for indexes that it has not applied before.
func (s *viewServer) open(ctx context.Context, v placement.DataView, lasts time.Duration) (placement.DataView, error) {
	if err := s.holdAll(ctx, &v); err != nil {
		return v, err
	}
	errs := make([]error, len(v.Groups))
	next := v
	next.Groups = slices.Clone(v.Groups)
	parallel.Times(len(v.Groups), fanOut, func(i int) {
		of := &next.Groups[i]
		call := s.g.repeated(routing.Effect{})
		errs[i] = call.named(ctx, of.Name, func(ctx context.Context, at place) (bool, error) {
			held, err := s.hold(ctx, at.shard, &v, []string{of.Name}, true)
			if err != nil {
				return true, err
			}
			of.Index, of.Chosen = held[0].GetIndex(), true
			return true, nil
		})
	})
	for _, err := range errs {
		if err != nil {
			return v, err
		}
	}
	next.Expires = time.Now().Add(lasts).UTC()
	put, err := s.put(ctx, next)
	if err != nil {
		return v, err
	}
	return put, nil
}

// hold asks a shard to hold some groups of a view. The error of a group becomes an error of the call.
func (s *viewServer) hold(ctx context.Context, at *shard, v *placement.DataView, groups []string,
	choose bool) ([]*peerv1.HeldGroup, error) {
	// This is a call of the gateway itself, which has decided already what its caller may do.
	ctx, cancel := context.WithTimeout(guard.AsProcess(access.WithCall(ctx, nil)), holdTime)
	defer cancel()
	out, err := peerv1.NewViewCopyServiceClient(at.conn()).HoldView(ctx, &peerv1.HoldViewRequest{View: v.ID.String(),
		Groups: groups, Choose: choose})
	if status.Code(err) == codes.Unimplemented {
		return nil, fail(codes.Unavailable, reason.NotServing, "shard %s runs a version of Sheaf without views: upgrade it",
			at.name)
	}
	if err != nil {
		return nil, unreachable(err, at.name)
	}
	if len(out.GetGroups()) != len(groups) {
		return nil, status.Errorf(codes.Internal, "shard %s has answered for %d of %d groups", at.name,
			len(out.GetGroups()), len(groups))
	}
	if choose && out.GetGroups()[0].GetError() != "" {
		return nil, fail(codes.Unavailable, reason.NoLeader, "%s", out.GetGroups()[0].GetError())
	}
	return out.GetGroups(), nil
}

// holdAll makes the copies of all groups hold what the view needs. A majority of the copies of each group must do so,
// because a view would otherwise end with a single disk. A copy that does not answer can serve the view only after it
// was installed again.
func (s *viewServer) holdAll(ctx context.Context, v *placement.DataView) error {
	t := s.g.router.table.Load()
	asked := map[*shard][]string{}
	for _, of := range v.Groups {
		if r := t.named[of.Name]; r != nil {
			for _, m := range r.members {
				asked[m] = append(asked[m], of.Name)
			}
		}
	}
	var mu sync.Mutex
	held, why := map[string]int{}, map[string]string{}
	shards := make([]*shard, 0, len(asked))
	for at := range asked {
		shards = append(shards, at)
	}
	parallel.Times(len(shards), fanOut, func(i int) {
		names := asked[shards[i]]
		for part := range slices.Chunk(names, 1000) {
			groups, err := s.hold(ctx, shards[i], v, part, false)
			mu.Lock()
			for n, name := range part {
				switch {
				case err != nil:
					why[name] += "; " + err.Error()
				case groups[n].GetError() != "":
					why[name] += "; " + groups[n].GetError()
				default:
					held[name]++
				}
			}
			mu.Unlock()
		}
	})
	for _, of := range v.Groups {
		if r := t.named[of.Name]; r == nil || 2*held[of.Name] <= r.votes {
			return fail(codes.Unavailable, reason.NoLeader, "no view was opened, because only %d copies of group %s keep what "+
				"it needs: %s", held[of.Name], of.Name, strings.TrimPrefix(why[of.Name], "; "))
		}
	}
	return nil
}

// owned reads a view all groups of which the caller may scan.
func (s *viewServer) owned(ctx context.Context, id string) (placement.DataView, error) {
	v, err := s.g.viewNamed(ctx, id)
	if err != nil {
		return v, err
	}
	for _, of := range v.Groups {
		if err := access.May(ctx, access.Scan, of.Name); err != nil {
			return v, err
		}
	}
	return v, nil
}

// RenewView implements ViewService.
func (s *viewServer) RenewView(ctx context.Context, in *batchv1.RenewViewRequest) (*batchv1.RenewViewResponse, error) {
	lasts, err := expiresIn(in.GetExpiresSeconds())
	if err != nil {
		return nil, err
	}
	v, err := s.owned(ctx, in.GetView())
	if err != nil {
		return nil, err
	}
	if !v.IsOpen() {
		return nil, viewExpired(in.GetView())
	}
	v.Expires = time.Now().Add(lasts).UTC()
	v, err = s.put(ctx, v)
	viewed(ctx, "renew", &v, err)
	if err != nil {
		return nil, err
	}
	return &batchv1.RenewViewResponse{View: viewMessage(&v)}, nil
}

// ListViews implements ViewService.
func (s *viewServer) ListViews(ctx context.Context, _ *batchv1.ListViewsRequest) (*batchv1.ListViewsResponse, error) {
	within, cancel := etcdTime(ctx)
	defer cancel()
	all, err := s.g.cfg.Store.DataViews(within)
	if err != nil {
		return nil, etcdFailed(err, false, "views cannot be listed")
	}
	call := access.CallOf(ctx)
	out := &batchv1.ListViewsResponse{}
	slices.SortFunc(all.List, func(a, b placement.DataView) int { return a.Opened.Compare(b.Opened) })
	for i := range all.List {
		v := &all.List[i]
		hidden := func(of placement.DataViewGroup) bool { return call == nil || call.Can(access.Scan, of.Name) != nil }
		if v.IsOpen() && !slices.ContainsFunc(v.Groups, hidden) {
			out.Views = append(out.Views, viewMessage(v))
		}
	}
	return out, nil
}

// CloseView implements ViewService.
func (s *viewServer) CloseView(ctx context.Context, in *batchv1.CloseViewRequest) (*batchv1.CloseViewResponse, error) {
	v, err := s.owned(ctx, in.GetView())
	if status.Code(err) == codes.OutOfRange {
		return &batchv1.CloseViewResponse{}, nil
	}
	if err != nil {
		return nil, err
	}
	within, cancel := etcdTime(ctx)
	defer cancel()
	if err = s.g.cfg.Store.DeleteDataView(within, v.ID, v.Revision); err != nil {
		err = etcdFailed(err, false, "view %s cannot be closed", v.ID)
	}
	viewed(ctx, "close", &v, err)
	if err != nil {
		return nil, err
	}
	return &batchv1.CloseViewResponse{}, nil
}

// viewMessage returns a view as callers see it.
func viewMessage(v *placement.DataView) *batchv1.View {
	out := &batchv1.View{Id: v.ID.String(), OpenedUnixNs: v.Opened.UnixNano(), ExpiresUnixNs: v.Expires.UnixNano()}
	for _, g := range v.Groups {
		out.Groups = append(out.Groups, &batchv1.ViewGroup{Group: g.Name, Lost: g.Lost})
	}
	return out
}

// expireViews removes views that have expired, until ctx is done. All gateways do so. A shard never does, so that
// shards whose clocks differ hold the same history.
func (g *Gateway) expireViews(ctx context.Context) {
	for backoff.Sleep(ctx, expireEvery) {
		within, cancel := context.WithTimeout(ctx, createTimeout)
		all, err := g.cfg.Store.DataViews(within)
		for i := range all.List {
			if v := &all.List[i]; err == nil && time.Now().After(v.Expires) {
				// An error means that another gateway was first, that the view was renewed, or that etcd does not take the change
				// now. The next round tries again.
				_ = g.cfg.Store.DeleteDataView(within, v.ID, v.Revision)
			}
		}
		cancel()
	}
}
