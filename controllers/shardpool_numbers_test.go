package controllers

import (
	"reflect"
	"testing"

	"sheaf.dev/sheaf/api/v1alpha1"
)

func TestPlanNumbers(t *testing.T) {
	n := func(numbers ...int32) []int32 { return numbers }
	for _, test := range []struct {
		name string
		in   numbersInput
		want numbersPlan
	}{
		{"none", numbersInput{}, numbersPlan{}},
		{"first shards", numbersInput{Wanted: 3}, numbersPlan{Create: n(0, 1, 2)}},
		{"all there", numbersInput{Wanted: 2, Exist: n(1, 0)}, numbersPlan{Keep: n(0, 1)}},
		{"a gap is filled", numbersInput{Wanted: 3, Exist: n(0, 2)}, numbersPlan{Keep: n(0, 2), Create: n(1)}},
		{"not with a number to remove", numbersInput{Wanted: 3, Exist: n(0, 2), Remove: n(1)}, numbersPlan{Keep: n(0, 2), Create: n(3)}},
		{"the highest goes", numbersInput{Wanted: 1, Exist: n(0, 1, 5)}, numbersPlan{Keep: n(0), Remove: n(1, 5)}},
		{"remove goes first", numbersInput{Wanted: 2, Exist: n(0, 1, 2), Remove: n(0)}, numbersPlan{Keep: n(1, 2), Remove: n(0)}},
		{"remove takes none where none is too many", numbersInput{Wanted: 3, Exist: n(0, 1, 2), Remove: n(0, 1)}, numbersPlan{Keep: n(0, 1, 2)}},
		{"of several to remove the highest", numbersInput{Wanted: 2, Exist: n(0, 1, 2), Remove: n(0, 1)}, numbersPlan{Keep: n(0, 2), Remove: n(1)}},
		{"one that holds groups stays, and nothing goes for it",
			numbersInput{Wanted: 1, Exist: n(0, 1, 2), Holds: map[int32]string{2: "3 groups"}}, numbersPlan{Keep: n(0), Remove: n(1), Leave: n(2)}},
		{"it leaves even if it is to be removed", numbersInput{Wanted: 0, Exist: n(0), Remove: n(0), Holds: map[int32]string{0: "1 group"}}, numbersPlan{Leave: n(0)}},
		{"holding is no matter to those that stay", numbersInput{Wanted: 1, Exist: n(0), Holds: map[int32]string{0: "1 group"}}, numbersPlan{Keep: n(0)}},
		{"twice the same", numbersInput{Wanted: 2, Exist: n(0, 0)}, numbersPlan{Keep: n(0), Create: n(1)}},
	} {
		t.Run(test.name, func(t *testing.T) {
			got := planNumbers(test.in)
			if !reflect.DeepEqual(got, test.want) {
				t.Fatalf("planNumbers(%+v)\n got %+v\nwant %+v", test.in, got, test.want)
			}
			// What was planned is then there, and asks for nothing more.
			again := planNumbers(numbersInput{Wanted: test.in.Wanted, Exist: got.all(), Remove: test.in.Remove, Holds: test.in.Holds})
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
