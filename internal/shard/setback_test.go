package shard

import (
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"path"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"sheaf.dev/sheaf/client/recordv1"
	"sheaf.dev/sheaf/internal/placement"
	"sheaf.dev/sheaf/internal/placement/etcd"
	"sheaf.dev/sheaf/internal/placement/registry"
	"sheaf.dev/sheaf/internal/storage/volume"
	"sheaf.dev/sheaf/internal/test/etcdtest"
	"sheaf.dev/sheaf/internal/test/soaktest"
	"sheaf.dev/sheaf/internal/test/vfstest"
)

// backedUp is a cluster with its own etcd, which can be rolled back to a backup.
//
// The tests run in real time, because etcd is a real one; the disks are in memory.
type backedUp struct {
	*cluster
	etcd  *etcdtest.Own
	store *registry.Store
	id    uuid.UUID
	quiet time.Duration // value of rememberQuiet for the shards that are started next
}

func newBackedUp(t *testing.T, copies int, shards ...string) *backedUp {
	b := &backedUp{
		cluster: &cluster{t: t, registry: newRegistry(hash4, ""), shards: map[string]*fixture{},
			stopped: map[string]*fixture{}},
		etcd: etcdtest.NewOwn(t), id: uuid.New(),
	}
	b.store = b.connect()
	_, err := b.store.InitMeta(t.Context(), placement.Meta{
		StoreUUID: b.id, Routing: hash4, Copies: copies, CreatedUTC: time.Now().UTC().Format(time.RFC3339),
		ShardsMin: len(shards),
	})
	must(t, err)
	for _, name := range shards {
		b.run(name)
	}
	b.eventually("groups are planned", func() bool { return b.plan() == nil && len(b.view().Targets) == hash4.Groups })
	return b
}

// connect returns the store over a new connection, which remembers nothing from earlier, as in a new process.
func (b *backedUp) connect() *registry.Store {
	b.t.Helper()
	client, err := etcd.Dial(etcd.ClientConfig{Endpoints: []string{b.etcd.Address}})
	must(b.t, err)
	b.t.Cleanup(func() { _ = client.Close() })
	store, err := registry.NewStore(client, "test", nil)
	must(b.t, err)
	return store
}

func (b *backedUp) run(name string) {
	b.t.Helper()
	f := b.stopped[name]
	delete(b.stopped, name)
	if f == nil {
		f = &fixture{t: b.t, cfg: Config{
			Name: name, Dir: "/volume", FS: vfstest.NewMem(), Listen: "127.0.0.1:0", SegmentBytes: 64 << 10,
			ReserveBytes: 16 << 20,
			Compaction:   Compaction{Off: true}, ReportInterval: 20 * time.Millisecond, rememberQuiet: b.quiet,
			Logger: slog.New(slog.NewTextHandler(testWriter{b.t}, &slog.HandlerOptions{Level: slog.LevelWarn})).
				With("shard", name),
		}}
	}
	f.cfg.Placement = b.connect()
	f.run()
	b.shards[name] = f
}

func (b *backedUp) plan() error {
	_, err := b.store.PlanOnce(b.t.Context(), b.id, placement.Policy{Copies: b.view().Meta.Copies})
	return err
}

func (b *backedUp) view() placement.View {
	b.t.Helper()
	v, err := b.store.View(b.t.Context())
	must(b.t, err)
	return v
}

func (b *backedUp) aimAll(shards ...string) {
	b.t.Helper()
	var targets []placement.Target
	for n := range hash4.Groups {
		targets = append(targets, placement.Target{Group: placement.GroupName(n), Shards: shards})
	}
	must(b.t, b.store.SetTargets(b.t.Context(), targets))
}

// on waits until all groups are on exactly these shards according to etcd, and etcd is not frozen.
func (b *backedUp) on(shards ...string) placement.View {
	b.t.Helper()
	var v placement.View
	b.eventually(fmt.Sprintf("all groups are on %v", shards), func() bool {
		v = b.view()
		for _, g := range v.Groups {
			var on []string
			for _, m := range g.Members {
				if m.Role == placement.Voter {
					on = append(on, m.Shard)
				}
			}
			if slices.Sort(on); !slices.Equal(on, shards) || len(g.Members) != len(shards) {
				return false
			}
		}
		return len(v.Groups) == hash4.Groups && v.Held() == ""
	})
	return v
}

// folders counts the folders of groups that a shard has, and those in its trash.
func (b *backedUp) folders(name string) (groups, trash int) {
	f := b.shards[name]
	if f == nil {
		f = b.stopped[name]
	}
	return len(filesIn(b.t, f.cfg.FS, path.Join(f.cfg.Dir, "groups"))), len(trashOf(b.t, f))
}

