package registry

import (
	"encoding/json"
	"fmt"
	"math"
	"strings"
	"testing"

	"github.com/google/uuid"
	"go.etcd.io/etcd/api/v3/mvccpb"

	"sheaf.dev/sheaf/internal/placement"
	"sheaf.dev/sheaf/internal/test/must"
)

// lookAt takes the keys of a listing, and runs every operation on them that Sheaf performs on a listing. It fails the
// test if the resulting view contains a value that Sheaf itself could not have written.
func lookAt(t *testing.T, found map[string]string) {
	t.Helper()
	st, k, revision := newState(), keys{prefix: "/sheaf/s/"}, int64(1)
	for name, value := range found {
		revision++
		st.put(k, name, &mvccpb.KeyValue{Key: []byte(k.prefix + name), Value: []byte(value), ModRevision: revision})
	}
	st.compare(placement.Progress{Store: uuid.UUID{9}}, nil)
	view := st.publish()
	if view.Meta.EpochBase > placement.NumberMax {
		t.Errorf("epochs count on from %d", view.Meta.EpochBase)
	}
	_ = view.Problems()
	for name, g := range view.Groups {
		if placement.ValidateGroupName(name) != nil || g.Name != name || g.UUID == uuid.Nil || g.KeyFirst > g.KeyLast ||
			g.Bytes < 0 {
			t.Errorf("group %q: %+v", name, g)
		}
		_ = concerned(g, view.Targets[name])
	}
	for name, s := range view.Shards {
		if placement.ValidateShardName(name) != nil || s.VolumeUUID == uuid.Nil || s.CapacityBytes < 0 {
			t.Errorf("shard %q: %+v", name, s)
		}
		_ = placement.MayReplace(s, s)
		_ = placement.MayFollow(s.Record(), s)
	}
	missingGroups(view)
	for _, policy := range []placement.Policy{view.Meta.Policy(), {Copies: 3, Moves: true}, {Copies: 1}} {
		targets, _ := placement.Plan(view, policy)
		for _, target := range targets {
			if view.UnusableGroup(target.Group) != "" {
				t.Errorf("a group that nobody can read is placed: %+v", target)
			}
		}
		_ = placement.Moves(view, policy)
	}
	_ = view.Of(placement.Own{Shard: "a", Volume: uuid.UUID{1}})
	for name := range found {
		st.drop(name)
	}
	if len(st.publish().Unusable) > 0 {
		t.Errorf("without keys: %v", st.unusable)
	}
}

// soundKeys returns the valid keys of a store with three shards and two groups.
func soundKeys(t testing.TB) map[string]any {
	t.Helper()
	as := func(value any) (out map[string]any) {
		b, err := json.Marshal(value)
		must.OK(t, err)
		must.OK(t, json.Unmarshal(b, &out))
		return out
	}
	out := map[string]any{
		"meta": as(placement.Meta{StoreUUID: uuid.UUID{9}, Routing: placement.Routing{Mode: placement.Hash,
			Groups: 2}, Copies: 3, EpochBase: 1}),
		"frozen":   as(placement.Freeze{}),
		"states/a": as(wish{"a", placement.Draining}),
		"weights/a/0000": as(weightsPart{Shard: "a", Groups: map[string]Weight{
			"0": {UUID: uuid.UUID{10}, Bytes: 5, Records: 1}}}),
	}
	var members []placement.Member
	for i, name := range []string{"a", "b", "c"} {
		volume := uuid.UUID{byte(i + 1)}
		out["shards/"+name] = as(placement.Shard{Name: name, Address: "h:1", VolumeUUID: volume, Generation: 1,
			CapacityBytes: 1 << 40,
			Weighs:        true})
		members = append(members, placement.Member{Shard: name, VolumeUUID: volume, RaftID: uint64(i + 1)})
	}
	for n := range 2 {
		g := placement.NewGroup(placement.Routing{Mode: placement.Hash, Groups: 2}, placement.GroupName(n), n)
		g.UUID, g.Members, g.Leader = uuid.UUID{byte(10 + n)}, members, "a"
		out["groups/"+g.Name] = as(g)
		out["targets/"+g.Name] = as(placement.Target{Group: g.Name, Shards: []string{"a", "b", "c"}})
	}
	return out
}

// TestAbsurdValuesInEtcd sets each field of each key to various values that JSON can express but that make no sense.
// Nothing may panic, and a key with such a value must be left out of the view. The test takes 4 s of CPU time.
func TestAbsurdValuesInEtcd(t *testing.T) {
	absurd := []any{
		nil, true, "", "x", "\x00", "../..", strings.Repeat("n", 70_000), -1, 0, 1e300, math.MaxInt64, "18446744073709551615",
		"18446744073709551616", []any{}, []any{nil}, []any{"a", "a", "a"}, []any{"A/b"},
		map[string]any{}, map[string]any{"": nil},
		uuid.Nil.String(), "Draining", "Hash", 3, 5, 65_536, 2_000_000_000, uint64(math.MaxUint64),
	}
	for name, value := range soundKeys(t) {
		fields := value.(map[string]any)
		for field := range fields {
			for i, v := range absurd {
				t.Run(fmt.Sprintf("%s.%s=%d", name, field, i), func(t *testing.T) {
					found := map[string]string{}
					for other, sound := range soundKeys(t) {
						if other == name {
							sound.(map[string]any)[field] = v
						}
						b, err := json.Marshal(sound)
						must.OK(t, err)
						found[other] = string(b)
					}
					lookAt(t, found)
				})
			}
		}
	}
}

// FuzzVolumeRecord decodes arbitrary bytes as etcd's record of a volume. If the record allows a shard to continue, it
// must belong to the shard's volume, and must not have a later generation than the shard.
func FuzzVolumeRecord(f *testing.F) {
	shard := placement.Shard{Name: "a", Address: "h:1", VolumeUUID: uuid.UUID{1}, Generation: 5,
		Step: placement.Step{Number: 7}}
	b, err := json.Marshal(shard.Record())
	must.OK(f, err)
	f.Add(b)
	f.Add([]byte("null"))
	f.Add([]byte(`{"generation":18446744073709551615}`))
	f.Fuzz(func(t *testing.T, value []byte) {
		seen, err := mayFollow(value, shard)
		if err == nil && (seen.Generation > shard.Generation || seen.Volume != shard.VolumeUUID) {
			t.Errorf("%+v is followed by %+v", seen, shard)
		}
	})
}

// FuzzEtcdValues decodes arbitrary bytes as the value of each kind of key.
func FuzzEtcdValues(f *testing.F) {
	for name, value := range soundKeys(f) {
		b, err := json.Marshal(value)
		must.OK(f, err)
		f.Add(name, b)
		f.Add(name, []byte("null"))
		f.Add(name+"/", b)
	}
	f.Fuzz(func(t *testing.T, name string, value []byte) {
		found := map[string]string{}
		for other, sound := range soundKeys(t) {
			b, err := json.Marshal(sound)
			must.OK(t, err)
			found[other] = string(b)
		}
		found[name] = string(value)
		lookAt(t, found)
	})
}
