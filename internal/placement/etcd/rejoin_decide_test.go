package etcd

import (
	"strings"
	"testing"
)

// seen returns a cluster of the members a, b and c in the states given by words: "a" (healthy), "c dead", "c
// learner", "c new" (added, but not started), "b sick" and "c gone".
func seen(words ...string) *View {
	v := &View{ClusterID: 7}
	for _, word := range words {
		name, state, _ := strings.Cut(word, " ")
		p := Peer{ID: uint64(name[0]), Name: name, PeerURLs: []string{"http://" + name}, Answers: true}
		switch state {
		case "dead":
			p.Answers, p.Trouble = false, "does not answer: refused"
		case "sick":
			p.Trouble = "knows no leader"
		case "follows c":
			p.LeaderID = 'c'
		case "learner":
			p.Learner, p.Trouble = true, "is a learner"
		case "new":
			p.Name, p.Answers, p.Trouble, p.ID = "", false, "was added, and has not started yet", 1000+p.ID
		}
		v.Peers = append(v.Peers, p)
	}
	return v
}

// The member under test is c. Its id was 'c' before its disk was replaced, and 1000+'c' after it was added again.
func TestDecideRejoin(t *testing.T) {
	const c, again = uint64('c'), 1000 + uint64('c')
	empty, own := folder{Empty: true}, folder{MemberID: c, ClusterID: 7}
	lacks := folder{MemberID: c, ClusterID: 7, Behind: true}
	for name, k := range map[string]struct {
		folder folder
		fresh  bool // whether the cluster is formed for the first time
		view   *View
		told   []uint64
		want   rejoinStep
		id     uint64
		words  string
	}{
		"a first start": {folder: empty, fresh: true, want: stepStart},
		"a first start, the others have formed": {folder: empty, fresh: true, view: seen("a", "b", "c new"),
			want: stepJoin},
		"an ordinary start":                      {folder: own, view: seen("a", "b", "c dead"), want: stepStart},
		"an ordinary start, another one is down": {folder: own, view: seen("a", "b dead", "c dead"), want: stepStart},
		"an ordinary start, alone":               {folder: own, want: stepStart},
		"a learner starts again":                 {folder: own, view: seen("a", "b", "c learner"), want: stepStart},
		"data that say nothing": {folder: folder{ClusterID: 7}, view: seen("a", "b", "c dead"),
			want: stepStart},
		"empty, alone": {folder: empty, want: stepWait, words: "refused"},
		"empty": {folder: empty, view: seen("a", "b", "c dead"), want: stepRemove,
			id: c, words: "its disk was replaced"},
		"empty, formed a moment ago": {folder: empty, fresh: true, view: seen("a", "b", "c dead"),
			want: stepRemove, id: c},
		"empty, another one is down": {folder: empty, view: seen("a", "b dead", "c dead"), want: stepWait,
			words: "b does not answer"},
		"empty, another one knows no leader": {folder: empty, view: seen("a", "b sick", "c dead"), want: stepWait,
			words: "b knows no leader"},
		"empty, another one joins": {folder: empty, view: seen("a", "b learner", "c dead"), want: stepWait,
			words: "b is a learner"},
		"empty, another one was added": {folder: empty, view: seen("a", "b new", "c dead"), want: stepWait,
			words: "not started yet"},
		"empty, somebody answers in its name": {folder: empty, view: seen("a", "b", "c"), want: stepWait,
			words: "answers at its address"},
		"empty, the others still follow it": {folder: empty, view: seen("a", "b follows c", "c dead"),
			want: stepWait, words: "as their leader"},
		"empty, was a learner": {folder: empty, view: seen("a", "b", "c dead"), want: stepRemove,
			id: c},
		"removed, to be added": {folder: empty, view: seen("a", "b"), want: stepAdd},
		"removed, another one is down": {folder: empty, view: seen("a", "b dead"), want: stepWait,
			words: "b does not answer"},
		"removed, and replaced by another": {folder: empty, view: seen("a", "b", "d"), want: stepRefuse,
			words: "sheaf etcd remove"},
		"added": {folder: empty, view: seen("a", "b", "c new"),
			told: []uint64{again, again}, want: stepJoin},
		"added, one has not heard of it": {folder: empty, view: seen("a", "b", "c new"),
			told: []uint64{again, c}, want: stepWait, words: "not all"},
		"added, one has only heard of the removal": {folder: empty, view: seen("a", "b", "c new"),
			told: []uint64{0, again}, want: stepWait, words: "not all"},
		"the folder of a member that was removed": {folder: own, view: seen("a", "b"), want: stepSetAside,
			words: "does not know"},
		"the folder of one before":                    {folder: own, view: seen("a", "b", "c new"), want: stepSetAside},
		"the folder of a member, another one is down": {folder: own, view: seen("a", "b dead"), want: stepSetAside},
		"lacks entries": {folder: lacks, view: seen("a", "b", "c dead"), want: stepRemove,
			id: c, words: "set back"},
		"lacks entries, another one is down": {folder: lacks, view: seen("a", "b dead", "c dead"), want: stepWait,
			words: "b does not answer"},
		"lacks entries, removed": {folder: lacks, view: seen("a", "b"), want: stepSetAside},
		"lacks entries, alone":   {folder: lacks, want: stepWait, words: "no quorum"},
		"another cluster": {folder: folder{MemberID: c, ClusterID: 8}, view: seen("a", "b"),
			want: stepRefuse, words: "may be the only"},
	} {
		got := decideRejoin(&rejoinInput{
			PeerURLs: []string{"http://c"}, Members: 3, Existing: !k.fresh, Folder: k.folder, View: k.view, NoView: "refused",
			Reported: k.told,
		})
		if got.Step != k.want || got.ID != k.id || !strings.Contains(got.Why, k.words) {
			t.Errorf("%s: %+v, want %s %d with %q", name, got, k.want, k.id, k.words)
		}
	}
}
