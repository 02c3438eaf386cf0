package shard

import (
	"fmt"
	"maps"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	"google.golang.org/grpc/codes"

	"sheaf.dev/sheaf/client/call/reason"
	"sheaf.dev/sheaf/client/recordv1"
	"sheaf.dev/sheaf/internal/placement"
	"sheaf.dev/sheaf/internal/placement/registry"
	"sheaf.dev/sheaf/internal/storage/group/format"
	"sheaf.dev/sheaf/internal/test/vfstest"
)

func TestGroupElsewhereIsWrongShard(t *testing.T) {
	t.Parallel()
	inBubble(t, func(t *bubble) {
		registry := newRegistry(hash4, "s1")
		registry.change(func(v *placement.View) {
			g := v.Groups["2"]
			g.Members = []placement.Member{{Shard: "s2", VolumeUUID: uuid.New(), RaftID: 1}}
			g.Leader = "s2"
			v.Groups["2"] = g
			delete(v.Targets, "2")
			v.Shards["s2"] = placement.Shard{Name: "s2", Address: "elsewhere:1"}
		})
		f := start(t, registry, nil).ready()
		id := idsOf(hash4, 2, 1)[0]
		_, err := f.records.Get(f.ctx(), &recordv1.GetRequest{Key: key(id)})
		want(t, err, codes.FailedPrecondition, reason.WrongShard)
		if a := metadataOf(err, "address"); a != "elsewhere:1" {
			t.Errorf("address %q", a)
		}
		if e := metadataOf(err, "routing_epoch"); e == "" || e == "0" {
			t.Errorf("routing epoch %q", e)
		}
	})
}

func TestGroupThatMovedAwayIsNotServedAndNotDeleted(t *testing.T) {
	t.Parallel()
	inBubble(t, func(t *bubble) {
		f := start(t, newRegistry(hash4, "s1"), nil).ready()
		id := idsOf(hash4, 2, 1)[0]
		f.put(id, []byte("x"))
		dir := f.shard.volume.GroupDir(f.registry.now().Groups["2"].UUID)
		members := f.registry.now().Groups["2"].Members
		f.registry.change(func(v *placement.View) {
			g := v.Groups["2"]
			g.Members = []placement.Member{{Shard: "s2", VolumeUUID: uuid.New(), RaftID: 1}}
			v.Groups["2"] = g
			delete(v.Targets, "2")
		})
		f.eventually("it is refused", func() bool {
			_, err := f.records.Get(f.ctx(), &recordv1.GetRequest{Key: key(id)})
			return reasonOf(err) == reason.WrongShard
		})
		check := func() {
			t.Helper()
			// A shard that has just started may not have received a view yet.
			f.eventually("it is a stray", func() bool {
				st := f.shard.Status()
				return len(st.Strays) == 1 && st.Strays[0].Group == "2" && len(st.Groups) == 3
			})
			if _, err := f.cfg.FS.Stat(dir); err != nil {
				t.Errorf("its folder: %v", err)
			}
		}
		check()
		f.shard.Kill()
		f.again(nil)
		check()
		// When etcd lists the shard as a member again, the shard serves the group again.
		f.registry.change(func(v *placement.View) {
			g := v.Groups["2"]
			g.Members = members
			v.Groups["2"] = g
		})
		f.eventually("it serves again", func() bool {
			_, err := f.records.Get(f.ctx(), &recordv1.GetRequest{Key: key(id)})
			return err == nil
		})
	})
}

func TestGroupThatEtcdDoesNotKnowIsReported(t *testing.T) {
	t.Parallel()
	inBubble(t, func(t *bubble) {
		registry := newRegistry(named, "s1", "a", "b")
		f := start(t, registry, nil).ready()
		f.stop()
		registry.change(func(v *placement.View) {
			delete(v.Groups, "b")
			delete(v.Targets, "b")
		})
		f.again(nil).ready()
		if st := f.shard.Status(); len(st.Strays) != 1 || st.Strays[0].Group != "b" || len(st.Groups) != 1 {
			t.Errorf("status: strays %+v, groups %+v", st.Strays, st.Groups)
		}
		_, err := f.records.Get(f.ctx(), &recordv1.GetRequest{Key: &recordv1.RecordKey{Group: "b"}})
		want(t, err, codes.NotFound, reason.GroupNotFound)
	})
}

