package shard

import (
	"context"
	"fmt"
	"math/rand/v2"
	"path"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/google/uuid"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"sheaf.dev/sheaf/client/recordv1"
	"sheaf.dev/sheaf/internal/placement"
	"sheaf.dev/sheaf/internal/storage/vfs"
)

// deleter creates empty groups and deletes them again, while the other faults happen to the shards. During some of
// the deletions it puts a record into the group. If this put is acknowledged, the group with its record must still
// exist at the end, and the deleter leaves it alone from then on.
type deleter struct {
	x      *exploration
	random *rand.Rand

	works atomic.Bool
	names int          // number of names that cannot be used again
	kept  []string     // groups that contain an acknowledged put
	gone  []deletedOne // groups that were deleted
}

type deletedOne struct {
	name string
	id   uuid.UUID
}

const (
	putsKeptMax = 4 // when this many groups contain an acknowledged put, the deleter makes no more puts
	spareID     = 1 // id of the only record that the deleter puts into a group
	sparePrefix = "spare-"
)

// fill returns the data for the only record of a group.
func fill(name string) []byte { return []byte("kept in " + name) }

// work creates and deletes groups until ctx is done.
func (d *deleter) work(ctx context.Context) {
	d.works.Store(true)
	defer d.works.Store(false)
	for ctx.Err() == nil {
		name := fmt.Sprint(sparePrefix, d.names)
		id := d.create(name)
		d.pause(time.Second)
		var all sync.WaitGroup
		for range 2 {
			tries, pauses := 1+d.random.IntN(4), time.Duration(1+d.random.IntN(400))*time.Millisecond
			all.Go(func() {
				for range tries {
					time.Sleep(pauses)
					d.delete(name, id)
				}
			})
		}
		put, acknowledged := len(d.kept) < putsKeptMax && d.random.IntN(2) == 0, false
		if put {
			first := time.Duration(d.random.IntN(200)) * time.Millisecond
			all.Go(func() {
				time.Sleep(first)
				acknowledged = d.put(name)
			})
		}
		all.Wait()
		d.round(name, id, put, acknowledged)
	}
}

func (d *deleter) pause(most time.Duration) { time.Sleep(time.Duration(d.random.Int64N(int64(most)))) }

// round checks a group after all attempts to delete it.
func (d *deleter) round(name string, id uuid.UUID, put, acknowledged bool) {
	_, there := d.x.registry.now().Groups[name]
	switch {
	case acknowledged && !there:
		d.x.violate(oracleKept, "group %s, %s, was deleted with an acknowledged put", name, id)
	case acknowledged:
		d.x.fire("put kept its group")
		d.kept = append(d.kept, name)
	case !there:
		d.x.fire("empty group deleted")
		d.gone = append(d.gone, deletedOne{name, id})
	}
	if put && there {
		d.names++ // the group may contain a record, so its name is not used again
	}
}

// create creates a group, unless a group with this name exists already. It returns the group's UUID.
func (d *deleter) create(name string) uuid.UUID {
	if there, ok := d.x.registry.now().Groups[name]; ok {
		return there.UUID
	}
	if slices.ContainsFunc(d.gone, func(g deletedOne) bool { return g.name == name }) {
		d.x.fire("name of a deleted group used again")
	}
	g := placement.NewGroup(named, name, 0)
	d.x.registry.change(func(v *placement.View) {
		g.Revision = int64(v.Epoch)
		v.Groups[name] = g
		v.Deleted = withoutName(v.Deleted, name)
	})
	d.x.aim(name, nil, nil)
	return g.UUID
}

// withoutName takes a map of deleted groups, and returns a copy that lacks the given name.
func withoutName(all map[string]uuid.UUID, name string) map[string]uuid.UUID {
	out := map[string]uuid.UUID{}
	for n, id := range all {
		if n != name {
			out[n] = id
		}
	}
	return out
}

