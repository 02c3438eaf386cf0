package shard

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"sheaf.dev/sheaf/client/call/reason"
	"sheaf.dev/sheaf/client/recordv1"
	"sheaf.dev/sheaf/internal/placement"
	"sheaf.dev/sheaf/internal/shard/replicas"
	"sheaf.dev/sheaf/internal/storage/group"
	"sheaf.dev/sheaf/internal/storage/group/format"
	"sheaf.dev/sheaf/internal/test/vfstest"
)

// oracle is the name of a check that may find a violation.
type oracle string

// These are the oracles that can find a violation.
const (
	oracleKept     oracle = "acknowledged"  // acknowledged data is never lost
	oracleInvented oracle = "invented"      // data that nobody has written never appears
	oracleDamage   oracle = "damage"        // data is damaged only by faults that are meant to damage it
	oracleAgree    oracle = "copies agree"  // all copies of a group have the same content
	oracleStuck    oracle = "comes to rest" // each group gets the right members, no learner, and a leader that responds
	oracleStop     oracle = "stops"         // stopping or killing a shard never hangs
	oracleStart    oracle = "starts"        // a shard can start on the disk that has survived
	oraclePast     oracle = "past"          // a damaged group does not return old data as if it were current
	oracleAnswers  oracle = "answers"       // calls fail only with errors that are expected
	oracleSigns    oracle = "vital signs"   // the metrics in a status never have impossible values
	oracleDeleted  oracle = "deleted"       // a deleted group does not come back
)

// rests waits until each group is on its target shards and its leader responds.
func (x *exploration) rests() bool {
	what := ""
	ok := x.await(func() bool {
		view := x.registry.now()
		for name, g := range view.Groups {
			if x.deleter != nil && x.deleter.works.Load() && strings.HasPrefix(name, sparePrefix) {
				continue // the deleter may have just created this group, or may be about to delete it
			}
			wanted := slices.Sorted(slices.Values(view.Targets[name].Shards))
			var have []string
			for _, m := range g.Members {
				if m.Role != placement.Voter {
					what = fmt.Sprintf("group %s has a learner on shard %s: %+v", name, m.Shard, g.Members)
					return false
				}
				have = append(have, m.Shard)
			}
			slices.Sort(have)
			if !slices.Equal(have, wanted) {
				what = fmt.Sprintf("group %s is on %v, wanted on %v", name, have, wanted)
				return false
			}
			if why := x.led(name, g); why != "" {
				what = why
				return false
			}
		}
		return true
	})
	if !ok {
		x.violate(oracleStuck, "after %v: %s%s", x.patience, what, x.states())
	}
	return ok
}

// led explains why a group has no leader that responds, or has copies that lag behind the leader. If neither is the
// case, it returns an empty string.
func (x *exploration) led(name string, g placement.Group) string {
	m := x.machineOf(g.Leader)
	if m == nil {
		return fmt.Sprintf("group %s has no leader", name)
	}
	_, client := m.running()
	if client == nil {
		return fmt.Sprintf("group %s is led by shard %s, which does not run", name, g.Leader)
	}
	ctx, cancel := context.WithTimeout(context.Background(), patienceOfCall)
	defer cancel()
	if _, err := client.Get(ctx, &recordv1.GetRequest{Key: x.keyIn(name), MetadataOnly: true}); err != nil &&
		reasonOf(err) != reason.RecordNotFound {
		return fmt.Sprintf("group %s at its leader %s: %v", name, g.Leader, err)
	}
	var at []uint64
	for _, member := range g.Members {
		sv := x.servedOn(member.Shard, g)
		if sv == nil {
			return fmt.Sprintf("group %s does not serve on %s", name, member.Shard)
		}
		at = append(at, sv.Log().AppliedIndex())
	}
	if slices.Min(at) != slices.Max(at) {
		return fmt.Sprintf("the copies of group %s are at %v", name, at)
	}
	return ""
}

func (x *exploration) servedOn(shard string, g placement.Group) *replicas.Served {
	m := x.machineOf(shard)
	if m == nil {
		return nil
	}
	s, _ := m.running()
	if s == nil {
		return nil
	}
	return s.replicas.Routes().Served(g.UUID)
}

