package shard

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"net"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/uuid"
	byterate "golang.org/x/time/rate"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"

	"sheaf.dev/sheaf/client/call/reason"
	"sheaf.dev/sheaf/client/recordv1"
	"sheaf.dev/sheaf/internal/archive/bucket"
	"sheaf.dev/sheaf/internal/archive/object"
	"sheaf.dev/sheaf/internal/archive/reader"
	"sheaf.dev/sheaf/internal/archive/restore"
	"sheaf.dev/sheaf/internal/local/restoresource"
	"sheaf.dev/sheaf/internal/placement"
	"sheaf.dev/sheaf/internal/shard/member"
	"sheaf.dev/sheaf/internal/storage/group/format"
	"sheaf.dev/sheaf/internal/test/archivetest"
	"sheaf.dev/sheaf/internal/test/vfstest"
)

// archiveSource is the source of a restore. A test may replace the process.
type archiveSource struct {
	t       *bubble
	address string
	bucket  bucket.Bucket
	archive uuid.UUID // store in the archive
	store   uuid.UUID // new store
	at      time.Time
	limiter *byterate.Limiter
	log     slog.Handler // of the source; nil for none

	server *grpc.Server
}

// start replaces the source process by a new one, which reads the archive again.
func (s *archiveSource) start() *restore.Restore {
	s.t.Helper()
	s.stop()
	a, err := reader.Open(s.t.Context(), s.bucket, s.archive, nil)
	must(s.t, err)
	r, err := restore.New(s.t.Context(), a, s.store, s.at)
	must(s.t, err)
	log := s.log
	if log == nil {
		log = slog.DiscardHandler
	}
	s.server = restoresource.NewServer(restoresource.Options{Restore: r, Limiter: s.limiter, Logger: slog.New(log)}, nil)
	l, err := s.t.network.Listen(s.t.Context(), s.address)
	must(s.t, err)
	go func(server *grpc.Server, l net.Listener) { _ = server.Serve(l) }(s.server, l)
	return r
}

func (s *archiveSource) stop() {
	if s.server != nil {
		s.server.Stop()
		s.server = nil
	}
}

// restored is a cluster whose groups are restored from an archive that archivetest.Sample has written. Its groups are
// alpha, beta and delta.
type restored struct {
	*cluster
	bucket *archivetest.Memory
	model  *archivetest.Writer
	source *archiveSource
	groups map[string]*archivetest.Group
}

// Sizes of the blobs in an archive. A limited source sends a large blob for several seconds, so that a test can
// intervene. All other tests restore small blobs, because blobs take most of the processor time.
const (
	smallBlobs = 1 << 10
	largeBlobs = 3 << 20
)

// newRestored creates the store and its source, but no shard. The target of each group is shard a.
func newRestored(t *bubble, blobBytes int) *restored {
	b := archivetest.NewMemory()
	model := archivetest.Sample(t, b, object.Key{}, blobBytes)
	r := &restored{bucket: b, model: model, groups: map[string]*archivetest.Group{}}
	r.cluster = &cluster{t: t, registry: newRegistry(named, ""), shards: map[string]*fixture{},
		stopped: map[string]*fixture{}}
	store := r.registry.now().Meta.StoreUUID
	r.source = &archiveSource{t: t, address: "source:1", bucket: b, archive: model.Store, store: store, at: model.Now()}
	for _, g := range r.model.Groups {
		if !g.Gone {
			r.groups[g.Name] = g
		}
	}
	r.registry.change(func(v *placement.View) {
		v.Meta.Restore = &placement.Restore{Source: r.source.address}
		for name, g := range r.groups {
			v.Groups[name] = placement.Group{Name: name, UUID: restore.GroupUUID(store, g.UUID), Restoring: true}
		}
	})
	r.aimAll("a")
	t.Cleanup(r.source.stop)
	return r
}

// aimAll sets the target of all groups.
func (r *restored) aimAll(shards ...string) {
	r.registry.change(func(v *placement.View) {
		for name := range r.groups {
			v.Targets[name] = placement.Target{Group: name, Shards: shards, Revision: int64(v.Epoch)}
		}
	})
}

// only leaves out all groups but one.
func (r *restored) only(name string) {
	r.registry.change(func(v *placement.View) {
		v.Groups = map[string]placement.Group{name: v.Groups[name]}
		v.Targets = map[string]placement.Target{name: v.Targets[name]}
	})
	r.groups = map[string]*archivetest.Group{name: r.groups[name]}
}

