package clienttest

import (
	"math"
	"math/big"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"sheaf.dev/sheaf/client/call/routing"
	"sheaf.dev/sheaf/internal/test/soaktest"
)

// TestKeyGolden holds values that may never change, because placement on disk depends on them. They were computed
// independently of this code, with Python's integers.
func TestKeyGolden(t *testing.T) {
	for id, want := range map[int64]uint64{
		0:                   0x0,
		1:                   0x5692161d100b05e5,
		2:                   0xdbd238973a2b148a,
		-1:                  0xb4d055fcf2cbbd7b,
		42:                  0xa759ea27d4727622,
		1000000007:          0xe853b7f5cebf4630,
		0x0123456789abcdef:  0xb2c058e4ebb5112c,
		-1234567890123:      0x345f5456960384d7,
		math.MaxInt64:       0x5a682afe7965debd,
		math.MinInt64:       0x25c26ea579cea98a,
		math.MinInt64 + 255: 0x9c83c0f0e1fd0f49,
	} {
		if got := routing.Key(id); got != want {
			t.Errorf("Key(%d) = %#x, want %#x", id, got, want)
		}
	}
}

// TestKeyIsABijection checks that the mixing of a key's bits can be reversed, by undoing each of its steps.
func TestKeyIsABijection(t *testing.T) {
	soaktest.Check(t, func(t *rapid.T) {
		id := rapid.Int64().Draw(t, "id")
		z := unshift(routing.Key(id), 31) * inverse(0x94d049bb133111eb)
		z = unshift(z, 27) * inverse(0xbf58476d1ce4e5b9)
		if back := int64(unshift(z, 30)); back != id {
			t.Fatalf("Key(%d) goes back to %d", id, back)
		}
	})
}

// unshift undoes z ^ z>>n.
func unshift(z uint64, n uint) uint64 {
	x := z
	for range 64/n + 1 {
		x = z ^ x>>n
	}
	return x
}

// inverse returns the inverse of an odd number modulo 2^64, by Newton's iteration.
func inverse(a uint64) uint64 {
	x := a
	for range 6 {
		x *= 2 - a*x
	}
	return x
}

func TestKeyRangesDivideTheLineEvenly(t *testing.T) {
	soaktest.Check(t, func(t *rapid.T) {
		groups := rapid.OneOf(rapid.IntRange(1, 40), rapid.IntRange(1, routing.HashGroupsMax)).Draw(t, "groups")
		r := routing.Routing{Mode: routing.Hash, Groups: groups}
		next := new(big.Int)
		least := new(big.Int).Div(new(big.Int).Lsh(big.NewInt(1), 64), big.NewInt(int64(groups)))
		for g := range groups {
			first, last := r.KeyRange(g)
			if next.Cmp(new(big.Int).SetUint64(first)) != 0 {
				t.Fatalf("group %d of %d begins at %d, the one before ends before %v", g, groups, first, next)
			}
			next.Add(new(big.Int).SetUint64(last), big.NewInt(1))
			size := new(big.Int).Sub(next, new(big.Int).SetUint64(first))
			if over := size.Sub(size, least); over.Sign() < 0 || over.Cmp(big.NewInt(1)) > 0 {
				t.Fatalf("group %d of %d has %v keys more than %v", g, groups, over, least)
			}
		}
		if next.BitLen() != 65 {
			t.Fatalf("the ranges of %d groups end at %v", groups, next)
		}
	})
}

func TestGroupOfLiesInItsKeyRange(t *testing.T) {
	soaktest.Check(t, func(t *rapid.T) {
		r := routing.Routing{Mode: routing.Hash, Groups: rapid.IntRange(1, routing.HashGroupsMax).Draw(t, "groups")}
		id := rapid.Int64().Draw(t, "id")
		g := r.GroupOf(id)
		if first, last := r.KeyRange(g); routing.Key(id) < first || routing.Key(id) > last {
			t.Fatalf("id %d has key %d, its group %d of %d has %d to %d", id, routing.Key(id), g, r.Groups, first, last)
		}
	})
}

func TestRoutingOutsideItsRange(t *testing.T) {
	for _, r := range []routing.Routing{{}, {Mode: routing.Named}, {Mode: routing.Hash, Groups: -1}} {
		if g := r.GroupOf(7); g != -1 {
			t.Errorf("%+v: group %d of an id, want -1", r, g)
		}
	}
	r := routing.Routing{Mode: routing.Hash, Groups: 4}
	for _, g := range []int{-1, 4, math.MaxInt, math.MinInt} {
		if first, last := r.KeyRange(g); first <= last {
			t.Errorf("group %d owns %d to %d, want nothing", g, first, last)
		}
	}
}

func TestGroupNames(t *testing.T) {
	long := strings.Repeat("x", 253)
	for _, ok := range []string{"0", "a", "A-b_c.d", "-", "_", "2026-11-21", "a..b", long} {
		if err := routing.ValidateGroupName(ok); err != nil {
			t.Errorf("%q: %v", ok, err)
		}
	}
	for _, bad := range []string{"", ".", "..", ".a", "a/b", "a b", "a\x00", "ä", long + "x"} {
		if routing.ValidateGroupName(bad) == nil {
			t.Errorf("%q was taken", bad)
		}
	}
}

func TestShardNames(t *testing.T) {
	for _, ok := range []string{"0", "a", "quotes-ssd-0", "a.b"} {
		if err := routing.ValidateShardName(ok); err != nil {
			t.Errorf("%q: %v", ok, err)
		}
	}
	for _, bad := range []string{"", ".", "-a", "A", "a_b", "a/b", strings.Repeat("x", 254)} {
		if routing.ValidateShardName(bad) == nil {
			t.Errorf("%q was taken", bad)
		}
	}
}