// delete makes one attempt to delete a group. If etcd names a leader, the request goes to that leader.
func (d *deleter) delete(name string, id uuid.UUID) {
	x := d.x
	m := x.machineOf(x.registry.now().Groups[name].Leader)
	if m == nil {
		m = x.anyMachine()
	}
	admin := m.admin()
	if admin == nil {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), patienceOfCall)
	defer cancel()
	_, err := admin.DeleteGroup(ctx, &recordv1.DeleteGroupRequest{Group: name, GroupUuid: id.String()})
	switch status.Code(err) {
	case codes.OK:
		if x.registry.now().Groups[name].UUID == id {
			x.violate(oracleAnswers, "group %s, %s, at %s: the deletion is answered, and etcd has the group", name, id, m.name)
		}
	case codes.Internal, codes.InvalidArgument, codes.Unimplemented:
		if !strings.Contains(status.Convert(err).Message(), vfs.ErrCrashed.Error()) { // see atLeader
			x.violate(oracleAnswers, "deletion of group %s at %s: %v", name, m.name, err)
		}
	}
}

// put makes several attempts to put a group's record, and reports whether one of them was acknowledged.
func (d *deleter) put(name string) bool {
	x := d.x
	for range 20 {
		m := x.machineOf(x.registry.now().Groups[name].Leader)
		if m == nil {
			m = x.anyMachine()
		}
		if _, client := m.running(); client != nil {
			ctx, cancel := context.WithTimeout(context.Background(), patienceOfCall)
			_, err := client.Put(ctx, &recordv1.PutRequest{Key: spareKey(name), Data: fill(name)})
			cancel()
			if err == nil {
				return true
			}
		}
		time.Sleep(50 * time.Millisecond)
	}
	return false
}

func spareKey(name string) *recordv1.RecordKey { return &recordv1.RecordKey{Group: name, Id: spareID} }

// admin returns a client for the shard's AdminService, or nil if no shard is running.
func (m *machine) admin() recordv1.AdminServiceClient {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.conn == nil {
		return nil
	}
	return recordv1.NewAdminServiceClient(m.conn)
}

// judge is called when everything has stopped. It checks that every group with an acknowledged put exists, and that
// no deleted group has come back.
func (d *deleter) judge() {
	x := d.x
	for _, name := range d.kept {
		var got []byte
		err := x.atLeader(name, x.dice, func(ctx context.Context, c recordv1.RecordServiceClient) error {
			out, err := c.Get(ctx, &recordv1.GetRequest{Key: spareKey(name)})
			got = out.GetRecord().GetData()
			return err
		})
		if err != nil || string(got) != string(fill(name)) {
			x.violate(oracleKept, "the acknowledged put into group %s: %q, %v", name, got, err)
		}
	}
	for _, g := range d.gone {
		if there, ok := x.registry.now().Groups[g.name]; ok && there.UUID == g.id {
			x.violate(oracleDeleted, "etcd has the deleted group %s, %s, again", g.name, g.id)
		}
		where := ""
		if !x.await(func() bool { where = d.found(g); return where == "" }) {
			x.violate(oracleDeleted, "%s the deleted group %s, %s%s", where, g.name, g.id, x.states())
		}
	}
}

// found looks for a shard that still serves a deleted group or has its files. It returns a message that names the
// shard, or an empty string if there is none. If a new group has the same name, found ignores leftover files of the
// deleted group, because etcd then no longer lists that group as deleted.
func (d *deleter) found(g deletedOne) string {
	x := d.x
	for _, m := range x.machines {
		if x.servedOn(m.name, placement.Group{UUID: g.id}) != nil {
			return fmt.Sprintf("shard %s serves", m.name)
		}
		names, err := m.disk.List(path.Join(exploreDir, "groups"))
		if x.registry.now().Deleted[g.name] == g.id && (err != nil || slices.Contains(names, g.id.String())) {
			return fmt.Sprintf("shard %s (%v) has the files of", m.name, err)
		}
	}
	return ""
}
