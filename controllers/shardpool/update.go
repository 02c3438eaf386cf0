package shardpool

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"

	"golang.org/x/sync/errgroup"

	"sheaf.dev/sheaf/controllers/fleet"
	"sheaf.dev/sheaf/controllers/step"

	appsv1 "k8s.io/api/apps/v1"

	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"sheaf.dev/sheaf/api/v1alpha1"
	"sheaf.dev/sheaf/internal/workload"
)

// Reasons of condition Updated while pods differ from the wanted template.
const (
	reasonUpdating = "Updating"     // it goes on by itself
	reasonHeldUp   = "UpdateHeldUp" // it goes on when something else is well again
)

// updateWords is how far the pods are from the wanted template.
type updateWords struct {
	reason  string // empty: all run it
	message string
}

// outdated says whether the shard's pod has to be made anew: its template is another one, or it was started for a
// volume that a person has given up since.
func (o *observedShard) outdated() bool {
	if o.Pod == nil || o.Pod.DeletionTimestamp != nil || o.Parked {
		return false
	}
	return o.Pod.Annotations[workload.AnnotationTemplate] != o.Template || o.forgotten(o.Pod.Annotations[workload.AnnotationVolume])
}

// restartOne takes the next step of an update: the set of the shard whose turn it is gets the wanted template, and then
// its pod is deleted. The order makes a crash in between harmless: the pod is still seen as outdated.
func (w *poolWork) restartOne(ctx context.Context) step.Outcome {
	outdated := 0
	for _, o := range w.shards {
		if o.outdated() {
			outdated++
		}
	}
	if outdated == 0 {
		return step.Complete()
	}
	w.update = updateWords{reason: reasonUpdating, message: fmt.Sprintf("%d of %d shards do not run the wanted pod template yet", outdated, len(w.shards))}
	if w.pool.Spec.Update.Mode == v1alpha1.UpdatePaused {
		w.update.reason, w.update.message = "Paused", w.update.message+"; update.mode is Paused: set it to OneByOne to go on"
		return step.Complete()
	}
	turns, err := w.cachedTurns(ctx)
	if err != nil {
		return step.Retry(err)
	}
	name, heldUpBy := chooseTurn(turns, w.parkedWell())
	reason := holdReason(turns, w.parkedWell())
	if name == "" && slices.ContainsFunc(w.shards, w.waitsForImage) {
		reason = reasonHeldUp
		heldUpBy = fmt.Sprintf("gateway and etcd of RecordStore %s do not run image %s: its condition Updated says why", w.store.Name, w.image())
	}
	if name == "" {
		return w.heldUp(reason, heldUpBy)
	}
	i := slices.IndexFunc(w.shards, func(o *observedShard) bool { return o.Name == name })
	return w.note(w.restart(ctx, w.shards[i], turns))
}

// image that the shards are to run.
func (w *poolWork) image() string { return workload.ImageOf(w.store, w.Image) }

// waitsForImage says whether a shard keeps its image for now: where a new one is bad, a gateway or a member of etcd is
// lost with less. One that serves nothing has nothing to lose.
func (w *poolWork) waitsForImage(o *observedShard) bool {
	seen := w.store.Status.Image
	if seen == "" || seen == w.image() || o.Pod == nil || fleet.ImageOf(&o.Pod.Spec) == w.image() {
		return false
	}
	return restartCost(w.statusOf(o.Number).State) != costNone
}

func (w *poolWork) heldUp(reason, by string) step.Outcome {
	w.update.reason = reason
	w.update.message += "; none is restarted while " + cmp.Or(by, "their nodes are away")
	return w.note(step.Wait(w.update.reason, w.update.message, step.PauseShort))
}

// parkedWell: with a single copy a parked shard takes no group's majority; with several, needed sees to that.
func (w *poolWork) parkedWell() bool {
	return w.store.Spec.Replication.Copies <= 1 || w.Register != nil
}