// begin starts a shard without waiting until it has loaded anything.
func (r *restored) begin(name string, change func(*Config)) *fixture {
	r.t.Helper()
	return r.add(name, func(c *Config) {
		c.Logger = slog.New(slog.NewTextHandler(testWriter{r.t}, &slog.HandlerOptions{Level: slog.LevelDebug})).
			With("shard", name)
		if change != nil {
			change(c)
		}
	})
}

// reported waits until the given shards are the members of a group, according to etcd.
func (r *restored) reported(group string, shards ...string) {
	r.t.Helper()
	r.eventually("group "+group+" is on "+strings.Join(shards, ", "), func() bool {
		return slices.Equal(r.membersOn(group), shards) && !r.registry.now().Groups[group].Restoring
	})
}

// same checks that the leader of a group has exactly the records of the model, and that it accepts writes.
func (r *restored) same(name string) {
	r.t.Helper()
	g := r.groups[name]
	want := g.State(g.Through())
	for id, w := range want {
		r.call(func(f *fixture) error {
			key := &recordv1.RecordKey{Id: id, Group: name}
			got, err := f.records.Get(f.ctx(), &recordv1.GetRequest{Key: key, MetadataOnly: true})
			if err != nil {
				return err
			}
			record := got.GetRecord()
			data, err := f.downloaded(key)
			if err != nil {
				return err
			}
			attributes, err := format.EncodeAttributes(record.GetAttributes())
			must(f.t, err)
			if string(data) != string(w.Data) || record.GetCommitTimeUnixNs() != w.Entry.CommitTime ||
				record.GetTimestampUnixNs() != w.Entry.Timestamp ||
				len(w.Entry.Attributes) > 0 && string(attributes) != string(w.Entry.Attributes) {
				f.t.Errorf("%s, record %d: %v, %d bytes, want %s", name, id, record, len(data), w)
			}
			return nil
		})
	}
	r.call(func(f *fixture) error {
		out, err := f.records.Put(f.ctx(), &recordv1.PutRequest{Key: &recordv1.RecordKey{Id: 1 << 40, Group: name},
			Data: []byte("new")})
		if err == nil && out.GetVersion() == "" {
			f.t.Error("a write has no version")
		}
		return err
	})
	r.eventually("the records are counted", func() bool {
		for _, f := range r.shards {
			out, err := f.admin.ListGroups(f.ctx(), &recordv1.ListGroupsRequest{Group: name})
			if err != nil {
				continue // the group is not on this shard
			}
			for _, row := range out.GetGroups() {
				if row.GetRecords() == int64(len(want))+1 {
					return true
				}
			}
		}
		return false
	})
}

// downloaded returns the data of a record of any size.
func (f *fixture) downloaded(key *recordv1.RecordKey) (data []byte, err error) {
	stream, err := f.records.Download(f.ctx(), &recordv1.DownloadRequest{Key: key})
	if err != nil {
		return nil, err
	}
	for {
		part, err := stream.Recv()
		if errors.Is(err, io.EOF) {
			return data, nil
		}
		if err != nil {
			return nil, err
		}
		data = append(data, part.GetChunk().GetData()...)
	}
}

// problem returns the problems of a shard that contain all of the given words.
func (f *fixture) problem(words ...string) string {
	var found []string
	for _, one := range f.shard.problems.Words() {
		if !slices.ContainsFunc(words, func(word string) bool { return !strings.Contains(one, word) }) {
			found = append(found, one)
		}
	}
	return strings.Join(found, "; ")
}

// Groups are restored into one shard, and then get their other copies. A restart finds everything again.
func TestRestoredGroupsGetTheirCopies(t *testing.T) {
	t.Parallel()
	inBubble(t, func(t *bubble) {
		r := newRestored(t, smallBlobs)
		r.source.start()
		for _, name := range abc {
			r.begin(name, nil)
		}
		for name, g := range r.groups {
			r.reported(name, "a")
			r.same(name)
			sv := r.shards["a"].shard.replicas.Find(r.registry.now().Groups[name].UUID).Served()
			if at := sv.Replica().Status().AppliedIndex; at <= g.Through()+1<<32 {
				t.Errorf("%s: index %d does not follow the jump", name, at)
			}
		}
		r.aimAll("b", "c", "a")
		for name := range r.groups {
			r.reported(name, abc...)
		}
		for _, name := range abc {
			r.kill(name)
			for group := range r.groups {
				r.same(group)
			}
			r.restart(name)
		}
		for _, f := range r.shards {
			if words := f.shard.problems.Words(); len(words) > 0 {
				t.Errorf("%s: %q", f.cfg.Name, words)
			}
		}
	})
}

