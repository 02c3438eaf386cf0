package shard

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"maps"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"google.golang.org/grpc/codes"

	"sheaf.dev/sheaf/client/call/reason"
	"sheaf.dev/sheaf/client/recordv1"
	"sheaf.dev/sheaf/internal/placement"
	"sheaf.dev/sheaf/internal/status/page"
	"sheaf.dev/sheaf/internal/storage/group"
	"sheaf.dev/sheaf/internal/test/vfstest"
)

// damage flips a bit in the middle of the given bytes, which must occur in exactly one file of the group.
func (f *fixture) damage(groupName string, what []byte) {
	f.t.Helper()
	dir := filepath.Join(f.cfg.Dir, "groups", f.registry.now().Groups[groupName].UUID.String())
	hits := 0
	for _, name := range filesIn(f.t, f.cfg.FS, dir) {
		content := vfstest.Read(f.t, f.cfg.FS, name)
		if i := bytes.Index(content, what); i >= 0 {
			hits++
			content[i+len(what)/2] ^= 0x10
			file := vfstest.Write(f.t, f.cfg.FS, name, content)
			must(f.t, errors.Join(file.Sync(), file.Close()))
		}
	}
	if hits != 1 {
		f.t.Fatalf("the bytes were found in %d files", hits)
	}
}

func TestDamageHitsOnlyItsRecord(t *testing.T) {
	t.Parallel()
	inBubble(t, func(t *bubble) {
		residencies(t, func(t *bubble, f *fixture) {
			there := f.fill(120, 20_000)
			const hit = 13
			name := placement.GroupName(hash4.GroupOf(hit))
			f.stop()
			f.damage(name, there[hit])
			f.again(nil)

			_, err := f.records.Get(f.ctx(), &recordv1.GetRequest{Key: key(hit)})
			want(t, err, codes.DataLoss, reason.Damaged)
			if metadataOf(err, "group") != name || metadataOf(err, "segment") == "" || metadataOf(err, "offset") == "" {
				t.Errorf("the error names no place: %v", err)
			}
			for id, d := range there {
				if id != hit {
					f.holds(id, d)
				}
			}
			records, _, err := f.scan(&recordv1.ScanRequest{}, 0)
			want(t, err, codes.DataLoss, reason.Damaged)
			whole := map[int64][]byte{}
			for id, d := range there {
				if id != hit {
					whole[id] = d
				}
			}
			same(t, records, whole)
			f.scanResumedBehindDamageSaysSo(whole)

			out, err := f.admin.ListGroups(f.ctx(), &recordv1.ListGroupsRequest{Group: name})
			if err != nil || out.GetGroups()[0].GetState() != recordv1.GroupState_GROUP_STATE_DAMAGED ||
				len(out.GetGroups()[0].GetDamages()) == 0 {
				t.Errorf("list of the damaged group: %v, %v", out, err)
			}
			verified, err := f.admin.Verify(f.ctx(), &recordv1.VerifyRequest{Group: name, RateBytesPerSecond: 1 << 40})
			if err != nil || len(verified.GetDamages()) == 0 {
				t.Errorf("verify: %v, %v", verified, err)
			}
			// When a new version of the record is written, the record can be read again. The damage to the old version is still
			// reported, until somebody accepts the loss.
			f.put(hit, []byte("new"))
			f.holds(hit, []byte("new"))
			accepted, err := f.admin.AcceptLoss(f.ctx(), &recordv1.AcceptLossRequest{Group: name})
			if err != nil || len(accepted.GetDamages()) == 0 {
				t.Fatalf("accept loss: %v, %v", accepted, err)
			}
			f.eventually("it serves again", func() bool {
				_, err := f.records.Get(f.ctx(), &recordv1.GetRequest{Key: key(hit)})
				return err == nil
			})
			if records, _, err := f.scan(&recordv1.ScanRequest{}, 0); err != nil || len(records) != len(there) {
				t.Errorf("scan after the loss was accepted: %d records, %v", len(records), err)
			}
			f.put(hit, []byte("newer"))
			f.holds(hit, []byte("newer"))
			f.shard.Kill()
			f.again(nil)
			f.holds(hit, []byte("newer"))
			f.holdsAll(whole)
		})
	})
}

// scanResumedBehindDamageSaysSo interrupts a scan after each message, and resumes it with its cursor. At its end, the
// scan must nevertheless report the damage.
func (f *fixture) scanResumedBehindDamageSaysSo(whole map[int64][]byte) {
	f.t.Helper()
	in, n := &recordv1.ScanRequest{}, 0
	for {
		records, last, err := f.scan(in, 1)
		n += len(records)
		if err != nil {
			want(f.t, err, codes.DataLoss, reason.Damaged)
			break
		}
		if len(records) == 0 {
			f.t.Error("a scan that left out damage ended in OK")
			break
		}
		in = &recordv1.ScanRequest{Cursor: last}
	}
	if n != len(whole) {
		f.t.Errorf("%d records, want %d", n, len(whole))
	}
}