// Groups move after a backup of etcd was taken, and then etcd is rolled back to that backup. Some shards start on the
// older etcd, and others run all the time. In each case, nothing that was created after the backup is deleted, moved
// or served wrongly, and in the end etcd has the true state.
func TestRule9_AnEtcdThatWasSetBackIsReconciled(t *testing.T) {
	t.Parallel()
	for n, c := range []struct {
		copies          int
		from, restarted []string
	}{
		{1, []string{"a"}, []string{"a", "b", "c", "d"}},
		{1, []string{"a"}, nil},
		{3, abc, []string{"a", "b", "c", "d"}},
		{3, abc, []string{"a", "d"}},
	} {
		if n%2 == 0 && testing.Short() && !soaktest.Long() {
			continue // the race detector sees the cases in which some shards run all the time
		}
		t.Run(fmt.Sprintf("%d copies, %d shards start on it", c.copies, len(c.restarted)), func(t *testing.T) {
			t.Parallel()
			setBack(t, c.copies, c.from, c.restarted)
		})
	}
}

func setBack(t *testing.T, copies int, from, restarted []string) {
	b := newBackedUp(t, copies, "a", "b", "c", "d")
	b.aimAll(from...)
	b.on(from...)
	b.fill(12, 100)
	backup := b.etcd.Backup()
	to := slices.Sorted(slices.Values(append(slices.Clone(from[1:]), "d")))
	b.aimAll(to...)
	before := b.on(to...)
	// A shard that is no longer a target may briefly have been a group's first target, and have a copy from that time. The
	// test waits until such a shard has left the group too. Otherwise it would leave while etcd has the older state.
	for _, name := range []string{"a", "b", "c"} {
		if !slices.Contains(to, name) {
			b.eventually(name+" has left its groups", func() bool { groups, _ := b.folders(name); return groups == 0 })
		}
	}
	had := map[string][2]int{}
	for name := range b.shards {
		groups, trash := b.folders(name)
		had[name] = [2]int{groups, trash}
	}
	b.fill(12, 200)

	for _, name := range restarted {
		b.kill(name)
	}
	b.etcd.Stop()
	for id := range int64(12) {
		if len(restarted) == 0 { // no group has work left that needs etcd, so all of them continue to serve
			b.holds(id, data(id, 200))
		}
	}
	b.etcd.Restore(backup)
	for _, name := range restarted {
		b.run(name)
	}
	after := b.on(to...)
	for name, g := range after.Groups {
		if was := before.Groups[name]; g.UUID != was.UUID || !sameMembersOf(g, was) || after.Epoch <= before.Epoch {
			t.Errorf("group %s is %+v, was %+v; epoch %d after %d", name, g, was, after.Epoch, before.Epoch)
		}
	}
	for id := range int64(12) {
		b.holds(id, data(id, 200))
		b.put(id, data(id, 300))
	}
	for name, want := range had {
		if groups, trash := b.folders(name); groups != want[0] || trash != want[1] {
			t.Errorf("shard %s has %d groups, and %d in its trash; want %v", name, groups, trash, want)
		}
	}
	b.eventually("nothing is wrong", func() bool {
		for _, f := range b.shards {
			if st := f.shard.Status(); len(st.GetShard().Problems) > 0 || len(st.Strays) > 0 {
				return false
			}
		}
		return true
	})
	// Moves work again.
	b.aimAll(from...)
	b.on(from...)
	b.filled(12, 300)
}

func sameMembersOf(a, b placement.Group) bool {
	return len(a.Members) == len(b.Members) && !slices.ContainsFunc(a.Members, func(m placement.Member) bool {
		return !slices.Contains(b.Members, m)
	})
}

// If the shards that hold a majority of a group's copies are down, the freeze continues, and its message names the
// group. All other groups serve.
func TestRule9_TheFreezeNamesWhatItWaitsFor(t *testing.T) {
	t.Parallel()
	if testing.Short() {
		t.Skip("short: sets a real etcd back")
	}
	b := newBackedUp(t, 1, "a", "b")
	b.eventually("all groups are made", func() bool {
		return !slices.ContainsFunc(slices.Collect(maps.Values(b.view().Groups)), func(g placement.Group) bool {
			return len(g.Members) == 0
		})
	})
	b.fill(12, 100)
	backup := b.etcd.Backup()
	b.aimAll("b")
	b.on("b")
	b.aimAll("a")
	b.on("a") // the groups have moved back to the same shard, where they have new members
	// Shard b must have left its groups before it is killed. Otherwise b might still hold remains of a group and report,
	// because of them, which shard has that group. The freeze's message would then name the groups in a different order.
	b.eventually("b has left its groups", func() bool { groups, _ := b.folders("b"); return groups == 0 })
	b.kill("a")
	b.kill("b")
	b.etcd.Stop()
	b.etcd.Restore(backup)
	b.run("b")
	b.eventually("it says what it waits for", func() bool {
		v := b.view()
		return v.Freeze != nil && len(v.Freeze.Waits) == 4 && strings.Contains(v.Freeze.Waits[0], "group 0")
	})
	f := b.shards["b"]
	b.eventually("its status says so", func() bool {
		return slices.ContainsFunc(f.shard.Status().GetShard().Problems, func(p string) bool {
			return strings.Contains(p, "set back") && strings.Contains(p, "group 0")
		})
	})
	if err := b.plan(); !errors.Is(err, placement.ErrFrozen) {
		t.Errorf("planning: %v", err)
	}
	for id := range int64(12) {
		_, err := f.records.Get(f.ctx(), &recordv1.GetRequest{Key: key(id)})
		if status.Code(err) != codes.Unavailable {
			t.Errorf("record %d: %v", id, err)
		}
	}
	b.run("a")
	b.on("a")
	b.filled(12, 100)
}