// The power of a shard fails after each operation on its disk while it restores a group. The group is never served
// empty, and the shard restores it when it is started again.
func TestAPowerCutAtEachStepOfARestore(t *testing.T) {
	t.Parallel()
	inBubble(t, func(t *bubble) {
		steps := 0
		for n, cut := int64(1), true; cut; n++ {
			t.Run("", func(t *bubble) { cut = powerFails(t, n) })
			if cut {
				steps++
			}
		}
		if steps < 20 {
			t.Errorf("only %d steps", steps)
		}
	})
}

// powerFails restores a group, and cuts the power of the shard after n operations. It returns false if the group was
// restored by then.
func powerFails(t *bubble, n int64) (cut bool) {
	r := newRestored(t, smallBlobs)
	r.only("delta")
	r.aimAll()
	r.source.start()
	mem := vfstest.NewMem()
	quiet := func(c *Config) { c.FS, c.Logger = mem, slog.New(slog.DiscardHandler) }
	a := r.begin("a", quiet)
	mem.CrashAfter(mem.OpCount() + n)
	r.aimAll("a")
	for !mem.Crashed() && a.shard.replicas.Routes().ByName["delta"] == nil {
		time.Sleep(time.Millisecond)
	}
	if cut = mem.Crashed(); !cut {
		return false
	}
	r.kill("a")
	if g := r.registry.now().Groups["delta"]; g.Restoring == (len(g.Members) > 0) {
		t.Errorf("step %d: etcd has %+v", n, g)
	}
	mem = mem.CrashClone(vfstest.Survival{})
	r.shards["a"] = r.stopped["a"].again(quiet)
	r.reported("delta", "a")
	r.same("delta")
	return true
}

// If the source or the shard is killed in the middle of a group, the next attempt continues with what is there.
func TestARestoreContinuesAfterKills(t *testing.T) {
	t.Parallel()
	inBubble(t, func(t *bubble) {
		r := newRestored(t, largeBlobs)
		r.source.limiter = byterate.NewLimiter(256<<10, 512<<10)
		r.source.start()
		a := r.begin("a", nil)
		progress := func() (done int64) {
			for _, m := range a.shard.copies() {
				for _, c := range m.GetCopies() {
					if m.GetGroup() == "alpha" && c.GetFrom() == "source:1" {
						done = c.GetBytesDone()
					}
				}
			}
			return done
		}
		for n := range int64(3) {
			r.eventually(fmt.Sprintf("part %d of alpha is here", n), func() bool { return progress() > (n+1)<<19 })
			_, err := a.records.Get(a.ctx(), &recordv1.GetRequest{Key: &recordv1.RecordKey{Id: 3, Group: "alpha"}})
			want(t, err, codes.Unavailable, reason.GroupLoading)
			if n > 0 && retryAfter(err) <= 0 {
				t.Errorf("a call is told nothing about the time that is left: %v", err)
			}
			if n%2 == 0 {
				r.source.stop()
				r.eventually("the shard says that the source is away", func() bool {
					return a.problem("the source of the restore", "source:1", "Unavailable") != ""
				})
				r.source.start()
				r.eventually("the problem ends", func() bool { return a.problem("the source of the restore") == "" })
				continue
			}
			r.kill("a")
			r.restart("a")
			a = r.shards["a"]
			r.eventually("it continues", func() bool { return progress() > (n+1)<<19 })
		}
		for name := range r.groups {
			r.reported(name, "a")
			r.same(name)
		}
	})
}

// A group that cannot be restored is named, and never created. The others serve. When the archive is repaired, the
// group is restored.
func TestAGroupThatCannotBeRestoredIsNamed(t *testing.T) {
	t.Parallel()
	inBubble(t, func(t *bubble) {
		r := newRestored(t, smallBlobs)
		var blob string
		for _, name := range r.bucket.Names() {
			if strings.Contains(name, r.groups["alpha"].UUID.String()+"/blob/") {
				blob = name
			}
		}
		whole := r.bucket.Get(blob)
		r.bucket.Set(blob, nil)
		r.source.start()
		a := r.begin("a", nil)
		for _, name := range []string{"beta", "delta"} {
			r.reported(name, "a")
			r.same(name)
		}
		r.eventually("the object is named", func() bool {
			return a.problem("restoring group alpha", blob[strings.LastIndex(blob, "/"):]) != ""
		})
		time.Sleep(10 * time.Minute)
		if g := r.registry.now().Groups["alpha"]; !g.Restoring || len(g.Members) > 0 ||
			a.problem("restoring group alpha") == "" || a.problem("the source of the restore:") != "" {
			t.Errorf("after ten minutes etcd has %+v, and the problems are %q", g, a.shard.problems.Words())
		}
		out, err := a.admin.ListGroups(a.ctx(), &recordv1.ListGroupsRequest{Group: "alpha"})
		must(t, err)
		if row := out.GetGroups()[0]; row.GetState() != recordv1.GroupState_GROUP_STATE_LOADING ||
			!strings.Contains(row.GetMessage(), "cannot be restored") {
			t.Errorf("the row of the group is %v", row)
		}
		if n := r.bucket.Opens(); n > 1000 {
			t.Errorf("the archive was read %d times within ten minutes", n)
		}
		r.bucket.Set(blob, whole)
		time.Sleep(16 * time.Minute) // the longest pause is 10 minutes, plus half of that by chance
		r.reported("alpha", "a")
		r.same("alpha")
		if words := a.shard.problems.Words(); len(words) > 0 {
			t.Errorf("problems remain: %q", words)
		}
	})
}