// HTTP has no authentication. Therefore /status reports only how many records are damaged, and AdminService reports
// their ids.
func TestHTTPTellsNoIDsOfRecords(t *testing.T) {
	t.Parallel()
	inBubble(t, func(t *bubble) {
		f := start(t, newRegistry(hash4, "s1"), nil).ready()
		const hit = 471_101_799
		number := hash4.GroupOf(hit)
		name := placement.GroupName(number)
		data := bytes.Repeat([]byte("x"), 20_000)
		f.put(hit, data)
		f.stop()
		f.damage(name, data)
		f.again(nil)
		_, err := f.records.Get(f.ctx(), &recordv1.GetRequest{Key: key(hit)})
		want(t, err, codes.DataLoss, reason.Damaged)
		_, err = f.served(number).Log().Compact(f.ctx(), group.CompactOptions{})
		if err == nil {
			t.Error("a damaged group was compacted")
		}
		f.shard.problems.Note("compacting a group", err)
		st := f.shard.Status()
		shown, err := json.Marshal(st)
		must(t, err)
		i := slices.IndexFunc(st.Groups, func(g *recordv1.Group) bool { return g.Group == name })
		if d := st.Groups[i].Damages; len(d) != 1 || d[0].GetRecords() != 1 ||
			!bytes.Contains(shown, []byte("compacting a group")) || bytes.Contains(shown, []byte(strconv.Itoa(hit))) {
			t.Errorf("/status of a damaged shard: %s", shown)
		}
		out, err := f.admin.ListGroups(f.ctx(), &recordv1.ListGroupsRequest{Group: name})
		if d := out.GetGroups(); err != nil || len(d) != 1 || len(d[0].GetDamages()) != 1 ||
			!slices.Equal(d[0].GetDamages()[0].GetIds(), []int64{hit}) {
			t.Errorf("AdminService: %v, %v", out, err)
		}
	})
}

func TestDamageWithoutANewerVersionAnswersUntilAccepted(t *testing.T) {
	t.Parallel()
	inBubble(t, func(t *bubble) {
		f := start(t, newRegistry(hash4, "s1"), nil).ready()
		there := f.fill(40, 20_000)
		name := placement.GroupName(hash4.GroupOf(13))
		f.stop()
		f.damage(name, there[13])
		f.again(nil)
		_, err := f.records.Get(f.ctx(), &recordv1.GetRequest{Key: key(13)})
		want(t, err, codes.DataLoss, reason.Damaged)
		if s := f.shard.Status().Summary; s.State != page.Damaged || !strings.HasPrefix(s.Text, "Damaged: group "+name+":") ||
			!strings.Contains(s.Do, "accept-loss "+name) {
			t.Errorf("the sentence is %+v", s)
		}
		if _, err := f.admin.AcceptLoss(f.ctx(), &recordv1.AcceptLossRequest{Group: name}); err != nil {
			t.Fatal(err)
		}
		f.eventually("the loss is accepted", func() bool {
			_, err := f.records.Get(f.ctx(), &recordv1.GetRequest{Key: key(13)})
			return reasonOf(err) == reason.RecordNotFound
		})
	})
}

func TestGroupThatCannotBeLoadedLeavesNeighboursAlone(t *testing.T) {
	t.Parallel()
	inBubble(t, func(t *bubble) {
		f := start(t, newRegistry(hash4, "s1"), nil).ready()
		there := f.fill(40, 1000)
		dir := filepath.Join(f.cfg.Dir, "groups", f.registry.now().Groups["2"].UUID.String())
		f.stop()
		for _, name := range filesIn(t, f.cfg.FS, dir) {
			truncate(t, f.cfg.FS, name, 0)
		}
		f.again(nil)
		for id, d := range there {
			if hash4.GroupOf(id) != 2 {
				f.holds(id, d)
				continue
			}
			if _, err := f.records.Get(f.ctx(), &recordv1.GetRequest{Key: key(id)}); err == nil ||
				reasonOf(err) == reason.RecordNotFound {
				t.Errorf("record %d of the unreadable group answers %v", id, err)
			}
			if _, err := f.records.Put(f.ctx(), &recordv1.PutRequest{Key: key(id)}); err == nil {
				t.Errorf("record %d of the unreadable group was put", id)
			}
		}
		st := f.shard.Status()
		if st.GetShard().Load.GroupsLoaded != 3 {
			t.Errorf("load %+v", st.GetShard().Load)
		}
		for _, g := range st.Groups {
			if (g.Group == "2") != (g.GetState().Word() == "Failed") || g.Group == "2" && g.Message == "" {
				t.Errorf("group %+v", g)
			}
		}
	})
}