// TestRule7_EmptyVolumeNeverServesWhatEtcdSaysItHolds checks two cases: the disk was replaced, or the folder of a
// group is missing.
func TestRule7_EmptyVolumeNeverServesWhatEtcdSaysItHolds(t *testing.T) {
	t.Parallel()
	inBubble(t, func(t *bubble) {
		for name, lose := range map[string]func(t *bubble, f *fixture){
			"another volume": func(t *bubble, f *fixture) { f.cfg.Dir = t.TempDir() },
			"folder removed": func(t *bubble, f *fixture) {
				removeFolder(t, f.cfg.FS, filepath.Join(f.cfg.Dir, "groups", f.registry.now().Groups["1"].UUID.String()))
			},
		} {
			t.Run(name, func(t *bubble) {
				f := start(t, newRegistry(hash4, "s1"), nil).ready()
				id := idsOf(hash4, 1, 1)[0]
				f.put(id, []byte("x"))
				f.stop()
				lose(t, f)
				f.again(nil)
				_, err := f.records.Get(f.ctx(), &recordv1.GetRequest{Key: key(id)})
				want(t, err, codes.DataLoss, reason.Damaged)
				_, err = f.records.Put(f.ctx(), &recordv1.PutRequest{Key: key(id), Data: []byte("y")})
				want(t, err, codes.DataLoss, reason.Damaged)
				list, err := f.admin.ListGroups(f.ctx(), &recordv1.ListGroupsRequest{})
				must(t, err)
				for _, g := range list.GetGroups() {
					if another := name == "another volume"; g.GetLost() != (another || g.GetGroup() == "1") {
						t.Errorf("AdminService says that group %s is lost: %t", g.GetGroup(), g.GetLost())
					}
				}
				for _, g := range f.shard.Status().Groups {
					if g.Group == "1" && (g.GetState().Word() != "Failed" || !strings.Contains(g.Message, "volume")) {
						t.Errorf("status of the lost group: %+v", g)
					}
				}
			})
		}
	})
}

func TestServesWhileEtcdIsDown(t *testing.T) {
	t.Parallel()
	inBubble(t, func(t *bubble) {
		f := start(t, newRegistry(hash4, "s1"), nil).ready()
		f.registry.setDown(true)
		f.put(1, data(1, 1<<20))
		f.holds(1, data(1, 1<<20))
		f.putEach(10, 1<<19)
		// The shard may report a second problem, because it cannot report its volume's step either.
		f.eventually("the failed report is a problem", func() bool {
			return strings.Contains(fmt.Sprint(f.shard.Status().GetShard().Problems), "reporting to etcd")
		})
		f.registry.setDown(false)
		f.eventually("the figures are reported, the problem is gone", func() bool {
			total := int64(0)
			for _, g := range f.registry.told("s1") {
				total += g.Records
			}
			return total > 0 && len(f.shard.Status().GetShard().Problems) == 0
		})
	})
}

func TestNewTargetIsCreatedAndReported(t *testing.T) {
	t.Parallel()
	inBubble(t, func(t *bubble) {
		registry := newRegistry(named, "s1")
		f := start(t, registry, nil)
		registry.change(func(v *placement.View) {
			g := placement.NewGroup(named, "quotes", 0)
			g.Revision = int64(v.Epoch)
			v.Groups["quotes"], v.Targets["quotes"] = g, placement.Target{Group: "quotes", Shards: []string{"s1"}}
		})
		f.ready()
		g := registry.now().Groups["quotes"]
		if len(g.Members) != 1 || g.Members[0].Shard != "s1" || g.Members[0].RaftID == 0 || g.Leader != "s1" ||
			g.Members[0].VolumeUUID != f.shard.volume.Superblock().Volume {
			t.Errorf("group in etcd: %+v", g)
		}
		// The size of a group is reported again only after it has changed.
		for id := range int64(30) {
			if _, err := f.records.Put(f.ctx(), &recordv1.PutRequest{Key: &recordv1.RecordKey{Id: id, Group: "quotes"},
				Data: make([]byte, 1<<20)}); err != nil {
				t.Fatal(err)
			}
		}
		f.eventually("its bytes are reported", func() bool { return registry.told("s1")["quotes"].Bytes > 28<<20 })
		registry.mu.Lock()
		puts := registry.puts
		registry.mu.Unlock()
		if puts > 32 {
			t.Errorf("%d writes to etcd for 30 puts", puts)
		}
	})
}

func TestCreatedGroupWhoseStateWasNotWrittenIsAnnounced(t *testing.T) {
	t.Parallel()
	inBubble(t, func(t *bubble) {
		registry := newRegistry(hash4, "s1")
		f := start(t, registry, nil).ready()
		f.put(1, []byte("x"))
		f.stop()
		// The state in etcd is now as if the shard had crashed after it created the folders and before it reported them.
		registry.change(func(v *placement.View) {
			for name, g := range v.Groups {
				g.Members, g.Leader = nil, ""
				v.Groups[name] = g
			}
		})
		f.again(nil).ready()
		f.holds(1, []byte("x"))
		f.eventually("etcd knows", func() bool {
			return !slices.ContainsFunc(slices.Collect(maps.Values(registry.now().Groups)), func(g placement.Group) bool {
				return len(g.Members) != 1
			})
		})
	})
}