// cachedTurns are all shards of the store: of this pool as decided, of the others as they were seen last.
func (w *poolWork) cachedTurns(ctx context.Context) ([]turn, error) {
	var turns []turn
	for i, o := range w.shards {
		t := turn{Name: o.Name, State: w.statuses[i].State, Outdated: o.outdated() && !w.waitsForImage(o), Mine: true}
		if o.Pod != nil {
			t.Since = o.Pod.CreationTimestamp.Time
		}
		turns = append(turns, t)
	}
	var pools v1alpha1.ShardPoolList
	if err := w.Client.List(ctx, &pools, client.InNamespace(w.pool.Namespace)); err != nil {
		return nil, fmt.Errorf("list ShardPools: %w", err)
	}
	seen, err := fleet.ReadSeen(ctx, w.Client, pools.Items, client.InNamespace(w.pool.Namespace))
	if err != nil {
		return nil, err
	}
	for i := range pools.Items {
		pool := &pools.Items[i]
		if pool.Name == w.pool.Name || pool.Spec.StoreRef.Name != w.store.Name {
			continue
		}
		for _, s := range seen.Of(pool) {
			turns = append(turns, turn{Name: s.Name, State: s.State})
		}
	}
	return turns, nil
}

// restart, where the API server and the shards themselves say that it is the shard's turn, gives its set the wanted
// template, and once the StatefulSet controller has seen that, deletes the pod.
func (w *poolWork) restart(ctx context.Context, o *observedShard, turns []turn) step.Outcome {
	words := fmt.Sprintf("shard %s is to be restarted: %s", o.Name, w.update.message)
	if o.Set == nil || o.Set.DeletionTimestamp != nil {
		return step.Wait(reasonUpdating, words, step.PauseShort)
	}
	lock := w.turnLock()
	lock.Lock()
	defer lock.Unlock()
	turns, err := w.liveTurns(ctx, turns)
	if err != nil {
		return step.Retry(err)
	}
	if name, heldUpBy := chooseTurn(turns, w.parkedWell()); name != o.Name {
		w.update.reason = holdReason(turns, w.parkedWell())
		return step.Wait(w.update.reason, w.update.message+"; none is restarted while "+cmp.Or(heldUpBy, "another one is"), step.PauseShort)
	}
	if held := w.spare(ctx, o.Name, turns); held != "" {
		w.update.reason, w.update.message = reasonHeldUp, fmt.Sprintf("%s; shard %s is not restarted: %s", w.update.message, o.Name, held)
		return step.Wait(w.update.reason, w.update.message, step.PauseShort)
	}
	if changed, err := step.Apply(ctx, w.Client, w.pool, w.wanted[o.Number]); err != nil {
		return step.Retry(err)
	} else if changed || setTemplate(o.Set) != o.Template || o.Set.Status.ObservedGeneration < o.Set.Generation {
		return step.Wait(reasonUpdating, words, step.PauseShort)
	}
	if err := w.Client.Delete(ctx, o.Pod, client.Preconditions{UID: &o.Pod.UID}); client.IgnoreNotFound(err) != nil {
		return step.Retry(fmt.Errorf("delete Pod %s: %w", o.Pod.Name, err))
	}
	w.tell(ctx, "ShardRestarts", "Restart", o.Pod, "restarting shard %s for a changed pod template", o.Name)
	return step.Wait(reasonUpdating, words, step.PauseShort)
}

func (w *poolWork) turnLock() *sync.Mutex {
	lock, _ := w.turns.LoadOrStore(client.ObjectKeyFromObject(w.store), &sync.Mutex{})
	return lock.(*sync.Mutex)
}