// A source that serves another restore is named, and nothing is installed from it. When etcd names the right source,
// the groups are restored.
func TestASourceOfAnotherRestoreIsNamed(t *testing.T) {
	t.Parallel()
	inBubble(t, func(t *bubble) {
		r := newRestored(t, smallBlobs)
		other := &archiveSource{t: t, address: "other:1", bucket: r.bucket, archive: r.model.Store, store: uuid.New(),
			at: r.model.Now()}
		t.Cleanup(other.stop)
		other.start()
		r.source.start()
		to := func(address string) {
			r.registry.change(func(v *placement.View) { v.Meta.Restore = &placement.Restore{Source: address} })
		}
		to("other:1")
		a := r.begin("a", nil)
		r.eventually("the store of the other restore is named", func() bool {
			return a.problem("the source of the restore", other.store.String(), "restore.source") != ""
		})
		to(a.shard.Addr()) // another process has the address
		r.eventually("the other process is named", func() bool {
			return a.problem("the source of the restore", a.shard.Addr(), "restore.source") != ""
		})
		for name, g := range r.registry.now().Groups {
			if !g.Restoring || len(g.Members) > 0 {
				t.Errorf("%s: %+v", name, g)
			}
		}
		to("source:1")
		for name := range r.groups {
			r.reported(name, "a")
			r.same(name)
		}
		if words := a.shard.problems.Words(); len(words) > 0 {
			t.Errorf("problems remain: %q", words)
		}
	})
}

// If etcd names no source, or is still being told the groups, a group that must be restored is neither created nor
// installed.
func TestWithoutASourceNothingIsRestored(t *testing.T) {
	t.Parallel()
	inBubble(t, func(t *bubble) {
		r := newRestored(t, smallBlobs)
		r.source.start()
		r.registry.change(func(v *placement.View) { v.Meta.Restore = nil })
		a := r.begin("a", nil)
		r.eventually("the problem is named", func() bool {
			return a.problem("group alpha", "names no source", "restore.source") != ""
		})
		r.registry.change(func(v *placement.View) {
			v.Meta.Restore = &placement.Restore{Source: "source:1", Listing: true}
			v.Groups["new"] = placement.Group{Name: "new", UUID: uuid.New()}
			v.Targets["new"] = placement.Target{Group: "new", Shards: []string{"a"}}
		})
		time.Sleep(time.Minute)
		for name, g := range r.registry.now().Groups {
			if len(g.Members) > 0 || a.shard.replicas.Find(g.UUID) != nil {
				t.Errorf("%s: %+v", name, g)
			}
		}
		if words := a.shard.problems.Words(); len(words) > 0 {
			t.Errorf("problems while the groups are listed: %q", words)
		}
		r.registry.change(func(v *placement.View) { v.Meta.Restore = &placement.Restore{Source: "source:1"} })
		for name := range r.groups {
			r.reported(name, "a")
			r.same(name)
		}
		r.reported("new", "a")
	})
}

// If the target changes while a shard installs a group, that shard ends its install and removes what it has. The shard
// that the target names then restores the group.
func TestTheTargetChangesInTheMiddleOfARestore(t *testing.T) {
	t.Parallel()
	inBubble(t, func(t *bubble) {
		r := newRestored(t, largeBlobs)
		r.source.limiter = byterate.NewLimiter(256<<10, 512<<10)
		r.source.start()
		a := r.begin("a", nil)
		r.begin("b", nil)
		r.eventually("a fetches", func() bool {
			for _, m := range a.shard.copies() {
				if m.GetBytesDone() > 1<<20 {
					return true
				}
			}
			return false
		})
		r.registry.change(func(v *placement.View) { v.Targets = map[string]placement.Target{} })
		time.Sleep(time.Minute)
		if n := len(a.shard.replicas.All()); n != len(r.groups) {
			t.Errorf("without a target, %d of %d folders are there", n, len(r.groups))
		}
		r.aimAll("b")
		for name := range r.groups {
			r.reported(name, "b")
			r.same(name)
		}
		r.eventually("a has nothing", func() bool { return len(a.shard.replicas.All()) == 0 })
		folders, err := a.shard.volume.Groups()
		if err != nil || len(folders) > 0 || a.problem("restor") != "" {
			t.Errorf("folders %v, %v, problems %q", folders, err, a.shard.problems.Words())
		}
	})
}

