package sim

import (
	"context"
	"errors"
	"math/rand/v2"
	"time"

	"github.com/google/uuid"

	"sheaf.dev/sheaf/internal/placement"
	"sheaf.dev/sheaf/internal/placement/registry"
	"sheaf.dev/sheaf/internal/shard/care"
	"sheaf.dev/sheaf/internal/shard/views"
	"sheaf.dev/sheaf/internal/storage/group"
)

// In some runs, copies keep history: for an archiver, which follows the group (archiver_test.go), and for views
// (views_test.go). Each copy decides with the code of shards what it holds, and with what it has heard of etcd.

const (
	// agedBy is how far the logs' clocks are ahead of those that set commit times. While a hold is in force, compaction
	// keeps everything that was superseded less than ten minutes ago. A run is shorter, so it would never drop anything.
	agedBy = 11 * time.Minute
	// weightsFresh is how long a copy uses what it has read of leaders' reports.
	weightsFresh = 300 * time.Millisecond
	reportEvery  = 300 * time.Millisecond
)

var errSilent = errors.New("etcd does not respond")

// historyEvents are events that must occur in a run of many seeds.
var historyEvents = []string{
	"archive begun", "archive compared", "archive ended", "archiver lags",
	"floor of a copy that holds for the archiver checked", "history for the archiver kept by an installed copy",
	"compaction before a hold is known", "compaction dropped entries below a hold", "history given up for space",
	"view opened", "view ended", "view given up", "view kept by an installed copy",
	"view read from a copy that has promised to keep it", "view read from another copy",
	"view read when all faults are over",
	"view refused: not applied yet", "view refused: history gone",
	"past read", "past refused: not applied yet", "past refused: history gone", "past refused: damaged",
}

// historyConfig configures what copies keep history for.
type historyConfig struct {
	archive  bool // whether an archiver follows the group
	views    int  // how many views are open at most at a time
	away     bool // whether the archiver is mostly away
	shortage bool // whether copies sometimes give up history, as if their volumes were full
}

func (c historyConfig) isOn() bool { return c.archive || c.views > 0 }

// logNow returns the time for the log (see agedBy).
func (m *machine) logNow() time.Time {
	if m.world.cfg.history.isOn() {
		return m.now().Add(agedBy)
	}
	return m.now()
}

// etcd has the views, and what leaders have reported. Its fields are guarded by world.mu.
type etcd struct {
	world    *world
	random   *rand.Rand
	revision int64
	views    []placement.DataView
	weights  map[string]map[string]registry.Weight // by shard
	group    placement.Group
}

func newEtcd(w *world) *etcd {
	return &etcd{world: w, random: rand.New(rand.NewPCG(w.seed, 95)), weights: map[string]map[string]registry.Weight{},
		group: placement.Group{Name: identity.Name, UUID: identity.Group}}
}

// Weights implements care.Etcd.
func (e *etcd) Weights(_ context.Context, shard string) (map[string]registry.Weight, error) {
	e.world.mu.Lock()
	defer e.world.mu.Unlock()
	if e.world.isEtcdSilent() {
		return nil, errSilent
	}
	return e.weights[shard], nil
}

// DataView implements views.Etcd.
func (e *etcd) DataView(_ context.Context, id uuid.UUID) (v placement.DataView, found bool, err error) {
	e.world.mu.Lock()
	defer e.world.mu.Unlock()
	if e.world.isEtcdSilent() {
		return v, false, errSilent
	}
	v, found = e.view(id)
	return v, found, nil
}

// view returns a view, whether or not etcd responds. The caller holds world.mu.
func (e *etcd) view(id uuid.UUID) (v placement.DataView, found bool) {
	for _, v := range e.views {
		if v.ID == id {
			return v, true
		}
	}
	return v, false
}

// PutDataView implements views.Etcd.
func (e *etcd) PutDataView(_ context.Context, v placement.DataView) (placement.DataView, error) {
	return v, e.change(v.ID, v.Revision, func(rest []placement.DataView) []placement.DataView {
		v.Revision = e.revision
		return append(rest, v)
	})
}

func (e *etcd) deleteView(id uuid.UUID) error {
	e.world.mu.Lock()
	v, _ := e.view(id)
	e.world.mu.Unlock()
	return e.change(id, v.Revision, func(rest []placement.DataView) []placement.DataView { return rest })
}