func TestHalfMadeGroupIsMadeAnew(t *testing.T) {
	t.Parallel()
	inBubble(t, func(t *bubble) {
		registry := newRegistry(hash4, "s1")
		// Shard s0 initializes the volume. It gets no groups, because no target names it.
		f := start(t, registry, func(c *Config) { c.Name = "s0" })
		f.stop()
		dir := filepath.Join(f.cfg.Dir, "groups", registry.now().Groups["1"].UUID.String())
		must(t, f.cfg.FS.MkdirAll(dir))
		must(t, vfstest.Write(t, f.cfg.FS, filepath.Join(dir, format.SegmentName(1)), make([]byte, 100)).Close())
		registry.change(func(v *placement.View) {
			for name := range v.Targets {
				v.Targets[name] = placement.Target{Group: name, Shards: []string{"s0"}}
			}
		})
		f.again(nil).ready()
		id := idsOf(hash4, 1, 1)[0]
		f.put(id, []byte("x"))
		f.holds(id, []byte("x"))
		if st := f.shard.Status(); len(st.GetShard().Problems) > 0 || len(st.Strays) > 0 {
			t.Errorf("status %+v", st)
		}
	})
}

func TestOnlyChangesAreWorthAReport(t *testing.T) {
	known := registry.Weight{UUID: uuid.New(), Bytes: 100 << 20, Records: 5}
	for name, c := range map[string]struct {
		change func(w *registry.Weight)
		age    time.Duration
		want   bool
	}{
		"nothing":              {func(*registry.Weight) {}, time.Hour, false},
		"a little more":        {func(w *registry.Weight) { w.Bytes += 4 << 20 }, 10 * time.Second, false},
		"much more":            {func(w *registry.Weight) { w.Bytes += 6 << 20 }, 10 * time.Second, true},
		"much more, at once":   {func(w *registry.Weight) { w.Bytes += 6 << 20 }, time.Second, false},
		"much less":            {func(w *registry.Weight) { w.Bytes -= 6 << 20 }, 10 * time.Second, true},
		"a little more, later": {func(w *registry.Weight) { w.Bytes++ }, time.Hour, true},
		"a record, soon":       {func(w *registry.Weight) { w.Records++ }, 10 * time.Second, false},
		"a record, later":      {func(w *registry.Weight) { w.Records++ }, time.Hour, true},
		"everybody has more":   {func(w *registry.Weight) { w.Everywhere++ }, time.Hour, true},
		"another of its name":  {func(w *registry.Weight) { w.UUID = uuid.New() }, time.Hour, true},
	} {
		told, now := map[string]registry.Weight{"g": known, "left": known}, map[string]registry.Weight{"g": known}
		w := known
		c.change(&w)
		now["g"] = w
		if got := worthReporting(told, now, c.age, 3*time.Second); got != c.want {
			t.Errorf("%s: %v", name, got)
		}
	}
	if !worthReporting(nil, map[string]registry.Weight{"g": known}, time.Hour, time.Second) {
		t.Error("nothing was told yet")
	}
}

// If somebody exchanges the manifests or the folders of two groups, the status reports a problem, and neither group
// is served or deleted. When they have been put back, both groups are served again.
func TestExchangedGroupsAreNamed(t *testing.T) {
	t.Parallel()
	inBubble(t, func(t *bubble) {
		for what, words := range map[string]string{format.ManifestName: "was the manifest exchanged",
			"": "was the folder exchanged"} {
			f := start(t, newRegistry(hash4, "s1"), nil).ready()
			ids := []int64{idsOf(hash4, 0, 1)[0], idsOf(hash4, 1, 1)[0]}
			for _, id := range ids {
				f.put(id, data(id, 100))
			}
			f.stop()
			of := func(name string) string {
				return filepath.Join(f.cfg.Dir, "groups", f.registry.now().Groups[name].UUID.String(), what)
			}
			exchange := func() {
				for _, step := range [][2]string{{of("0"), f.cfg.Dir + ".tmp"}, {of("1"), of("0")}, {f.cfg.Dir + ".tmp", of("1")}} {
					must(t, f.cfg.FS.Rename(step[0], step[1]))
				}
			}
			exchange()
			f.again(nil)
			f.eventually("both are named", func() bool {
				named := 0
				for _, stray := range f.shard.Status().Strays {
					if strings.Contains(stray.Reason, words) {
						named++
					}
				}
				return named == 2
			})
			for _, id := range ids {
				_, err := f.records.Get(f.ctx(), &recordv1.GetRequest{Key: key(id)})
				if want(t, err, codes.FailedPrecondition, reason.GroupFailed); err == nil || !strings.Contains(err.Error(), words) {
					t.Errorf("a record of an exchanged group answers %v", err)
				}
			}
			f.stop()
			exchange()
			f.again(nil).ready()
			for _, id := range ids {
				f.holds(id, data(id, 100))
			}
			f.stop()
		}
	})
}
