package quota

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"
)

// Ledger says what each shard stores of a tenant, and what it may store beyond that until it has asked again. The sum
// of both over all shards is within the tenant's quotas, unless these were lowered, or groups that a shard leads since
// a moment ago are still in the share of the one that led them before.
type Ledger struct {
	Shards map[string]Share `json:"shards"`
}

// Share is that of one shard.
type Share struct {
	Groups int64  `json:"groups"` // that it leads
	Used   Amount `json:"used,omitzero"`
	Slack  Amount `json:"slack,omitzero"` // that it may store beyond
	Want   Amount `json:"want,omitzero"`  // that something waits for, and others have as slack
}

func (s Share) top() Amount { return s.Used.plus(s.Slack) }

// ParseLedger reads a ledger as etcd has it; no text: an empty one.
func ParseLedger(text []byte) (Ledger, error) {
	l := Ledger{}
	if len(text) > 0 {
		if err := json.Unmarshal(text, &l); err != nil {
			return Ledger{}, fmt.Errorf("read a ledger of quotas: %w", err)
		}
	}
	if l.Shards == nil {
		l.Shards = map[string]Share{}
	}
	return l, nil
}

// Used is what all shards store.
func (l Ledger) Used() (used Amount) {
	for _, s := range l.Shards {
		used = used.plus(s.Used)
	}
	return used
}

// facts is what a shard knows when it looks for its share.
type facts struct {
	shard  string
	groups int64    // that it leads
	all    int64    // of the tenant
	used   Amount   // by groups that it leads
	want   Amount   // the largest that waits for slack
	left   Amount   // of its slack
	limits Amount   // 0: there is none
	gone   []string // shards of the ledger that are not registered
	aged   bool     // the share was written long ago
	// patient: groups that are in no share, whatever they store, will be soon. Until then no slack is taken.
	patient bool
}

// outlook is what follows from a ledger for a shard.
type outlook struct {
	share Share    // that is to be in the ledger
	gone  []string // shards that are to be taken out of it
	total Amount   // what all store
	// inFlight is what counts in total and may be in it twice: as under way, and as stored.
	inFlight Amount
	settled  bool // each group is in the ledger once
}

// look finds the share of a shard.
func (l Ledger) look(f facts) outlook {
	out := outlook{share: Share{Groups: f.groups, Used: f.used}}
	var others, lost Share
	for name, s := range l.Shards {
		switch {
		case name == f.shard:
		case slices.Contains(f.gone, name):
			lost.add(s)
			out.gone = append(out.gone, name)
		default:
			others.add(s)
		}
	}
	old := l.Shards[f.shard]
	// What a shard led that is gone, and what this one led, counts there until others lead it, and say so: nobody may
	// take it for room.
	if known := others.Groups + f.groups; known < f.all {
		if len(out.gone) > 0 {
			others.add(lost)
			out.gone = nil
		}
		if f.groups < old.Groups && known+lost.Groups < f.all {
			out.share.Groups = old.Groups
			out.share.Used = each(func(of func(Amount) int64) int64 { return max(of(old.top())-of(f.left), of(f.used)) })
		}
	}
	unknown := f.patient && others.Groups+out.share.Groups < f.all
	out.total = others.Used.plus(out.share.Used)
	out.settled = others.Groups+f.groups == f.all && out.share.Groups == f.groups
	alone := others.Groups == 0 && out.settled
	out.share.Slack = each(func(of func(Amount) int64) int64 {
		free := of(f.limits) - of(others.top()) - of(out.share.Used)
		switch {
		case of(f.limits) == 0 || free <= 0 || out.share.Groups == 0:
			return 0
		case unknown:
			return min(free, max(0, of(f.left)))
		case alone:
			return free
		case free < of(f.want), of(others.Want) > 0 && of(f.want) == 0:
			return 0
		case of(others.Want) > 0:
			return of(f.want)
		}
		// Each takes half of what the others leave: all have as much in the end, and so much again is left.
		return max(free/2, min(free, of(f.want)))
	})
	out.share.Want = each(func(of func(Amount) int64) int64 {
		if of(out.share.Slack) < of(f.want) && of(out.total)+of(f.want) <= of(f.limits) {
			return of(f.want)
		}
		return 0
	})
	return out
}

func (s *Share) add(other Share) {
	s.Groups += other.Groups
	s.Used, s.Slack, s.Want = s.Used.plus(other.Used), s.Slack.plus(other.Slack), s.Want.plus(other.Want)
}

// toldShare of a quota is what a shard may store before it tells, if that is not long ago.
const toldShare = 128

// isWorth tells whether the share that follows from a ledger is to be written: groups have come or gone, what is told
// of what is stored is old or far from it, or the slack is twice what is left of it, or half.
func (o *outlook) isWorth(old Share, is bool, f facts) bool {
	if !is || o.share.Groups != old.Groups || o.share.Want != old.Want || len(o.gone) > 0 {
		return is || o.share != Share{}
	}
	worth := false
	each(func(of func(Amount) int64) int64 {
		used, slack := of(o.share.Used), of(o.share.Slack)
		moved, left := used-of(old.Used), of(old.top())-used
		switch {
		case of(f.limits) > 0 && max(moved, -moved) > of(f.limits)/toldShare, moved != 0 && f.aged:
			worth = true
		case left < 0:
			worth = true // groups came that hold more
		case slack > left && (2*left < slack || of(f.want) > left):
			worth = true
		case slack < left && 2*slack <= left:
			worth = true // others may need it
		}
		return 0
	})
	return worth
}

// with gives the ledger with a share of a shard in it, and without those that are gone.
func (l Ledger) with(shard string, o *outlook) ([]byte, error) {
	next := Ledger{Shards: maps.Clone(l.Shards)}
	for _, name := range o.gone {
		delete(next.Shards, name)
	}
	next.Shards[shard] = o.share
	if o.share == (Share{}) {
		delete(next.Shards, shard)
	}
	return json.Marshal(next)
}