// states returns the states of all replicas and their Raft nodes, for use in error messages.
func (x *exploration) states() string {
	var b strings.Builder
	for _, m := range x.machines {
		s, _ := m.running()
		if s == nil {
			fmt.Fprintf(&b, "\n%s does not run", m.name)
			continue
		}
		st := s.Status()
		fmt.Fprintf(&b, "\n%s: problems %q, strays %+v", m.name, st.GetShard().Problems, st.Strays)
		for _, g := range st.Groups {
			fmt.Fprintf(&b, "\n  group %s %s, leader %t, applied %d: %s", g.Group, g.State, g.Leader, g.AppliedIndex, g.Message)
		}
		for name, r := range s.replicas.Routes().ByName {
			if sv := r.Served(); sv != nil {
				first, _ := sv.Log().FirstIndex()
				last, _ := sv.Log().LastIndex()
				fmt.Fprintf(&b, "\n  Raft of group %s: replica %x, entries %d to %d, fetching %t, %+v, progress %+v", name,
					sv.RaftID, first, last, r.State().Fetching, sv.Replica().Status(), sv.Replica().Members().Progress)
			}
		}
	}
	return b.String()
}

// judge reads all records in every way in which clients can read them. It is called when all groups are at rest and
// no client is writing.
func (x *exploration) judge() {
	view := x.registry.now()
	for name, g := range view.Groups {
		scanned, _ := x.scan(name, false)
		for id, r := range x.records {
			if placement.GroupName(x.routing.GroupOf(id)) != name {
				continue
			}
			got, found := x.readOne(name, r)
			if other, there := scanned[id]; there != found || there && other != nil && string(other) != string(got) {
				x.violate(oracleAgree, "record %d of group %s: a read gives %d bytes (there: %t), a scan %d (there: %t)", id, name,
					len(got), found, len(other), there)
			}
		}
		x.judgeCopies(name, g)
	}
	if x.deleter != nil {
		x.deleter.judge()
	}
}

// readOne reads a record by Download. If the data is not a blob, it also reads the record by Get.
func (x *exploration) readOne(name string, r *record) (got []byte, found bool) {
	err := x.atLeader(name, x.dice, func(ctx context.Context, c recordv1.RecordServiceClient) (err error) {
		if got, found, err = download(ctx, c, x.key(r.id)); err != nil || !found || len(got) > format.DataBytesMax {
			return err
		}
		out, err := c.Get(ctx, &recordv1.GetRequest{Key: x.key(r.id)})
		if err == nil && string(out.GetRecord().GetData()) != string(got) {
			x.violate(oracleAgree, "at rest, Get and Download of record %d differ: %v", r.id, err)
		}
		return err
	})
	if err != nil {
		x.violate(oracleOf(err), "at rest, record %d: %v", r.id, err)
		return nil, false
	}
	x.judgeRecord("at rest, a download", r, got, found)
	return got, found
}

// scan scans a group and returns the records. For a blob, the data is nil. If damage is true, the scan may end with
// DATA_LOSS, and the result whole is then false.
func (x *exploration) scan(name string, damage bool) (all map[int64][]byte, whole bool) {
	err := x.atLeader(name, x.dice, func(ctx context.Context, c recordv1.RecordServiceClient) error {
		all = map[int64][]byte{}
		stream, err := c.Scan(ctx, &recordv1.ScanRequest{Group: name})
		for err == nil {
			var out *recordv1.ScanResponse
			if out, err = stream.Recv(); err != nil {
				break
			}
			for _, r := range out.GetRecords() {
				if all[r.GetKey().GetId()] = nil; r.GetSizeBytes() <= format.DataBytesMax {
					all[r.GetKey().GetId()] = append([]byte{}, r.GetData()...)
				}
			}
		}
		if errors.Is(err, io.EOF) {
			err = nil
		}
		return err
	})
	switch {
	case err == nil:
		return all, true
	case damage && status.Code(err) == codes.DataLoss:
		x.fire("scan of a damaged group refused")
	default:
		x.violate(oracleOf(err), "scan of group %s: %v", name, err)
	}
	return all, false
}