// heldRegistry is the registry as one shard sees it. Reports of groups wait until they are released.
type heldRegistry struct {
	*memRegistry
	waiting chan string
	release chan struct{}
}

func (h *heldRegistry) PutGroup(ctx context.Context, g placement.Group) (placement.Group, error) {
	if len(g.Members) == 1 && g.Term == 0 {
		select {
		case h.waiting <- g.Name:
		default:
		}
		select {
		case <-h.release:
		case <-ctx.Done():
			return g, ctx.Err()
		}
	}
	return h.memRegistry.PutGroup(ctx, g)
}

// If two shards have installed a group, the first one to report it has it. The replica of the other one has served no
// call, and never claims to be a member, not even after a restart or with a later membership.
func TestTwoShardsInstallAGroup(t *testing.T) {
	t.Parallel()
	for _, first := range []string{"a", "b"} {
		for _, restarts := range []bool{false, true} {
			inBubble(t, func(t *bubble) { twoShardsInstall(t, first, restarts) })
		}
	}
}

func twoShardsInstall(t *bubble, first string, restarts bool) {
	r := newRestored(t, smallBlobs)
	r.only("beta")
	r.source.start()
	held := map[string]*heldRegistry{}
	id, ids := r.registry.now().Groups["beta"].UUID, map[string]uint64{}
	for _, name := range []string{"a", "b"} {
		h := &heldRegistry{memRegistry: r.registry, waiting: make(chan string, 1), release: make(chan struct{})}
		held[name] = h
		r.aimAll(name)
		f := r.begin(name, func(c *Config) { c.Placement = h })
		<-h.waiting
		ids[name] = f.shard.replicas.Find(id).State().RaftID
		_, err := f.records.Get(f.ctx(), &recordv1.GetRequest{Key: &recordv1.RecordKey{Id: 12, Group: "beta"}})
		want(t, err, codes.Unavailable, reason.GroupLoading)
		facts, err := f.admin.DescribeVolume(f.ctx(), &recordv1.DescribeVolumeRequest{})
		if must(t, err); len(facts.GetGroups()) != 1 || !facts.GetGroups()[0].GetJoining() {
			t.Errorf("a replica that nobody has reported counts: %v", facts.GetGroups())
		}
		// The archive grows, so that the second shard installs a later membership than the first one.
		r.groups["beta"].Empty()
		r.model.Log(r.groups["beta"])
		r.source.start()
	}
	if ids["a"] == ids["b"] {
		t.Errorf("two founders have the Raft id %x", ids["a"])
	}
	last := map[string]string{"a": "b", "b": "a"}[first]
	r.registry.mu.Lock()
	r.registry.changed = func(v placement.View) {
		if member.Names(v.Groups["beta"], ids[last]) {
			t.Errorf("the second shard claims to be a member: %+v", v.Groups["beta"])
		}
	}
	r.registry.mu.Unlock()
	r.aimAll(first)
	close(held[first].release)
	r.reported("beta", first)
	r.same("beta")
	if restarts {
		r.kill(last)
		r.stopped[last].cfg.Placement = r.registry
		r.restart(last)
	}
	close(held[last].release)
	r.eventually("the other replica leaves", func() bool { return r.shards[last].shard.replicas.Find(id) == nil })
	time.Sleep(time.Minute)
	r.reported("beta", first)
	r.aimAll(first, last)
	r.reported("beta", "a", "b")
	r.same("beta")
	for _, f := range r.shards {
		if words := f.shard.problems.Words(); len(words) > 0 {
			t.Errorf("%s: %q", f.cfg.Name, words)
		}
	}
}

