package registry

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"reflect"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/uuid"
	clientv3 "go.etcd.io/etcd/client/v3"

	"sheaf.dev/sheaf/internal/placement"
	"sheaf.dev/sheaf/internal/placement/rescue"
	"sheaf.dev/sheaf/internal/test/memetcdtest"
	"sheaf.dev/sheaf/internal/test/must"
)

// wakesRig performs random actions on a store that has a few shards and groups.
type wakesRig struct {
	t      *testing.T
	ctx    context.Context //nolint:containedctx // the context of the test
	client *clientv3.Client
	store  *Store
	meta   placement.Meta
	shards []string
	groups []string
}

func newWakesRig(t *testing.T) *wakesRig {
	t.Helper()
	client := memetcdtest.New(t).Client(t)
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Minute)
	t.Cleanup(cancel)
	r := &wakesRig{t: t, ctx: ctx, client: client, meta: placement.Meta{StoreUUID: uuid.New(),
		Routing: placement.Routing{Mode: placement.Named},
		Copies:  3}}
	var err error
	if r.store, err = NewStore(client, "w-"+uuid.NewString(), nil); err != nil {
		t.Fatal(err)
	}
	if _, err := r.store.InitMeta(ctx, r.meta); err != nil {
		t.Fatal(err)
	}
	for n := range 5 {
		r.shards = append(r.shards, fmt.Sprint("s", n))
	}
	for n := range 6 {
		r.groups = append(r.groups, fmt.Sprint("g", n))
	}
	return r
}

// somewhere returns up to four members and the names of their shards. Some shards may be unknown or repeated.
func (r *wakesRig) somewhere(dice *rand.Rand) (members []placement.Member, names []string) {
	for n := range dice.IntN(5) {
		name := r.shards[dice.IntN(len(r.shards))]
		if !slices.Contains(names, name) {
			names = append(names, name)
		}
		if dice.IntN(10) == 0 {
			name = "" // the shard of this member is unknown
		}
		members = append(members, placement.Member{Shard: name, VolumeUUID: uuid.New(), RaftID: dice.Uint64() | 1,
			Role: []placement.Role{placement.Voter, placement.Learner}[n%2]})
	}
	return members, names
}

// passing reports whether an operation succeeded, or failed only because something else changed at the same time.
func passing(err error) bool {
	return err == nil || errors.Is(err, placement.ErrChanged) || errors.Is(err, placement.ErrNoGroup) ||
		errors.Is(err, placement.ErrStaleLeader) ||
		errors.Is(err, placement.ErrFrozen)
}

// act performs and describes one action that a planner, a shard or a gateway might perform.
func (r *wakesRig) act(ctx context.Context, dice *rand.Rand) (what string, err error) {
	name := r.groups[dice.IntN(len(r.groups))]
	members, shards := r.somewhere(dice)
	switch dice.IntN(8) {
	case 0:
		_, _, err = r.store.CreateGroup(ctx, placement.NewGroup(r.meta.Routing, name, 0))
		return "create " + name, err
	case 1, 2:
		g, err := r.store.Group(ctx, name)
		if err == nil {
			g.Members = members
			_, err = r.store.PutGroup(ctx, g)
		}
		return "members of " + name, err
	case 3:
		g, err := r.store.Group(ctx, name)
		if err != nil {
			return "read " + name, err
		}
		g.Members, g.Term, g.ConfIndex = members, g.Term+uint64(dice.IntN(2)), g.ConfIndex+1
		_, err = r.store.PutGroupAsLeader(ctx, g)
		return "members of " + name + " by its leader", err
	case 4, 5:
		_, other := r.somewhere(dice)
		return "targets", r.store.SetTargets(ctx, []placement.Target{
			{Group: name, Shards: shards}, {Group: r.groups[(slices.Index(r.groups, name)+1)%len(r.groups)], Shards: other},
		})
	case 6:
		planned, err := r.store.PlanOnce(ctx, r.meta.StoreUUID, placement.Policy{Copies: 3, Moves: true})
		return fmt.Sprint("plan ", planned.TargetsWritten, " targets"), err
	default:
		err := r.store.ForgetShard(ctx, r.meta.StoreUUID, r.shards[0])
		if errors.Is(err, placement.ErrShardHoldsGroups) || errors.Is(err, placement.ErrShardRegistered) {
			err = nil
		}
		return "forget a shard", err
	}
}