// change replaces the views if the view with the given id has the given revision. The function next gets the other
// views.
func (e *etcd) change(id uuid.UUID, revision int64, next func(rest []placement.DataView) []placement.DataView) error {
	e.world.mu.Lock()
	defer e.world.mu.Unlock()
	if e.world.isEtcdSilent() {
		return errSilent
	}
	if v, _ := e.view(id); v.Revision != revision {
		return placement.ErrChanged
	}
	var rest []placement.DataView
	for _, v := range e.views {
		if v.ID != id {
			rest = append(rest, v)
		}
	}
	e.revision++
	e.views = next(rest)
	return nil
}

// WatchDataViews implements views.Etcd. Those who watch hear of a change, and of the first state, after up to a third
// of a second.
func (e *etcd) WatchDataViews(ctx context.Context) <-chan registry.DataViews {
	w, out := e.world, make(chan registry.DataViews, 1)
	w.wait.Go(func() {
		defer close(out)
		for last := int64(-1); ; {
			w.mu.Lock()
			delay := between(e.random, 10*time.Millisecond, 300*time.Millisecond)
			w.mu.Unlock()
			select {
			case <-time.After(delay):
			case <-ctx.Done():
				return
			}
			w.mu.Lock()
			news := !w.isEtcdSilent() && e.revision != last
			found := registry.DataViews{List: e.views, At: e.revision}
			w.mu.Unlock()
			if !news {
				continue
			}
			last = found.At
			select {
			case out <- found:
			case <-ctx.Done():
				return
			}
		}
	})
	return out
}

// runHistory starts what needs the history of the group.
func (w *world) runHistory() {
	if !w.cfg.history.isOn() {
		return
	}
	w.wait.Go(w.runReports)
	w.wait.Go(w.runCompactions)
	w.wait.Go(w.runPastReads)
	if w.cfg.history.views > 0 {
		w.wait.Go(w.runViews)
	}
	if w.cfg.history.archive {
		w.wait.Go(w.runArchiver)
	}
}

// keeper is what a process knows of the history that its copy must keep.
type keeper struct {
	views *views.Set
	holds *care.Holds
	end   context.CancelFunc
	scans map[uuid.UUID]group.ScanID // open snapshots of views; used only by the reader
}

// UUID implements care.Copy.
func (p *process) UUID() uuid.UUID { return identity.Group }

// Log implements care.Copy.
func (p *process) Log() *group.Log { return p.log }

// Leads implements care.Copy.
func (p *process) Leads() (term uint64, leads bool) {
	m := p.replica.Members()
	return m.Term, m.LeaderID == p.raftID
}

// keepHistory makes a process that is starting follow the views in etcd.
func (p *process) keepHistory() {
	w := p.machine.world
	if !w.cfg.history.isOn() {
		return
	}
	ctx, end := context.WithCancel(w.ctx)
	k := &keeper{end: end, scans: map[uuid.UUID]group.ScanID{}}
	k.views = views.New(w.etcd, func() bool { return false }, func() {
		if _, on, _ := k.views.HoldOf(identity.Group); on {
			_, _ = k.holds.View(ctx, p, w.groupInEtcd()) // an error means that there is no space
		}
	})
	var seen care.Views = k.views
	if w.cfg.mutation == mutateLeast {
		seen = greatest{k.views}
	}
	var reports care.Etcd = w.etcd
	if w.cfg.mutation == mutateReports {
		reports = unheard{w.etcd}
	}
	k.holds = care.NewHolds(reports, weightsFresh, seen)
	if w.cfg.mutation == mutateUnknown {
		p.log.SetHold(group.Hold{})
	}
	p.keeper = k
	w.wait.Go(func() { k.views.Run(ctx) })
}

// greatest are views whose hold is the greatest of them, not the least.
type greatest struct{ *views.Set }

// HoldOf implements care.Views.
func (g greatest) HoldOf(id uuid.UUID) (at uint64, on, known bool) {
	at, on, known = g.Set.HoldOf(id)
	for _, v := range g.All() {
		if of, found := v.Group(identity.Name); found {
			at = max(at, of.Index)
		}
	}
	return at, on, known
}