// A founder was reported, and its volume could not record that etcd lists it. If etcd is set back then, the volume
// records it as soon as it can, also after a restart. Otherwise the freeze would wait for ever for a volume that has
// the group.
func TestAFounderIsSettledWhileEtcdIsSetBack(t *testing.T) {
	t.Parallel()
	for _, restarts := range []bool{false, true} {
		inBubble(t, func(t *bubble) {
			r := newRestored(t, smallBlobs)
			r.only("beta")
			r.source.start()
			faulty, fails := failsToSettle(r)
			a := r.begin("a", func(c *Config) { c.FS = faulty })
			r.reported("beta", "a")
			r.eventually("the problem is named", func() bool {
				return a.problem("group beta", "recording on the volume") != ""
			})
			if restarts {
				r.kill("a")
			}
			r.registry.change(func(v *placement.View) { v.Freeze = &placement.Freeze{By: "shard b", Reason: "a test"} })
			if restarts {
				r.restart("a")
				a = r.shards["a"]
			}
			time.Sleep(time.Minute)
			fails().Remove()
			r.eventually("the volume counts it", func() bool {
				facts, err := a.admin.DescribeVolume(a.ctx(), &recordv1.DescribeVolumeRequest{})
				must(t, err)
				return len(facts.GetGroups()) == 1 && !facts.GetGroups()[0].GetJoining()
			})
			r.same("beta")
		})
	}
}

// failsToSettle returns a disk on which no founder can be made a member after etcd has listed it, and a function that
// returns the fault.
func failsToSettle(r *restored) (*vfstest.Faulty, func() *vfstest.Fault) {
	id := r.registry.now().Groups["beta"].UUID
	faulty, fails := vfstest.NewFaulty(vfstest.NewMem()), (*vfstest.Fault)(nil)
	r.registry.changed = func(v placement.View) {
		if fails == nil && len(v.Groups["beta"].Members) > 0 {
			fails = faulty.Add(&vfstest.Fault{Match: func(op vfstest.Op) bool {
				return strings.Contains(op.Name, id.String()+"/replica"+format.TmpSuffix)
			}})
		}
	}
	return faulty, func() *vfstest.Fault { return fails }
}

// A founder that etcd lists serves only after its volume says so. Until then, the volume does not count it.
func TestAFounderServesWhenItsVolumeSaysThatItIsAMember(t *testing.T) {
	t.Parallel()
	inBubble(t, func(t *bubble) {
		r := newRestored(t, smallBlobs)
		r.only("beta")
		r.source.start()
		faulty, fails := failsToSettle(r)
		a := r.begin("a", func(c *Config) { c.FS = faulty })
		r.reported("beta", "a")
		r.eventually("the problem is named", func() bool { return a.problem("group beta", "recording on the volume") != "" })
		facts, err := a.admin.DescribeVolume(a.ctx(), &recordv1.DescribeVolumeRequest{})
		if must(t, err); len(facts.GetGroups()) != 1 || !facts.GetGroups()[0].GetJoining() {
			t.Errorf("the volume counts it: %v", facts.GetGroups())
		}
		_, err = a.records.Put(a.ctx(), &recordv1.PutRequest{Key: &recordv1.RecordKey{Id: 1, Group: "beta"},
			Data: []byte("early")})
		want(t, err, codes.Unavailable, reason.GroupLoading)
		fails().Remove()
		r.same("beta")
		facts, err = a.admin.DescribeVolume(a.ctx(), &recordv1.DescribeVolumeRequest{})
		if must(t, err); facts.GetGroups()[0].GetJoining() || a.problem("group beta") != "" {
			t.Errorf("the volume does not count it: %v", facts.GetGroups())
		}
	})
}

// If a person gives up the restore of a group while a shard installs it, the shard ends the install and removes what it
// has. The group of the same name that takes its place is created empty.
func TestAGroupIsGivenUpInTheMiddleOfARestore(t *testing.T) {
	t.Parallel()
	inBubble(t, func(t *bubble) {
		r := newRestored(t, largeBlobs)
		r.only("alpha")
		r.source.limiter = byterate.NewLimiter(256<<10, 512<<10)
		r.source.start()
		a := r.begin("a", nil)
		r.eventually("a fetches", func() bool {
			for _, m := range a.shard.copies() {
				if m.GetBytesDone() > 1<<20 {
					return true
				}
			}
			return false
		})
		old := r.registry.now().Groups["alpha"].UUID
		r.registry.change(func(v *placement.View) {
			v.Groups["alpha"] = placement.Group{Name: "alpha", UUID: uuid.New()}
		})
		time.Sleep(time.Second) // the rest of the group would take several seconds
		if a.shard.replicas.Find(old) != nil {
			t.Errorf("the install goes on: %v", a.shard.copies())
		}
		r.reported("alpha", "a")
		if words := a.shard.problems.Words(); len(words) > 0 {
			t.Errorf("problems remain: %q", words)
		}
	})
}