// After a backup of etcd, copies are created on a shard that the backup does not list. The shard's machine is down
// while etcd is rolled back to the backup and reconciled, so until it comes back nobody knows where these copies are.
// They hold acknowledged data, so they remain members, and no replacements are planned until the shard reports them.
func TestRule9_ACopyThatTheBackupDoesNotKnowIsNotDropped(t *testing.T) {
	t.Parallel()
	for name, restarted := range map[string][]string{"whoever ran remembers the place": nil,
		"nobody remembers the place": {"b", "c"}} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			dropsNoCopy(t, restarted)
		})
	}
}

func dropsNoCopy(t *testing.T, restarted []string) {
	b := newBackedUp(t, 3, abc...)
	b.aimAll(abc...)
	b.on(abc...)
	backup := b.etcd.Backup()
	b.run("d")
	b.aimAll("b", "c", "d")
	before := b.on("b", "c", "d")
	b.eventually("a has left its groups", func() bool { groups, _ := b.folders("a"); return groups == 0 })
	b.fill(12, 200)
	for _, name := range append([]string{"d"}, restarted...) {
		b.kill(name)
	}
	b.etcd.Stop()
	b.etcd.Restore(backup)
	for _, name := range restarted {
		b.run(name)
	}
	b.eventually("etcd is frozen or reconciled", func() bool {
		v := b.view()
		return v.Freeze != nil || v.Meta.EpochBase > before.Meta.EpochBase
	})
	b.eventually("etcd is reconciled", func() bool { v := b.view(); return v.Held() == "" })
	for name, g := range b.view().Groups {
		target := b.view().Targets[name].Shards
		if len(g.Members) != 3 || !slices.ContainsFunc(g.Members, func(m placement.Member) bool {
			return m.Shard == "" || m.Shard == "d"
		}) {
			t.Errorf("group %s: %+v, its copy on d is forgotten", name, g.Members)
		}
		if len(target) > 0 {
			t.Errorf("group %s is wanted on %v only, while nobody knows where a copy is", name, target)
		}
	}
	b.eventually("the others serve", func() bool { b.put(100, data(100, 200)); return true })
	b.run("d")
	after := b.on("b", "c", "d")
	for name, g := range after.Groups {
		if !sameMembersOf(g, before.Groups[name]) {
			t.Errorf("group %s: members %+v, were %+v", name, g.Members, before.Groups[name].Members)
		}
	}
	if groups, trash := b.folders("d"); groups != hash4.Groups || trash != 0 {
		t.Errorf("d has %d groups, and %d in its trash", groups, trash)
	}
	b.filled(12, 200)
	b.eventually("all is planned as it is", func() bool { return b.plan() == nil })
	b.on("b", "c", "d")
	if _, trash := b.folders("d"); trash != 0 {
		t.Errorf("d has %d copies in its trash", trash)
	}
}

// A shard's volume records the revision of etcd even if no write to etcd concerned the shard. The shard therefore
// notices when it starts on an older etcd.
func TestRule9_AVolumeRemembersEtcdThoughNothingConcernsIt(t *testing.T) {
	t.Parallel()
	b := newBackedUp(t, 1, "a")
	b.aimAll("a")
	b.on("a")
	b.quiet = 10 * time.Millisecond
	b.run("b")
	backup := b.etcd.Backup()
	last := b.view().Groups[placement.GroupName(0)]
	for range 10 {
		last.Bytes++
		var err error
		if last, err = b.store.PutGroup(t.Context(), last); err != nil {
			b.eventually("the group is read again", func() bool {
				last, err = b.store.Group(t.Context(), last.Name)
				return err == nil
			})
		}
	}
	cfg := b.shards["b"].cfg
	b.eventually("the volume of b remembers it", func() bool {
		facts, err := volume.ReadFacts(cfg.FS, cfg.Dir)
		return err == nil && facts.EtcdRevision >= last.Revision
	})
	b.kill("a")
	b.kill("b")
	b.etcd.Stop()
	b.etcd.Restore(backup)
	b.run("b")
	b.eventually("b has frozen etcd", func() bool { return b.view().Freeze != nil })
}
