package serve

import (
	"math"
	"strings"
	"testing"

	"google.golang.org/protobuf/proto"

	"sheaf.dev/sheaf/client/recordv1"
	"sheaf.dev/sheaf/internal/storage/group/format"
)

// A list of damage fits into a message, no matter how much of a group is bad.
func TestListsOfDamageAreBounded(t *testing.T) {
	many := make([]format.Damage, 100_000)
	for i := range many {
		many[i] = format.Damage{Group: strings.Repeat("g", 253), File: "00000000000000000001.log", Offset: math.MaxInt64,
			Length: math.MaxInt64, What: strings.Repeat("w", 100), IDs: []int64{int64(i)}}
	}
	for _, bytesMax := range []int{RowDamageBytesMax, copyDamageBytesMax} {
		out := DamagesOf(many, bytesMax)
		if size := proto.Size(&recordv1.AcceptLossResponse{Damages: out}); size > bytesMax*11/10 || size < bytesMax/2 {
			t.Errorf("%d places in %d bytes, at most %d", len(out), size, bytesMax)
		}
	}
	if out := DamagesOf(many[:3], RowDamageBytesMax); len(out) != 3 || out[2].GetIdsUnknown() || out[2].GetIds()[0] != 2 {
		t.Errorf("%v", out)
	}
	ids := make([]int64, 100_000)
	one := DamagesOf([]format.Damage{{IDs: ids}}, RowDamageBytesMax)
	if len(one) != 1 || len(one[0].GetIds()) != damageIDsMax || !one[0].GetIdsUnknown() {
		t.Errorf("%d places, of which the first has %d ids", len(one), len(one[0].GetIds()))
	}
}
