package survey

import (
	"math"
	"testing"

	"google.golang.org/protobuf/proto"

	"sheaf.dev/sheaf/client/recordv1"
	"sheaf.dev/sheaf/internal/placement/rescue"
	"sheaf.dev/sheaf/internal/test/must"
)

// FuzzVolume checks that a rebuild of the placement does not panic, whatever a shard responds, and that the store
// accepts the rebuilt placement.
func FuzzVolume(f *testing.F) {
	const volume, store, group = "a1b2c3d4-0000-4000-8000-000000000001", "a1b2c3d4-0000-4000-8000-000000000002",
		"a1b2c3d4-0000-4000-8000-000000000003"
	answer := func(change func(*recordv1.DescribeVolumeResponse)) {
		out := &recordv1.DescribeVolumeResponse{
			Shard: "q-0", Address: "q-0:7610", VolumeUuid: volume, StoreUuid: store, Generation: 1,
			Facts: &recordv1.StoreFacts{Routing: "Hash", Groups: 1, Copies: 1, Created: "2026-11-28T00:00:00Z", Epoch: 7},
			Groups: []*recordv1.GroupFacts{{
				Group: "0", Uuid: group, StoreUuid: store, RaftId: 1, Voters: []uint64{1}, ConfIndex: 1, Term: 1,
			}},
		}
		change(out)
		encoded, err := proto.Marshal(out)
		must.OK(f, err)
		f.Add(encoded)
	}
	answer(func(*recordv1.DescribeVolumeResponse) {})
	answer(func(out *recordv1.DescribeVolumeResponse) { out.Facts = nil })
	answer(func(out *recordv1.DescribeVolumeResponse) { out.Facts.Groups, out.Facts.Copies = math.MaxInt32, -3 })
	answer(func(out *recordv1.DescribeVolumeResponse) {
		out.Facts.Epoch, out.Generation = math.MaxUint64, math.MaxUint64
	})
	answer(func(out *recordv1.DescribeVolumeResponse) { out.StoreUuid, out.Groups[0].Uuid = "", "not a UUID" })
	answer(func(out *recordv1.DescribeVolumeResponse) {
		out.Groups = append(out.Groups, proto.CloneOf(out.Groups[0]), &recordv1.GroupFacts{})
		out.Groups[0].Voters, out.Groups[0].Learners = []uint64{0, 1, 1, math.MaxUint64}, []uint64{1}
		out.Groups[0].StoredBytes, out.Groups[0].Records = math.MinInt64, -1
	})
	f.Fuzz(func(t *testing.T, encoded []byte) {
		out := &recordv1.DescribeVolumeResponse{}
		if proto.Unmarshal(encoded, out) != nil {
			return
		}
		v, err := foundVolume(out)
		if err != nil {
			return
		}
		rebuilt, err := rescue.Rebuild(v.Store, []rescue.FoundVolume{v}, nil)
		if err != nil {
			return
		}
		if err := rebuilt.Meta.Validate(); err != nil {
			t.Error("the rebuilt placement is refused:", err)
		}
		for _, g := range rebuilt.Groups {
			if g.Name == "" {
				t.Errorf("a group without a name: %+v", g)
			}
		}
	})
}
