package fleet

import (
	"math"
	"reflect"
	"testing"

	"sheaf.dev/sheaf/api/v1alpha1"
)

func TestPlanNumbers(t *testing.T) {
	n := func(numbers ...int32) []int32 { return numbers }
	for _, test := range []struct {
		name string
		in   NumbersInput
		want NumbersPlan
	}{
		{"none", NumbersInput{}, NumbersPlan{}},
		{"first shards", NumbersInput{Wanted: 3}, NumbersPlan{Create: n(0, 1, 2)}},
		{"all there", NumbersInput{Wanted: 2, Exist: n(1, 0)}, NumbersPlan{Keep: n(0, 1)}},
		{"a gap is filled", NumbersInput{Wanted: 3, Exist: n(0, 2)}, NumbersPlan{Keep: n(0, 2), Create: n(1)}},
		{"not with a number to remove", NumbersInput{Wanted: 3, Exist: n(0, 2), Remove: n(1)},
			NumbersPlan{Keep: n(0, 2), Create: n(3)}},
		{"the highest goes", NumbersInput{Wanted: 1, Exist: n(0, 1, 5)}, NumbersPlan{Keep: n(0), Remove: n(1, 5)}},
		{"remove goes first", NumbersInput{Wanted: 2, Exist: n(0, 1, 2), Remove: n(0)},
			NumbersPlan{Keep: n(1, 2), Remove: n(0)}},
		{"remove takes none where none is too many", NumbersInput{Wanted: 3, Exist: n(0, 1, 2), Remove: n(0, 1)},
			NumbersPlan{Keep: n(0, 1, 2)}},
		{"of several to remove the highest", NumbersInput{Wanted: 2, Exist: n(0, 1, 2), Remove: n(0, 1)},
			NumbersPlan{Keep: n(0, 2), Remove: n(1)}},
		{"one that holds groups stays, and nothing goes for it",
			NumbersInput{Wanted: 1, Exist: n(0, 1, 2), Holds: map[int32]string{2: "3 groups"}},
			NumbersPlan{Keep: n(0), Remove: n(1), Leave: n(2)}},
		{"it leaves even if it is to be removed", NumbersInput{Wanted: 0, Exist: n(0), Remove: n(0),
			Holds: map[int32]string{0: "1 group"}}, NumbersPlan{Leave: n(0)}},
		{"holding is no matter to those that stay", NumbersInput{Wanted: 1, Exist: n(0),
			Holds: map[int32]string{0: "1 group"}}, NumbersPlan{Keep: n(0)}},
		{"a negative number changes nothing", NumbersInput{Wanted: -5, Exist: n(0, 1), Remove: n(1)},
			NumbersPlan{Keep: n(0, 1)}},
		{"a number beyond every limit changes nothing", NumbersInput{Wanted: math.MaxInt32, Exist: n(1, 0)},
			NumbersPlan{Keep: n(0, 1)}},
		{"the highest number of all", NumbersInput{Wanted: 1, Exist: n(0, math.MaxInt32), Remove: n(-1)},
			NumbersPlan{Keep: n(0), Remove: n(math.MaxInt32)}},
		{"twice the same", NumbersInput{Wanted: 2, Exist: n(0, 0)}, NumbersPlan{Keep: n(0), Create: n(1)}},
	} {
		t.Run(test.name, func(t *testing.T) {
			got := PlanNumbers(test.in)
			if !reflect.DeepEqual(got, test.want) {
				t.Fatalf("planNumbers(%+v)\n got %+v\nwant %+v", test.in, got, test.want)
			}
			// After the plan is carried out, a second plan changes nothing.
			again := PlanNumbers(NumbersInput{Wanted: test.in.Wanted, Exist: got.All(), Remove: test.in.Remove,
				Holds: test.in.Holds})
			if len(again.Create) > 0 || len(again.Remove) > 0 {
				t.Errorf("a second look wants %+v", again)
			}
		})
	}
}

func TestLeavingShards(t *testing.T) {
	two := int32(2)
	pool := &v1alpha1.ShardPool{}
	pool.Name, pool.Spec.Shards, pool.Spec.Remove = "ssd", &two, []int32{0}
	var seen []v1alpha1.ShardStatus
	for n := range int32(3) {
		seen = append(seen, v1alpha1.ShardStatus{Number: n, Groups: 4})
	}
	if got := leavingShards(pool, seen); !reflect.DeepEqual(got, map[string]bool{"ssd-0": true}) {
		t.Errorf("leaving: %v", got)
	}
	pool.Spec.Shards = nil
	if got := leavingShards(pool, seen); !reflect.DeepEqual(got, map[string]bool{"ssd-0": true, "ssd-2": true}) {
		t.Errorf("leaving with the default of one shard: %v", got)
	}
}