// TestRule10_FullDiskIsRefusedEarly uses an in-memory disk. TestSmallRealDisks runs the same test on a real file
// system.
func TestRule10_FullDiskIsRefusedEarly(t *testing.T) {
	t.Parallel()
	inBubble(t, func(t *bubble) { fullDiskIsRefusedEarly(t) })
}

func fullDiskIsRefusedEarly(t testing.TB) {
	var ballast string
	f := start(t, newRegistry(hash4, "s1"), func(c *Config) {
		smallDisk(t, c, 96)
		// The volume also contains files that do not belong to the shard.
		must(t, c.FS.MkdirAll(filepath.Join(c.Dir, "lost+found")))
		ballast = filepath.Join(c.Dir, "lost+found", "ballast")
		vfstest.Write(t, c.FS, ballast, make([]byte, 24<<20))
		c.SegmentBytes = 4 << 20
	}).ready()
	acknowledged := map[int64][]byte{}
	var refused error
	for id := int64(0); refused == nil && id < 10_000; id++ {
		d := data(id, 200_000)
		if _, refused = f.records.Put(f.ctx(), &recordv1.PutRequest{Key: key(id), Data: d}); refused == nil {
			acknowledged[id] = d
		}
	}
	want(t, refused, codes.ResourceExhausted, reason.DiskFull)
	if len(acknowledged) < 20 {
		t.Errorf("only %d records fit", len(acknowledged))
	}
	_, err := f.upload(&recordv1.UploadHeader{Key: key(-1)}, cut(make([]byte, 40<<20), 1<<20)...)
	want(t, err, codes.ResourceExhausted, reason.DiskFull)
	f.absent(-1)
	f.holdsAll(acknowledged)
	f.delete(0)
	f.absent(0)
	delete(acknowledged, 0)
	if st := f.shard.Status(); st.GetShard().FreeBytes == 0 {
		t.Errorf("the reserve was eaten: %+v", st)
	}
	truncate(t, f.cfg.FS, ballast, 0)
	f.eventually("room made is noticed", func() bool {
		_, err := f.records.Put(f.ctx(), &recordv1.PutRequest{Key: key(-2), Data: []byte("fits")})
		return err == nil
	})
	f.stop()
	f.again(nil)
	f.holdsAll(acknowledged)
	f.absent(0)
	f.holds(-2, []byte("fits"))
}

// Groups must not take the space that they allocate in advance from the reserve, because deletes need the reserve
// when the disk is full.
func TestRule10_TheReserveIsNotAllocatedAhead(t *testing.T) {
	t.Parallel()
	inBubble(t, func(t *bubble) { theReserveIsNotAllocatedAhead(t) })
}

func theReserveIsNotAllocatedAhead(t testing.TB) {
	f := start(t, newRegistry(hash4, "s1"), func(c *Config) { smallDisk(t, c, 128); c.SegmentBytes = 0 }).ready()
	var refused error
	id := int64(0)
	for ; refused == nil && id < 10_000; id++ {
		_, refused = f.records.Put(f.ctx(), &recordv1.PutRequest{Key: key(id), Data: data(id, 500_000)})
	}
	want(t, refused, codes.ResourceExhausted, reason.DiskFull)
	if st := f.shard.Status(); st.GetShard().FreeBytes < st.GetShard().ReserveBytes-mib {
		t.Errorf("%d bytes are free, %d are kept", st.GetShard().FreeBytes, st.GetShard().ReserveBytes)
	}
	for id -= 2; id >= 0; id-- {
		f.delete(id)
	}
}