// rebuilt returns a placement of some or all groups in etcd, such as a rebuild from the volumes might produce.
func (r *wakesRig) rebuilt(dice *rand.Rand) rescue.Rebuilt {
	r.t.Helper()
	view, err := r.store.View(r.ctx)
	must.OK(r.t, err)
	out := rescue.Rebuilt{Meta: view.Meta, Short: map[string]string{}}
	for _, g := range view.Groups {
		if dice.IntN(5) == 0 {
			continue
		}
		g.Members, _ = r.somewhere(dice)
		g.ConfIndex++
		out.Groups = append(out.Groups, g)
	}
	return out
}

// old writes only a group or a target and no wake keys, as an older version of Sheaf does.
func (r *wakesRig) old(dice *rand.Rand) error {
	name := r.groups[dice.IntN(len(r.groups))]
	members, shards := r.somewhere(dice)
	if dice.IntN(2) == 0 {
		value, err := json.Marshal(placement.Target{Group: name, Shards: shards})
		if err == nil {
			_, err = r.client.Put(r.ctx, r.store.prefix+targetsKey+name, string(value))
		}
		return err
	}
	g, err := r.store.Group(r.ctx, name)
	if errors.Is(err, placement.ErrNoGroup) {
		g, err = placement.NewGroup(r.meta.Routing, name, 0), nil
	}
	if err != nil {
		return err
	}
	g.Members = members
	value, err := json.Marshal(g)
	if err != nil {
		return err
	}
	key := r.store.prefix + groupsKey + name
	_, err = r.client.Txn(r.ctx).If(clientv3.Compare(clientv3.ModRevision(key), "=", g.Revision)).
		Then(clientv3.OpPut(key, string(value))).Commit()
	return err
}

// wrong describes how the existing wake keys differ from those that the groups and targets require. It returns an
// empty string if there is no difference.
func (r *wakesRig) wrong() string {
	r.t.Helper()
	answer, err := r.client.Get(r.ctx, r.store.prefix, clientv3.WithPrefix())
	must.OK(r.t, err)
	pairs, wakes := map[string]pair{}, map[string]int64{}
	for _, kv := range answer.Kvs {
		kind, rest, _ := strings.Cut(r.store.name(kv.Key), "/")
		p := pairs[rest]
		switch kind + "/" {
		case groupsKey:
			p.group, err = decodeGroup(rest, kv.Value, kv.ModRevision)
		case targetsKey:
			p.target, err = decodeTarget(rest, kv.Value, kv.ModRevision)
		case wakesKey:
			wakes[rest] = kv.ModRevision
			continue
		default:
			continue
		}
		must.OK(r.t, err)
		pairs[rest] = p
	}
	var words []string
	for name, p := range pairs {
		for _, shard := range p.concerned() {
			key := shard + "/" + name
			at, ok := wakes[key]
			delete(wakes, key)
			if last := max(p.group.Revision, p.target.Revision); !ok || at < last {
				words = append(words, fmt.Sprintf("%s was told at %d, the group was written at %d", key, at, last))
			}
		}
	}
	for key := range wakes {
		words = append(words, key+" is told of what does not concern it")
	}
	slices.Sort(words)
	return strings.Join(words, "; ")
}

// TestWakesAreWhatGroupsAndTargetsSay performs random actions, one after another and several at a time. Each write of
// a group must also write wake keys, in the same transaction, for exactly the shards that the group or its target
// names.
func TestWakesAreWhatGroupsAndTargetsSay(t *testing.T) {
	for seed := range uint64(4) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) { wakesOfSeed(t, seed) })
		})
	}
}

func wakesOfSeed(t *testing.T, seed uint64) {
	r, dice := newWakesRig(t), rand.New(rand.NewPCG(seed, 18))
	for n := range r.shards[1:] {
		stop, err := r.store.RegisterShard(r.ctx, placement.Shard{Name: r.shards[n+1], Address: "127.0.0.1:1",
			VolumeUUID: uuid.New(),
			Generation: 1})
		must.OK(t, err)
		defer stop()
	}
	did := map[string]int{}
	for range 150 {
		what, err := r.one(dice)
		if !passing(err) {
			t.Fatalf("%s: %v", what, err)
		}
		did[strings.Fields(what)[0]]++
		if wrong := r.wrong(); wrong != "" {
			t.Fatalf("after %s: %s", what, wrong)
		}
	}
	for range 5 {
		r.several(dice)
		if wrong := r.wrong(); wrong != "" {
			t.Fatalf("after several at a time: %s", wrong)
		}
	}
	t.Log(did)
}

