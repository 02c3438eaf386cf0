package memetcdtest

import (
	"bytes"
	"maps"
	"slices"
	"sort"
	"sync/atomic"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/mvccpb"
)

// clusters is the number of clusters created so far. Each cluster has a different ID.
var clusters atomic.Uint64

// store is the content of etcd: each key with all its versions since the last compaction. The messages in it are never
// changed. Server.mu guards it.
type store struct {
	cluster   uint64
	revision  int64 // revision of the last write
	compacted int64 // revisions before this one are discarded; 0 if none are
	names     []string
	keys      map[string][]version // each key in names has at least one version
	log       []change             // all changes since the compaction, in order
	leases    map[int64]*lease
	granted   int64 // ID of the newest lease granted
}

// version is the state of a key from a revision on. kv is nil if the key was deleted at that revision.
type version struct {
	revision int64
	kv       *mvccpb.KeyValue
}

// change is one change of a key. The field named before holds the state of the key before the change, or nil if the
// key did not exist.
type change struct {
	event  *mvccpb.Event
	before *mvccpb.KeyValue
}

// newStore returns an empty store of a new cluster. A new etcd is at revision 1.
func newStore() *store {
	return &store{cluster: clusters.Add(1), revision: 1, keys: map[string][]version{}, leases: map[int64]*lease{}}
}

func (s *store) clone() *store {
	c := *s
	c.names, c.log = slices.Clone(s.names), slices.Clone(s.log)
	c.keys = make(map[string][]version, len(s.keys))
	for name, versions := range s.keys {
		c.keys[name] = slices.Clone(versions)
	}
	c.leases = make(map[int64]*lease, len(s.leases))
	for id, l := range s.leases {
		c.leases[id] = &lease{id: id, ttl: l.ttl, keys: maps.Clone(l.keys)}
	}
	return &c
}

func (s *store) header(revision int64) *pb.ResponseHeader {
	return &pb.ResponseHeader{ClusterId: s.cluster, MemberId: 1, Revision: revision, RaftTerm: 2}
}

// span is a range of keys: a single key, the keys from first up to but not including end, or all keys from first on.
type span struct {
	first, end []byte
	open       bool
}

// spanOf parses etcd's notation for a range of keys. Without an end, the span is one key. An end of one zero byte means
// that the span includes all later keys.
func spanOf(key, end []byte) span {
	return span{first: key, end: end, open: len(end) == 1 && end[0] == 0}
}

func (r span) has(key []byte) bool {
	switch {
	case len(r.end) == 0:
		return bytes.Equal(key, r.first)
	case bytes.Compare(key, r.first) < 0:
		return false
	}
	return r.open || bytes.Compare(key, r.end) < 0
}

// at returns a key at a revision, or nil if the key did not exist then.
func (s *store) at(name string, revision int64) *mvccpb.KeyValue {
	versions := s.keys[name]
	n := sort.Search(len(versions), func(i int) bool { return versions[i].revision > revision })
	if n == 0 {
		return nil
	}
	return versions[n-1].kv
}

// find returns the keys of a range at a revision, in order.
func (s *store) find(r span, revision int64) []*mvccpb.KeyValue {
	if len(r.end) == 0 {
		if kv := s.at(string(r.first), revision); kv != nil {
			return []*mvccpb.KeyValue{kv}
		}
		return nil
	}
	var found []*mvccpb.KeyValue
	from, _ := slices.BinarySearch(s.names, string(r.first))
	for _, name := range s.names[from:] {
		if !r.open && name >= string(r.end) {
			break
		}
		if kv := s.at(name, revision); kv != nil {
			found = append(found, kv)
		}
	}
	return found
}

// compact discards everything before a revision.
func (s *store) compact(at int64) {
	s.compacted = at
	for name, versions := range s.keys {
		n := sort.Search(len(versions), func(i int) bool { return versions[i].revision > at })
		if n > 0 && (versions[n-1].kv != nil || versions[n-1].revision == at) {
			n-- // the newest of these versions is kept, because it is the state at the given revision
		}
		if s.keys[name] = slices.Clone(versions[n:]); n == len(versions) {
			delete(s.keys, name)
		}
	}
	s.names = slices.DeleteFunc(s.names, func(name string) bool { return s.keys[name] == nil })
	n := sort.Search(len(s.log), func(i int) bool { return s.log[i].event.Kv.ModRevision >= at })
	s.log = slices.Clone(s.log[n:])
}

// transaction makes changes at a single revision, which is the next one.
type transaction struct {
	*store

	changes []change
}

// now returns the revision at which reads within the transaction see its own changes. If it has made no changes yet,
// this is the store's current revision.
func (t *transaction) now() int64 {
	if len(t.changes) > 0 {
		return t.revision + 1
	}
	return t.revision
}

func (t *transaction) set(event *mvccpb.Event, before *mvccpb.KeyValue, after version) {
	name := string(event.Kv.Key)
	if t.keys[name] == nil {
		n, _ := slices.BinarySearch(t.names, name)
		t.names = slices.Insert(t.names, n, name)
	}
	t.keys[name] = append(t.keys[name], after)
	if before != nil && t.leases[before.Lease] != nil {
		delete(t.leases[before.Lease].keys, name)
	}
	t.changes = append(t.changes, change{event, before})
}

func (t *transaction) put(r *pb.PutRequest) *pb.PutResponse {
	at := t.revision + 1
	before := t.at(string(r.Key), at)
	kv := &mvccpb.KeyValue{Key: r.Key, Value: r.Value, Lease: r.Lease, ModRevision: at, CreateRevision: at, Version: 1}
	if before != nil {
		kv.CreateRevision, kv.Version = before.CreateRevision, before.Version+1
	}
	if r.IgnoreValue {
		kv.Value = before.Value
	}
	if r.IgnoreLease {
		kv.Lease = before.Lease
	}
	t.set(&mvccpb.Event{Type: mvccpb.Event_PUT, Kv: kv}, before, version{at, kv})
	if l := t.leases[kv.Lease]; l != nil {
		l.keys[string(r.Key)] = struct{}{}
	}
	answer := &pb.PutResponse{Header: t.header(at)}
	if r.PrevKv {
		answer.PrevKv = before
	}
	return answer
}

func (t *transaction) delete(r *pb.DeleteRangeRequest) *pb.DeleteRangeResponse {
	at := t.revision + 1
	found := t.find(spanOf(r.Key, r.RangeEnd), at)
	for _, before := range found {
		t.set(&mvccpb.Event{Type: mvccpb.Event_DELETE, Kv: &mvccpb.KeyValue{Key: before.Key, ModRevision: at}}, before,
			version{at, nil})
	}
	answer := &pb.DeleteRangeResponse{Deleted: int64(len(found)), Header: t.header(t.now())}
	if r.PrevKv {
		answer.PrevKvs = found
	}
	return answer
}

// write executes all changes of a transaction at one revision, and sends them to the watches. The caller holds s.mu.
func (s *Server) write(do func(t *transaction)) {
	t := &transaction{store: s.data}
	do(t)
	if len(t.changes) == 0 {
		return
	}
	s.data.revision++
	s.data.log = append(s.data.log, t.changes...)
	for stream := range s.streams {
		stream.sendChanges(s.data, t.changes)
	}
}