func TestAdminDescribes(t *testing.T) {
	t.Parallel()
	inBubble(t, func(t *bubble) {
		f := start(t, newRegistry(hash4, "s1"), func(c *Config) { c.Version = "v9" }).ready()
		there := f.fill(50, 1000)
		out, err := f.admin.ListGroups(f.ctx(), &recordv1.ListGroupsRequest{})
		if err != nil || len(out.GetGroups()) != 4 {
			t.Fatalf("groups: %v, %v", out, err)
		}
		records := int64(0)
		for i, g := range out.GetGroups() {
			records += g.GetRecords()
			if g.GetGroup() != placement.GroupName(i) || len(g.GetUuid()) != 36 || g.GetShard() != "s1" || !g.GetLeader() ||
				g.GetState() != recordv1.GroupState_GROUP_STATE_SERVING || g.GetSegments() < 1 || g.GetAppliedIndex() == 0 ||
				g.GetStoredBytes() == 0 {
				t.Errorf("group %v", g)
			}
		}
		if records != int64(len(there)) {
			t.Errorf("%d records, want %d", records, len(there))
		}
		shards, err := f.admin.ListShards(f.ctx(), &recordv1.ListShardsRequest{})
		if err != nil || len(shards.GetShards()) != 1 {
			t.Fatalf("shards: %v, %v", shards, err)
		}
		s := shards.GetShards()[0]
		if s.GetName() != "s1" || !s.GetAlive() || s.GetGeneration() != 1 || s.GetGroups() != 4 || s.GetLeaders() != 4 ||
			!s.GetLoad().GetDone() ||
			s.GetFileSystem() == "" || s.GetCapacityBytes() == 0 || s.GetReserveBytes() != 16<<20 || s.GetVersion() != "v9" ||
			s.GetResidency() != "Index" {
			t.Errorf("shard %v", s)
		}
		_, err = f.admin.CreateGroup(f.ctx(), &recordv1.CreateGroupRequest{Group: "x"})
		want(t, err, codes.Unimplemented, "")
		if moves, err := f.admin.PlanMoves(f.ctx(), &recordv1.PlanMovesRequest{}); err != nil || len(moves.GetMoves()) != 0 {
			t.Errorf("moves: %v, %v", moves, err)
		}
		for _, bad := range []string{"4", "-1", "x", ""} {
			_, err := f.admin.Verify(f.ctx(), &recordv1.VerifyRequest{Group: bad})
			want(t, err, codes.InvalidArgument, "")
			_, err = f.admin.Compact(f.ctx(), &recordv1.CompactRequest{Group: bad})
			want(t, err, codes.InvalidArgument, "")
			_, err = f.admin.AcceptLoss(f.ctx(), &recordv1.AcceptLossRequest{Group: bad})
			want(t, err, codes.InvalidArgument, "")
		}
		_, err = f.admin.Verify(f.ctx(), &recordv1.VerifyRequest{Group: "0", RateBytesPerSecond: -1})
		want(t, err, codes.InvalidArgument, "")
		_, err = f.admin.Compact(f.ctx(), &recordv1.CompactRequest{Group: "0", RateBytesPerSecond: -1})
		want(t, err, codes.InvalidArgument, "")
	})
}

// This test uses real time, because loading takes no virtual time.
func TestWatchLoadEndsWhenLoaded(t *testing.T) {
	t.Parallel()
	f := start(t, newRegistry(hash4, "s1"), func(c *Config) { c.Residency = group.Resident }).ready()
	f.fill(200, 20_000)
	f.stop()
	f.again(nil)
	stream, err := f.admin.WatchLoad(f.ctx(), &recordv1.WatchLoadRequest{})
	must(t, err)
	var last *recordv1.WatchLoadResponse
	for {
		out, err := stream.Recv()
		if errors.Is(err, io.EOF) {
			break
		}
		must(t, err)
		last = out
	}
	l := last.GetLoad()
	if !l.GetDone() || l.GetGroupsTotal() != 4 || l.GetGroupsLoaded() != 4 || l.GetBytesDone() < 3<<20 ||
		l.GetBytesTotal() != l.GetBytesDone() ||
		l.GetBytesPerSecond() <= 0 || l.GetElapsedSeconds() <= 0 || last.GetShards()["s1"] == nil {
		t.Errorf("load %v", last)
	}
}

func TestCompactDropsWhatRetentionDoesNotKeep(t *testing.T) {
	t.Parallel()
	inBubble(t, func(t *bubble) {
		residencies(t, func(t *bubble, f *fixture) {
			ids := idsOf(hash4, 0, 20)
			there := map[int64][]byte{}
			for round := range 5 {
				for _, id := range ids {
					there[id] = data(id+int64(round), 50_000)
					f.put(id, there[id])
				}
			}
			out, err := f.admin.Compact(f.ctx(), &recordv1.CompactRequest{Group: "0", All: true})
			must(t, err)
			if out.GetEntriesDropped() < 70 || out.GetBytesAfter() >= out.GetBytesBefore()/2 || out.GetSegmentsRewritten() == 0 {
				t.Errorf("compact: %v", out)
			}
			f.holdsAll(there)
			f.shard.Kill()
			f.again(nil)
			f.holdsAll(there)
		})
	})
}

