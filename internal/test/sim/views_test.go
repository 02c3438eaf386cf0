package sim

import (
	"context"
	"math/rand/v2"
	"time"

	"github.com/google/uuid"

	"sheaf.dev/sheaf/internal/placement"
)

// A view is opened as a gateway opens it: it is written to etcd, a majority of the copies must hold history, and then
// its index is chosen. Readers compare it with the ledger (past_test.go) until it is closed, expires or is given up.

// openView is a view that is open. Its fields are guarded by world.mu.
type openView struct {
	id    uuid.UUID
	index uint64
	// promised has the machines whose copies have promised to keep the history of the view, with the lineage of the copy.
	promised map[int]int
}

// runViews opens views from time to time.
func (w *world) runViews() {
	r := rand.New(rand.NewPCG(w.seed, 96))
	for w.sleep(between(r, 100*time.Millisecond, time.Second)) {
		w.mu.Lock()
		full := len(w.etcd.views) >= w.cfg.history.views || w.stopping
		w.mu.Unlock()
		if !full {
			chosen := rand.New(rand.NewPCG(r.Uint64(), 0))
			w.wait.Go(func() { w.liveView(chosen) })
		}
	}
}

// liveView opens a view, and ends it after some time.
func (w *world) liveView(r *rand.Rand) {
	id := uuid.New()
	v := w.openView(id, r)
	if v != nil {
		w.fire("view opened")
	}
	if v != nil && !w.sleep(between(r, 2*time.Second, 9*time.Second)) {
		return
	}
	if v != nil && r.IntN(4) == 0 && w.loseView(id, r) {
		w.fire("view given up")
		w.sleep(time.Second)
	}
	for {
		w.mu.Lock()
		delete(w.open, id)
		_, remains := w.etcd.view(id)
		w.mu.Unlock()
		if !remains || w.etcd.deleteView(id) == nil {
			break
		}
		if !w.sleep(100 * time.Millisecond) {
			return
		}
	}
	if v != nil {
		w.fire("view ended")
	}
}

// loseView records in etcd that a view is given up, because it keeps too much.
func (w *world) loseView(id uuid.UUID, r *rand.Rand) bool {
	all := w.processes()
	w.mu.Lock()
	v, _ := w.etcd.view(id)
	delete(w.open, id)
	w.mu.Unlock()
	return len(all) > 0 && all[r.IntN(len(all))].keeper.views.Lose(w.ctx, &v, identity.Name, "too many bytes") == nil
}

// openView does what a gateway does to open a view. It returns nil if the view cannot be opened now, or if the gateway
// dies meanwhile.
func (w *world) openView(id uuid.UUID, r *rand.Rand) *openView {
	v := placement.DataView{ID: id, Opened: time.Now(), Expires: time.Now().Add(time.Hour),
		Groups: []placement.DataViewGroup{{Name: identity.Name, UUID: identity.Group}}}
	if err := w.etcd.change(id, 0, func(rest []placement.DataView) []placement.DataView {
		v.Revision = w.etcd.revision
		return append(rest, v)
	}); err != nil {
		return nil
	}
	open := &openView{id: id, promised: map[int]int{}}
	chosen := false
	if w.cfg.mutation == mutateIndex { // the index is chosen first
		open.index, chosen = w.chooseIndex(nil, r)
		w.sleep(time.Second)
	}
	if !w.holdView(open, r) || !w.sleep(between(r, 0, 300*time.Millisecond)) {
		return nil
	}
	acknowledged := w.ledger.lastAcknowledged()
	if w.cfg.mutation != mutateIndex {
		open.index, chosen = w.chooseIndex(open, r)
	}
	if !chosen || r.IntN(12) == 0 {
		return nil
	}
	if open.index < acknowledged && w.cfg.mutation != mutateIndex {
		w.violate(oraclePast, "a view is opened as of index %d, after a write was acknowledged as index %d", open.index,
			acknowledged)
	}
	v.Groups = []placement.DataViewGroup{{Name: identity.Name, UUID: identity.Group, Index: open.index, Chosen: true}}
	err := w.etcd.change(id, v.Revision, func(rest []placement.DataView) []placement.DataView {
		v.Revision = w.etcd.revision
		w.open[id] = open
		return append(rest, v)
	})
	if err != nil {
		return nil
	}
	w.trace("view %v is open as of index %d, kept by %v", id, open.index, open.promised)
	return open
}

// chooseIndex makes the leader hold a view, unless v is nil, and returns the leader's applied index behind a read
// barrier.
func (w *world) chooseIndex(v *openView, r *rand.Rand) (index uint64, chosen bool) {
	anybody := w.cfg.mutation == mutateBarrier
	p := w.choose(r, anybody)
	if p == nil || !anybody && !p.replica.Status().Leader || v != nil && !w.holdAt(p, v) {
		return 0, false
	}
	ctx, cancel := context.WithTimeout(w.ctx, time.Second)
	defer cancel()
	if !anybody && p.replica.ReadBarrier(ctx) != nil {
		return 0, false
	}
	index = p.log.AppliedIndex()
	return index, !w.isDead(p)
}

func (w *world) isDead(p *process) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return p.dead
}

// holdView asks all voters to hold a view. It returns true if a majority does.
func (w *world) holdView(v *openView, r *rand.Rand) bool {
	leader := w.leader()
	if leader == nil {
		return false
	}
	held, voters := 0, leader.replica.Members().Conf.GetVoters()
	for _, id := range voters {
		w.mu.Lock()
		p := (*process)(nil)
		if m := w.at[id]; m != nil && m.process != nil && m.process.raftID == id {
			p = m.process
		}
		w.mu.Unlock()
		if p != nil && r.IntN(8) > 0 && w.holdAt(p, v) {
			held++
		}
	}
	return 2*held > len(voters)
}

// holdAt asks one copy to hold a view, and records that it has promised to do so.
func (w *world) holdAt(p *process, v *openView) bool {
	w.mu.Lock()
	lineage := p.machine.lineage
	w.mu.Unlock()
	ctx, cancel := context.WithTimeout(w.ctx, 2*time.Second)
	defer cancel()
	if _, err := p.keeper.views.Await(ctx, v.id); err != nil {
		return false
	}
	floor, err := p.keeper.holds.View(ctx, p, w.groupInEtcd())
	w.mu.Lock()
	defer w.mu.Unlock()
	if err != nil || p.dead || p.machine.lineage != lineage {
		return false
	}
	w.trace("%v holds view %v, floor %d", p.machine, v.id, floor)
	v.promised[p.machine.number] = lineage
	return true
}