// one performs one random action, possibly one in which etcd loses the store or is rolled back.
func (r *wakesRig) one(dice *rand.Rand) (what string, err error) {
	switch dice.IntN(12) {
	case 0:
		return "restore", r.store.Restore(r.ctx, r.rebuilt(dice), true)
	case 1:
		if err := r.store.Freeze(r.ctx, "a test", "it was set back"); err != nil {
			return "freeze", err
		}
		done, err := r.store.Reconcile(r.ctx, r.rebuilt(dice), nil)
		if err == nil && len(done.Waits) > 0 {
			_, err = r.client.Delete(r.ctx, r.store.prefix+frozenKey)
		}
		return "reconcile", err
	}
	return r.act(r.ctx, dice)
}

// several runs several sequences of random actions at the same time.
func (r *wakesRig) several(dice *rand.Rand) {
	r.t.Helper()
	var wait sync.WaitGroup
	for range 4 {
		own := rand.New(rand.NewPCG(dice.Uint64(), 1))
		wait.Go(func() {
			for range 25 {
				if what, err := r.act(r.ctx, own); !passing(err) {
					r.t.Errorf("%s: %v", what, err)
				}
			}
		})
	}
	planned, cancel := context.WithCancel(r.ctx)
	planner := make(chan error, 1)
	go func() {
		planner <- RunPlanner(planned, r.store, placement.Policy{Copies: 3, Moves: true}, slog.New(slog.DiscardHandler))
	}()
	wait.Wait()
	cancel()
	if err := <-planner; err != nil {
		r.t.Error(err)
	}
}

// TestTheKeeperReportsWhatOlderProgramsWrite runs versions of Sheaf that write wake keys at the same time as versions
// that do not. At the end, each shard must see the current state of its groups, and the wake keys must match the
// groups and targets. This must hold even if the shard that is the keeper stops.
func TestTheKeeperReportsWhatOlderProgramsWrite(t *testing.T) {
	synctest.Test(t, theKeeperReportsWhatOlderProgramsWrite)
}

func theKeeperReportsWhatOlderProgramsWrite(t *testing.T) {
	r, dice := newWakesRig(t), rand.New(rand.NewPCG(7, 18))
	// So far, only older versions of Sheaf have written to this store.
	for range 40 {
		must.OK(t, r.old(dice))
	}
	if r.wrong() == "" {
		t.Fatal("an older program wrote wakes")
	}
	follow := func(name string) (views <-chan placement.View, stop context.CancelFunc) {
		ctx, cancel := context.WithCancel(r.ctx)
		store, err := NewStore(r.client, r.store.Name(), nil)
		must.OK(t, err)
		return store.Follow(ctx, placement.Progress{}, placement.Own{Shard: name}), cancel
	}
	views, stops := map[string]<-chan placement.View{}, map[string]context.CancelFunc{}
	for _, name := range r.shards {
		views[name], stops[name] = follow(name)
		defer stops[name]()
	}
	last := map[string]placement.View{}
	for round := range 3 {
		for range 60 {
			must.OK(t, r.old(dice))
			if what, err := r.one(dice); !passing(err) {
				t.Fatalf("%s: %v", what, err)
			}
		}
		r.eventually("the wakes are what groups and targets say", r.wrong)
		truth, err := r.store.View(r.ctx)
		must.OK(t, err)
		for name := range views {
			want := truth.Of(placement.Own{Shard: name})
			r.eventually("shard "+name+" sees its groups", func() string {
				select {
				case v := <-views[name]:
					last[name] = v.Of(placement.Own{Shard: name})
				default:
				}
				if have := last[name]; !reflect.DeepEqual(have.Groups, want.Groups) ||
					!reflect.DeepEqual(have.Targets, want.Targets) {
					return fmt.Sprintf("it has %+v and %+v, etcd %+v and %+v", have.Groups, have.Targets, want.Groups, want.Targets)
				}
				return ""
			})
		}
		name := ""
		r.eventually("somebody keeps the wakes", func() string {
			keeper, err := r.client.Get(r.ctx, r.store.prefix+keeperKey)
			if err != nil || len(keeper.Kvs) != 1 { // there is no keeper between the end of one lease and the next one
				return fmt.Sprint(keeper, err)
			}
			name = string(keeper.Kvs[0].Value)
			return ""
		})
		t.Logf("round %d: shard %s kept the wakes", round, name)
		stops[name]()
		for range views[name] { // the channel is closed when the watch has ended
		}
		views[name], stops[name] = follow(name)
		defer stops[name]()
	}
}

// eventually waits until the function wrong returns an empty string.
func (r *wakesRig) eventually(what string, wrong func() string) {
	r.t.Helper()
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for words := wrong(); words != ""; words = wrong() {
		select {
		case <-tick.C:
		case <-r.ctx.Done():
			r.t.Fatalf("not true: %s: %s", what, words)
		}
	}
}