// On a small disk, the newest segment never becomes full. To free the deleted data in it, the segment must be sealed
// first.
func TestCompactAllFreesSpaceInTheNewestSegment(t *testing.T) {
	t.Parallel()
	inBubble(t, func(t *bubble) {
		f := start(t, newRegistry(hash4, "s1"), func(c *Config) { c.SegmentBytes = 64 << 20 }).ready()
		ids := idsOf(hash4, 0, 10)
		for _, id := range ids {
			f.put(id, data(id, 200_000))
		}
		for _, id := range ids[1:] {
			f.delete(id)
		}
		compact := func(all bool) int64 {
			out, err := f.admin.Compact(f.ctx(), &recordv1.CompactRequest{Group: "0", All: all})
			must(t, err)
			return out.GetBytesBefore() - out.GetBytesAfter()
		}
		if freed := compact(false); freed != 0 {
			t.Errorf("%d bytes of the newest segment were dropped without being asked for", freed)
		}
		if freed := compact(true); freed < 9*200_000 {
			t.Errorf("only %d bytes were freed", freed)
		}
		f.holds(ids[0], data(ids[0], 200_000))
		f.absent(ids[1])
	})
}

func TestCompactionInTheBackground(t *testing.T) {
	t.Parallel()
	inBubble(t, func(t *bubble) {
		f := start(t, newRegistry(hash4, "s1"), func(c *Config) {
			c.Compaction = Compaction{SupersededBytesMin: 1 << 20, Interval: 10 * 1e6, RateBytesPerSecond: -1}
		}).ready()
		ids := idsOf(hash4, 0, 10)
		for round := range 10 {
			for _, id := range ids {
				f.put(id, data(id+int64(round), 100_000))
			}
		}
		f.eventually("superseded bytes are dropped", func() bool { return f.served(0).Log().Stats().StoredBytes < 6<<20 })
		for _, id := range ids {
			f.holds(id, data(id+9, 100_000))
		}
	})
}

// TestALateViewTakesNoRouteFromAGroupMadeHere sends an outdated view to a shard. The view dates from before the shard
// reported to etcd that it had created a group. The group must still be served.
func TestALateViewTakesNoRouteFromAGroupMadeHere(t *testing.T) {
	t.Parallel()
	inBubble(t, func(t *bubble) {
		f := start(t, newRegistry(hash4, "s1"), nil).ready()
		late := f.registry.now()
		late.Epoch, late.Groups = 1, maps.Clone(late.Groups)
		for name, g := range late.Groups {
			g.Members, g.Leader, g.Revision = nil, "", 1
			late.Groups[name] = g
		}
		s := f.shard
		s.watcher.See(late)
		todo := s.replicas.Decide(late)
		routes := s.replicas.Routes()
		if len(todo.Create)+len(todo.Announce)+len(todo.Close) != 0 || len(routes.ByName) != hash4.Groups {
			t.Errorf("%d to create, %d to announce, %d to close; %d groups have a route", len(todo.Create), len(todo.Announce),
				len(todo.Close), len(routes.ByName))
		}
	})
}

// This test uses real time, because it uses a real etcd.
func TestEtcdStoreIsARegistry(t *testing.T) {
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	store := newEtcd(t)
	meta := placement.Meta{StoreUUID: newRegistry(hash4, "s1").view.Meta.StoreUUID, Routing: hash4, Copies: 1}
	if _, err := store.InitMeta(ctx, meta); err != nil {
		t.Fatal(err)
	}
	var targets []placement.Target
	for n := range hash4.Groups {
		if _, _, err := store.CreateGroup(ctx, placement.NewGroup(hash4, placement.GroupName(n), n)); err != nil {
			t.Fatal(err)
		}
		targets = append(targets, placement.Target{Group: placement.GroupName(n), Shards: []string{"s1"}})
	}
	must(t, store.SetTargets(ctx, targets))
	// The registry in memory is used only by ready, which reads the names of the groups from it.
	registry := newRegistry(hash4, "s1")
	f := start(t, registry, func(c *Config) { c.Placement = store }).ready()
	there := f.fill(50, 1000)
	view, err := store.View(ctx)
	if err != nil || len(view.Shards) != 1 || view.Shards["s1"].Address != f.shard.Addr() {
		t.Errorf("view %+v, %v", view, err)
	}
	f.shard.Kill()
	f.again(nil).ready()
	f.holdsAll(there)
	f.stop()
	// If etcd was slow, the shard remains registered until its lease expires.
	f.eventually("it is not registered any more", func() bool {
		view, err := store.View(ctx)
		return err == nil && len(view.Shards) == 0
	})
}