// unheard is etcd for members that do not look at the holds that leaders report.
type unheard struct{ *etcd }

// Weights implements care.Etcd.
func (u unheard) Weights(ctx context.Context, shard string) (map[string]registry.Weight, error) {
	all, err := u.etcd.Weights(ctx, shard)
	w, found := all[identity.Name]
	if !found {
		return all, err
	}
	w.Hold, w.Holds = 0, false
	return map[string]registry.Weight{identity.Name: w}, err
}

func (w *world) groupInEtcd() placement.Group {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.etcd.group
}

// runReports makes each leader report to etcd who leads, which members there are, and what is held.
func (w *world) runReports() {
	for w.sleep(reportEvery) {
		for _, p := range w.processes() {
			w.report(p)
		}
	}
}

func (w *world) report(p *process) {
	m := p.replica.Members()
	if !p.replica.Status().Leader || m.LeaderID != p.raftID {
		w.reportOthers(p)
		return
	}
	last, err := w.etcd.Weights(w.ctx, p.machine.shardName())
	if err != nil {
		return
	}
	weight := registry.Weight{UUID: identity.Group}
	weight.Hold, weight.Holds, weight.Term = p.keeper.holds.Report(w.ctx, p, w.groupInEtcd(), last[identity.Name])
	term := p.replica.Members().Term
	w.mu.Lock()
	defer w.mu.Unlock()
	if p.dead || w.isEtcdSilent() || term != m.Term || m.Term < w.etcd.group.Term {
		return
	}
	g := placement.Group{Name: identity.Name, UUID: identity.Group, Leader: p.machine.shardName(), Term: m.Term}
	for _, id := range m.Conf.GetVoters() {
		if at := w.at[id]; at != nil {
			g.Members = append(g.Members, placement.Member{Shard: at.shardName()})
		}
	}
	w.etcd.group = g
	w.trace("%v reports term %d, hold %d (%v)", p.machine, weight.Term, weight.Hold, weight.Holds)
	w.etcd.weights[g.Leader] = map[string]registry.Weight{g.Name: weight}
	if a := w.archive; a != nil && weight.Holds && a.told[p] {
		a.reported = true
	}
}

// reportOthers writes the report of a shard that leads other groups, but not this one.
func (w *world) reportOthers(p *process) {
	shard := p.machine.shardName()
	all, err := w.etcd.Weights(w.ctx, shard)
	last := all[identity.Name]
	if err != nil || w.cfg.mutation != mutateReport && p.keeper.holds.Remains(w.ctx, p, w.groupInEtcd(), last) {
		return
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if !p.dead {
		delete(w.etcd.weights, shard)
	}
}

// ignoresHold reports whether the mutation of this run makes a copy compact as if nothing were held.
func (w *world) ignoresHold(p *process) bool {
	leads := p.replica.Status().Leader
	switch w.cfg.mutation {
	case mutateLeaderHold:
		return leads
	case mutateMemberHold:
		return !leads
	case mutateInstalledHold:
		w.mu.Lock()
		defer w.mu.Unlock()
		return p.machine.installed == p.disk
	}
	return false
}

// runCompactions compacts copies that keep history, more often than the nemesis does.
func (w *world) runCompactions() {
	r := rand.New(rand.NewPCG(w.seed, 94))
	for w.sleep(between(r, 100*time.Millisecond, 600*time.Millisecond)) {
		all := w.processes()
		if len(all) == 0 || w.isStopping() {
			continue
		}
		p := all[r.IntN(len(all))]
		if w.cfg.history.shortage && r.IntN(20) == 0 {
			w.giveUp(p)
			continue
		}
		w.compactOne(p)
	}
}

func (w *world) isStopping() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.stopping
}

// giveUp compacts a copy as a shard does whose volume is full: the copy no longer keeps history.
func (w *world) giveUp(p *process) {
	w.breakPromises(p)
	_, err := p.log.Compact(w.ctx, group.CompactOptions{All: true, IgnoreHold: true, SpaceLow: true})
	w.breakPromises(p)
	if err == nil {
		w.fire("history given up for space")
	}
}

// breakPromises notes that the history of a process's copy may become incomplete, although it is held.
func (w *world) breakPromises(p *process) {
	w.mu.Lock()
	defer w.mu.Unlock()
	p.machine.lineage++
}
