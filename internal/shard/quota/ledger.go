package quota

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
)

// Ledger records for each shard how much it stores for a tenant, and how much more it may store until it reads the
// ledger again. The sum of all these amounts is within the tenant's quotas, with two exceptions: after the quotas
// were lowered, and just after groups have moved to a new leader, while they are still in the previous leader's
// share.
type Ledger struct {
	Shards map[string]Share `json:"shards"`
}

// Share is the entry of one shard in a Ledger.
type Share struct {
	Groups int64  `json:"groups"` // groups that the shard leads
	Used   Amount `json:"used,omitzero"`
	Slack  Amount `json:"slack,omitzero"` // how much the shard may store in addition to Used
	Want   Amount `json:"want,omitzero"`  // amount that a waiting write needs while other shards have it as slack
}

func (s Share) top() Amount { return s.Used.plus(s.Slack) }

// negative reports whether any number of the share is negative.
func (s Share) negative() bool {
	return min(s.Groups, s.Used.Bytes, s.Used.Records, s.Slack.Bytes, s.Slack.Records, s.Want.Bytes, s.Want.Records) < 0
}

// ParseLedger parses a ledger as stored in etcd. Empty text is parsed as an empty ledger. Values that are unreadable or
// negative are left out and named in the error. The returned ledger is usable even after an error, because each shard
// reports its share again.
func ParseLedger(text []byte) (l Ledger, err error) {
	if len(text) > 0 {
		if err = json.Unmarshal(text, &l); err != nil {
			l, err = Ledger{}, fmt.Errorf("its ledger of quotas in etcd cannot be read: %w", err)
		}
	}
	if l.Shards == nil {
		l.Shards = map[string]Share{}
	}
	for _, name := range slices.Sorted(maps.Keys(l.Shards)) {
		if s := l.Shards[name]; s.negative() {
			err = errors.Join(err, fmt.Errorf("its ledger of quotas in etcd is wrong about shard %.40q: %+v", name, s))
			delete(l.Shards, name)
		}
	}
	return l, err
}

// Used returns the amount that all shards store.
func (l Ledger) Used() (used Amount) {
	for _, s := range l.Shards {
		used = used.plus(s.Used)
	}
	return used
}

// facts is the input for computing a shard's share.
type facts struct {
	shard  string
	groups int64    // number of groups that the shard leads
	all    int64    // number of the tenant's groups
	used   Amount   // amount stored by the groups that the shard leads
	want   Amount   // the largest amount that a waiting write needs
	left   Amount   // part of the shard's slack that is not used yet
	limits Amount   // limits of the tenant; 0 means no limit
	gone   []string // shards of the ledger that are not registered
	aged   bool     // the shard wrote its share long ago
	odd    bool     // a part of the ledger could not be read
	// patient means that some groups are not in any share yet, but may soon be in one. Until then, the shard takes no
	// slack, because it is unknown how much these groups store.
	patient bool
}

// outlook is the result of computing a shard's share.
type outlook struct {
	share Share    // share to write to the ledger
	gone  []string // shards to remove from the ledger
	total Amount   // amount stored by all shards
	// inFlight is the part of total that may be counted twice: as writes in progress and as stored data.
	inFlight Amount
	settled  bool // each group is in exactly one share
}

// look computes the share of a shard.
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
	// The groups of a lost shard, and the groups that this shard led before, remain in the old shares until their new
	// leaders report them. Otherwise the space that they use would look like free quota.
	if known := sum(others.Groups, f.groups); known < f.all {
		if len(out.gone) > 0 {
			others.add(lost)
			out.gone = nil
		}
		if f.groups < old.Groups && sum(known, lost.Groups) < f.all {
			out.share.Groups = old.Groups
			out.share.Used = each(func(of func(Amount) int64) int64 { return max(of(old.top())-of(f.left), of(f.used)) })
		}
	}
	unknown := f.patient && sum(others.Groups, out.share.Groups) < f.all
	out.total = others.Used.plus(out.share.Used)
	out.settled = sum(others.Groups, f.groups) == f.all && out.share.Groups == f.groups
	alone := others.Groups == 0 && out.settled
	out.share.Slack = each(func(of func(Amount) int64) int64 {
		free := of(f.limits) - of(others.top().plus(out.share.Used))
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
		// Each shard takes half of the free quota that the other shards leave. In the end, all shards have the same amount
		// of slack, and the same amount remains free.
		return max(free/2, min(free, of(f.want)))
	})
	out.share.Want = each(func(of func(Amount) int64) int64 {
		if of(out.share.Slack) < of(f.want) && of(out.total.plus(f.want)) <= of(f.limits) {
			return of(f.want)
		}
		return 0
	})
	return out
}

func (s *Share) add(other Share) {
	s.Groups = sum(s.Groups, other.Groups)
	s.Used, s.Slack, s.Want = s.Used.plus(other.Used), s.Slack.plus(other.Slack), s.Want.plus(other.Want)
}

// reportShare is a divisor. Soon after a report, a shard reports the amount that it stores again only if it has
// changed by more than the quota divided by reportShare.
const reportShare = 128

// isWorth reports whether the computed share must be written. This is the case if a part of the ledger was
// unreadable, if the number of groups or the wanted amount has changed, or if a shard is no longer registered. It is
// also the case if the reported amount is old or far from the actual one. Finally, it is the case if the unused slack
// is too small for a waiting write, is less than half of the computed slack, or is at least twice as large.
func (o *outlook) isWorth(old Share, is bool, f facts) bool {
	if f.odd {
		return true
	}
	if !is || o.share.Groups != old.Groups || o.share.Want != old.Want || len(o.gone) > 0 {
		return is || o.share != Share{}
	}
	worth := false
	each(func(of func(Amount) int64) int64 {
		used, slack := of(o.share.Used), of(o.share.Slack)
		moved, left := used-of(old.Used), of(old.top())-used
		switch {
		case of(f.limits) > 0 && max(moved, -moved) > of(f.limits)/reportShare, moved != 0 && f.aged:
			worth = true
		case left < 0:
			worth = true // this shard has become leader of groups that store more than its unused slack
		case slack > left && (2*left < slack || of(f.want) > left):
			worth = true
		case slack < left && 2*slack <= left:
			worth = true // other shards may need the slack
		}
		return 0
	})
	return worth
}

// with returns an encoded copy of the ledger, which has the new share of one shard, and lacks the shards that are no
// longer registered.
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