// If a person gives up the restore of a group while the shard that was installing it is down, the shard removes what it
// has when it starts again. The folder does not show the name of the group, and etcd has no group with its UUID. A
// founder of a group whose restore was not given up continues.
func TestAGroupIsGivenUpWhileItsShardIsDown(t *testing.T) {
	t.Parallel()
	for _, to := range []string{"a", "b"} {
		inBubble(t, func(t *bubble) {
			r := newRestored(t, largeBlobs)
			r.source.limiter = byterate.NewLimiter(256<<10, 512<<10)
			r.source.start()
			a := r.begin("a", nil)
			r.eventually("a has folders of all groups", func() bool { return len(a.shard.replicas.All()) == 3 })
			r.source.stop()
			r.kill("a")
			old := r.registry.now().Groups["alpha"].UUID
			r.registry.change(func(v *placement.View) {
				v.Groups["alpha"] = placement.Group{Name: "alpha", UUID: uuid.New()}
				v.Targets["alpha"] = placement.Target{Group: "alpha", Shards: []string{to}, Revision: int64(v.Epoch)}
			})
			r.restart("a")
			a = r.shards["a"]
			r.eventually("the founder has left", func() bool {
				_, err := a.cfg.FS.Stat(a.shard.volume.GroupDir(old))
				return a.shard.replicas.Find(old) == nil && errors.Is(err, fs.ErrNotExist)
			})
			if n := len(r.registry.now().Groups); n != 3 || to == "b" && len(a.shard.replicas.All()) != 2 {
				t.Errorf("%d groups, %d of them here", n, len(a.shard.replicas.All()))
			}
			r.source.start()
			for _, name := range []string{"beta", "delta"} {
				r.reported(name, "a")
				r.same(name)
			}
			if words := a.shard.problems.Words(); len(words) > 0 {
				t.Errorf("problems remain: %q", words)
			}
		})
	}
}

// receivedGroups is the log of a source. It notes the groups that shards have received, in order.
type receivedGroups struct {
	slog.Handler
	mu  *sync.Mutex
	all *[]string // UUIDs
	of  string
}

func (h receivedGroups) WithAttrs(attrs []slog.Attr) slog.Handler {
	for _, a := range attrs {
		if a.Key == "group" {
			h.of = a.Value.String()
		}
	}
	return h
}

func (receivedGroups) Enabled(context.Context, slog.Level) bool { return true }

func (h receivedGroups) Handle(_ context.Context, record slog.Record) error {
	if record.Message == "a shard has received a group" {
		h.mu.Lock()
		defer h.mu.Unlock()
		*h.all = append(*h.all, h.of)
	}
	return nil
}

// A shard installs the groups that come first before its others, in the order that the restore gives.
func TestGroupsThatComeFirstAreRestoredFirst(t *testing.T) {
	t.Parallel()
	for _, first := range [][]string{{"alpha"}, {"beta"}, {"delta"}, {"delta", "alpha"}, {"alpha", "beta"},
		{"gone", "beta", "delta", "alpha"}, {"alpha", "delta", "beta"}} {
		inBubble(t, func(t *bubble) {
			r := newRestored(t, smallBlobs)
			log := receivedGroups{Handler: slog.DiscardHandler, mu: &sync.Mutex{}, all: &[]string{}}
			r.source.log = log
			r.source.start()
			r.registry.change(func(v *placement.View) {
				v.Meta.Restore = &placement.Restore{Source: r.source.address, First: first}
			})
			r.begin("a", func(c *Config) { c.Logger = slog.New(slog.DiscardHandler) })
			for name := range r.groups {
				r.reported(name, "a")
			}
			var got []string
			for _, id := range *log.all {
				for name, g := range r.registry.now().Groups {
					if g.UUID.String() == id {
						got = append(got, name)
					}
				}
			}
			want := slices.DeleteFunc(slices.Clone(first), func(name string) bool { return r.groups[name] == nil })
			if len(got) != len(r.groups) || !slices.Equal(got[:len(want)], want) {
				t.Errorf("first are %q, and the order is %q", first, got)
			}
		})
	}
}