// judgeCopies compares what the copies of a group contain, and reads every byte of each copy.
func (x *exploration) judgeCopies(name string, g placement.Group) {
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
	defer cancel()
	var first map[int64]string
	for _, member := range g.Members {
		sv := x.servedOn(member.Shard, g)
		if sv == nil {
			x.violate(oracleStuck, "group %s does not serve on %s any more", name, member.Shard)
			return
		}
		report, err := sv.Log().Verify(ctx, 0)
		if err != nil || len(report.Damages) > 0 {
			x.violate(oracleDamage, "verify of group %s on %s: %v, %v", name, member.Shard, report.Damages, err)
		}
		holds, err := holdings(ctx, sv.Log())
		if err != nil {
			x.violate(oracleDamage, "reading group %s on %s: %v", name, member.Shard, err)
		}
		if first == nil {
			first = holds
		}
		for id := range x.records {
			if first[id] != holds[id] {
				x.violate(oracleAgree, "record %d of group %s: %s on %s, %s on %s", id, name, first[id], g.Members[0].Shard,
					holds[id], member.Shard)
			}
		}
	}
}

// holdings returns the records in a copy as strings.
func holdings(ctx context.Context, log *group.Log) (map[int64]string, error) {
	id, err := log.OpenScan(time.Minute)
	if err != nil {
		return nil, err
	}
	defer log.CloseScan(id)
	info, err := log.ScanInfo(id)
	if err != nil {
		return nil, err
	}
	all := map[int64]string{}
	for rec, err := range log.Scan(ctx, id, 0, info.Index, false) {
		if err != nil {
			return all, err
		}
		all[rec.ID] = fmt.Sprintf("version %d with %d bytes %x", rec.Index, rec.Size, rec.Data[:min(len(rec.Data), 20)])
	}
	return all, nil
}

// truncated truncates a segment of one copy while the shard of that copy is down. This is the last fault of an
// exploration. If there are other copies, the truncated one must become complete again. If it is the only copy, it
// stays damaged. It must then return correct data, and refuse reads whose result might be wrong.
func (x *exploration) truncated() {
	m, name, g := x.anyReplica()
	if m == nil {
		return
	}
	m.stop()
	if !x.truncate(m, g) {
		return
	}
	x.fire(fmt.Sprintf("segment truncated, copies %d", x.copies))
	m.start(vfstest.Survival{Kind: vfstest.SurviveAll})
	if x.copies > 1 {
		if x.rests() {
			// The damage may be repaired, or the whole copy may be installed again.
			x.await(func() bool {
				for _, member := range x.registry.now().Groups[name].Members {
					sv := x.servedOn(member.Shard, g)
					if sv == nil || sv.Log().Damaged() {
						return false
					}
				}
				return true
			})
			x.judge()
		}
		return
	}
	s, _ := m.running()
	if !x.await(func() bool { // the group either serves or has failed
		st := s.Status()
		i := slices.IndexFunc(st.Groups, func(s *recordv1.Group) bool { return s.Group == name })
		return i >= 0 && (st.Groups[i].Leader || st.Groups[i].GetState().Word() == "Failed")
	}) {
		x.violate(oracleStuck, "group %s with a truncated segment neither serves nor fails%s", name, x.states())
		return
	}
	if sv := s.replicas.Routes().Served(g.UUID); sv == nil {
		x.fire("damaged group does not serve")
		return
	}
	x.judgeDamaged(name)
}

// judgeDamaged reads a damaged group. For each record, it must get the unchanged data or an error.
func (x *exploration) judgeDamaged(name string) {
	scanned, whole := x.scan(name, true)
	for id, r := range x.records {
		if placement.GroupName(x.routing.GroupOf(id)) != name {
			continue
		}
		var got []byte
		var found bool
		err := x.atLeader(name, x.dice, func(ctx context.Context, c recordv1.RecordServiceClient) (err error) {
			got, found, err = download(ctx, c, x.key(id))
			return err
		})
		switch {
		case status.Code(err) == codes.DataLoss:
			x.fire("read of a damaged group refused")
		case err != nil:
			x.violate(oracleStuck, "record %d of damaged group %s: %v", id, name, err)
		default:
			n := absent
			if found {
				n = r.which(got)
			}
			if !r.mayBe(n) || found && n == absent {
				x.violate(oraclePast, "a read of record %d of damaged group %s gave its write %d of %d", id, name, n, len(r.writes))
			}
		}
		told, there := scanned[id]
		if there && told != nil {
			if n := r.which(told); n == absent || !r.mayBe(n) {
				x.violate(oraclePast, "a scan of damaged group %s gave write %d of %d of record %d", name, n, len(r.writes), id)
			}
		}
		if there && (err != nil || !found) || whole && !there && (err != nil || found) {
			x.violate(oraclePast, "a scan of damaged group %s gave record %d: %t (whole: %t), a read: %t, %v", name, id, there,
				whole, found, err)
		}
	}
}