// liveTurns looks at the shards of the store anew, past the cache: what looked well must be well now. A shard that did
// not look well stays as it was seen, unless it serves.
func (w *poolWork) liveTurns(ctx context.Context, turns []turn) ([]turn, error) {
	in := []client.ListOption{client.InNamespace(w.pool.Namespace), client.MatchingLabels(workload.Selector(w.store.Name, workload.ContainerShard))}
	var pods corev1.PodList
	var sets appsv1.StatefulSetList
	if err := w.Live.List(ctx, &sets, in...); err != nil {
		return nil, fmt.Errorf("list StatefulSets of RecordStore %s: %w", w.store.Name, err)
	}
	if err := w.Live.List(ctx, &pods, in...); err != nil {
		return nil, fmt.Errorf("list pods of RecordStore %s: %w", w.store.Name, err)
	}
	seen := map[string]turn{}
	for _, t := range turns {
		seen[t.Name] = t
	}
	// Sets that the cache does not know yet.
	for i := range sets.Items {
		set := &sets.Items[i]
		if _, ok := seen[set.Name]; !ok && (set.Spec.Replicas == nil || *set.Spec.Replicas > 0) {
			seen[set.Name] = turn{Name: set.Name, State: v1alpha1.ShardServing}
		}
	}
	byShard := map[string]*corev1.Pod{}
	for i := range pods.Items {
		byShard[strings.TrimSuffix(pods.Items[i].Name, "-0")] = &pods.Items[i]
	}
	for i := range sets.Items {
		set := &sets.Items[i]
		if pod := byShard[set.Name]; pod != nil && setTemplate(set) != pod.Annotations[workload.AnnotationTemplate] {
			t := seen[set.Name]
			t.Name, t.Begun = set.Name, true
			seen[set.Name] = t
		}
	}
	live := slices.Collect(maps.Values(seen))
	var group errgroup.Group
	group.SetLimit(describeAtOnce)
	for n := range live {
		group.Go(func() error {
			t := &live[n]
			now, report := w.liveState(ctx, byShard[t.Name])
			t.Report = report
			if restartCost(now) == costAll || restartCost(t.State) == costAll {
				t.State = now
			}
			return nil
		})
	}
	return live, group.Wait()
}

func (w *poolWork) liveState(ctx context.Context, pod *corev1.Pod) (v1alpha1.ShardState, *fleet.ShardReport) {
	if pod == nil || pod.DeletionTimestamp != nil || pod.Status.Phase != corev1.PodRunning || pod.Status.PodIP == "" {
		return v1alpha1.ShardPending, nil
	}
	report, err := w.ask(ctx, pod)
	if err != nil {
		return v1alpha1.ShardUnreachable, nil
	}
	return report.State, report
}

// spare says why a shard that serves must not be restarted now; empty: every group with several copies goes on without
// it.
func (w *poolWork) spare(ctx context.Context, shard string, turns []turn) string {
	i := slices.IndexFunc(turns, func(t turn) bool { return t.Name == shard })
	if w.store.Spec.Replication.Copies <= 1 || w.Register == nil || i >= 0 && restartCost(turns[i].State) != costAll {
		return ""
	}
	view, err := w.Register.Look(ctx, w.store) // as it is now
	if err != nil {
		return fmt.Sprintf("etcd was not asked whether its groups go on without it: %v", err)
	}
	view.Silence(w.silent)
	return needed(&view, shard, turns)
}

// lagMax is by how many entries a copy may be behind the others, and count as one.
const lagMax = 1000

// needed says which group would have no majority of copies that are up to date, were a shard not there; empty: none.
func needed(view *fleet.PlacementView, shard string, turns []turn) string {
	applied, newest := map[string]map[string]uint64{}, map[string]uint64{}
	for _, t := range turns {
		if t.Report == nil {
			continue
		}
		applied[t.Name] = map[string]uint64{}
		for _, g := range t.Report.Groups {
			if g.Serves() {
				applied[t.Name][g.Group] = g.AppliedIndex
				newest[g.Group] = max(newest[g.Group], g.AppliedIndex)
			}
		}
	}
	var names []string
	for _, name := range view.Names() {
		g := view.Groups[name]
		if !g.Votes(shard) {
			continue
		}
		well := g.Here(func(c fleet.CopyPlace) bool {
			index, serves := applied[c.Shard][name]
			return c.Shard == shard || !serves || index+lagMax < newest[name]
		})
		if well < fleet.Majority(len(g.Voters)) {
			names = append(names, name)
		}
	}
	if len(names) == 0 {
		return ""
	}
	return fmt.Sprintf("without it %s would have no majority of copies that are up to date", fleet.GroupWords(names))
}