// The first group is restored alone, and the others at the same time.
func TestGroupsAreRestoredAtTheSameTime(t *testing.T) {
	t.Parallel()
	inBubble(t, func(t *bubble) {
		r := newRestored(t, smallBlobs)
		var mu sync.Mutex
		reading := map[string]int{} // number of objects that are being read, by group
		together := 0               // greatest number of groups that were read at the same time
		first := ""                 // group that was read first
		early := false              // another one was read at the same time
		r.source.start()
		r.bucket.OnOpen = func(name string, _ int, content []byte) (io.Reader, error) {
			for group, g := range r.groups {
				if !strings.Contains(name, g.UUID.String()) {
					continue
				}
				mu.Lock()
				first = cmp.Or(first, group)
				early = early || group != first && reading[first] > 0
				reading[group]++
				together = max(together, len(reading))
				mu.Unlock()
				time.Sleep(time.Second)
				mu.Lock()
				if reading[group]--; reading[group] == 0 {
					delete(reading, group)
				}
				mu.Unlock()
			}
			return bytes.NewReader(content), nil
		}
		r.begin("a", nil)
		for name := range r.groups {
			r.reported(name, "a")
			r.same(name)
		}
		if together != 2 || early {
			t.Errorf("%d groups were read at the same time; one of them while %s was, the first one: %t", together, first, early)
		}
	})
}

// The bucket was away for an hour. When it answers again, every group is restored within a minute, both if it did not
// answer at all, and if it refused the objects of all groups. Meanwhile, the problem is named, and a bucket that is
// away is asked by one group of the shard at a time.
func TestARestoreGoesOnWhenTheBucketIsBack(t *testing.T) {
	t.Parallel()
	for _, whole := range []bool{true, false} {
		inBubble(t, func(t *bubble) {
			r := newRestored(t, smallBlobs)
			var away atomic.Bool
			var asked atomic.Int64
			r.bucket.OnOpen = func(name string, _ int, content []byte) (io.Reader, error) {
				if away.Load() && (whole || !strings.HasSuffix(name, object.ArchiveName)) {
					asked.Add(1)
					return nil, errors.New("503 Slow Down")
				}
				return bytes.NewReader(content), nil
			}
			r.source.start()
			away.Store(true)
			a := r.begin("a", nil)
			time.Sleep(time.Hour)
			subject := map[bool]string{true: "the source of the restore", false: "restoring group alpha"}[whole]
			if words := a.problem(subject, "503 Slow Down"); words == "" {
				t.Errorf("not named: %q", a.shard.problems.Words())
			}
			if n := asked.Load(); n < 60 || n > 6000 {
				t.Errorf("the bucket was asked %d times within an hour", n)
			}
			away.Store(false)
			back := time.Now()
			for name := range r.groups {
				r.reported(name, "a")
				r.same(name)
			}
			if took := time.Since(back); took > time.Minute {
				t.Errorf("it took %v until the groups were restored", took)
			}
			if words := a.shard.problems.Words(); len(words) > 0 {
				t.Errorf("problems remain: %q", words)
			}
		})
	}
}

// The bucket does not let the source read one object, although it answers. The group of that object is named, and waits
// until other groups have been installed. When the object can be read, the group is restored.
func TestAGroupThatCannotBeReadLetsOthersGoFirst(t *testing.T) {
	t.Parallel()
	inBubble(t, func(t *bubble) {
		r := newRestored(t, smallBlobs)
		var blob string
		for _, name := range r.bucket.Names() {
			if strings.Contains(name, r.groups["alpha"].UUID.String()+"/blob/") {
				blob = name
			}
		}
		var denied atomic.Int64 // number of times that the object was asked for
		var readable atomic.Bool
		r.bucket.OnOpen = func(name string, _ int, content []byte) (io.Reader, error) {
			if name == blob && !readable.Load() {
				denied.Add(1)
				return nil, errors.New("AccessDenied: " + name)
			}
			return bytes.NewReader(content), nil
		}
		r.source.start()
		r.aimAll()
		a := r.begin("a", nil)
		r.registry.change(func(v *placement.View) {
			v.Meta.Restore = &placement.Restore{Source: r.source.address, First: []string{"alpha"}}
			v.Targets["alpha"] = placement.Target{Group: "alpha", Shards: []string{"a"}, Revision: int64(v.Epoch)}
		})
		r.eventually("alpha has its turn", func() bool { return denied.Load() > 0 })
		r.aimAll("a")
		for _, name := range []string{"beta", "delta"} {
			r.reported(name, "a")
			r.same(name)
		}
		r.eventually("the object is named", func() bool { return a.problem("restoring group alpha", "AccessDenied") != "" })
		before := denied.Load()
		time.Sleep(10 * time.Minute)
		if n := denied.Load() - before; n < 10 || n > 40 {
			t.Errorf("the object was asked for %d times within ten minutes", n)
		}
		if words := a.problem("the source of the restore: "); words != "" {
			t.Errorf("the source has a problem: %s", words)
		}
		readable.Store(true)
		time.Sleep(time.Minute) // longer than the longest pause
		r.reported("alpha", "a")
		r.same("alpha")
		if words := a.shard.problems.Words(); len(words) > 0 {
			t.Errorf("problems remain: %q", words)
		}
	})
}
