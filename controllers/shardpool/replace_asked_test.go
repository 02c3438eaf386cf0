package shardpool

import (
	"errors"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"sheaf.dev/sheaf/api/v1alpha1"
	"sheaf.dev/sheaf/controllers/fleet"
)

func TestDecideReplacement(t *testing.T) {
	claim := func(uid types.UID) *corev1.PersistentVolumeClaim {
		return &corev1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{Name: "data-ssd-1-0", UID: uid}}
	}
	for name, c := range map[string]struct {
		change func(*askedReplacement)
		want   replacement
		says   string
	}{
		"well": {func(*askedReplacement) {}, replaceGiveUp, "every group on it has a majority elsewhere"},
		"no such shard": {func(a *askedReplacement) {
			a.Exists = false
		}, replaceRefused, "the pool has none of that number"},
		"a shard that goes": {func(a *askedReplacement) { a.Leaves = true }, replaceRefused, "which is to be removed"},
		"a single copy":     {func(a *askedReplacement) { a.Copies = 1 }, replaceRefused, "one copy of each group"},
		"no claim":          {func(a *askedReplacement) { a.Claim = nil }, replaceWaits, "has no claim yet"},
		"etcd is away": {func(a *askedReplacement) {
			a.Known, a.Unknown = false, errors.New("no route")
		}, replaceWaits, "no route"},
		"copies that are not well": {func(a *askedReplacement) {
			a.Undecided = []string{"1", "2"}
		}, replaceWaits, "until 2 groups have a majority of copies without it (groups 1, 2)"},
		"given up, the pod runs": {func(a *askedReplacement) {
			a.Replaced, a.Stopped = "old", false
		}, replaceWaits, "its pod is stopped first"},
		"given up": {func(a *askedReplacement) {
			a.Replaced = "old"
		}, replaceRemove, "claim data-ssd-1-0 is deleted"},
		// The volume is already given up, so findings that come later must not stop the replacement half-way.
		"given up, and then copies fall behind": {func(a *askedReplacement) {
			a.Replaced, a.Known, a.Undecided = "old", false, []string{"1"}
		}, replaceRemove, ""},
		"given up, and then to be removed": {func(a *askedReplacement) {
			a.Replaced, a.Leaves = "old", true
		}, replaceRemove, ""},
		"the claim is gone": {func(a *askedReplacement) {
			a.Replaced, a.Claim = "old", nil
		}, replaceDone, ""},
		"another claim": {func(a *askedReplacement) {
			a.Replaced, a.Claim = "old", claim("new")
		}, replaceDone, ""},
		"another claim, copies behind": {func(a *askedReplacement) {
			a.Replaced, a.Claim, a.Undecided = "old", claim("new"), []string{"1"}
		}, replaceDone, ""},
	} {
		a := askedReplacement{Name: "ssd-1", Number: 1, Exists: true, Copies: 3, Claim: claim("old"), Stopped: true,
			Known: true}
		c.change(&a)
		got, words := decideReplacement(a)
		if got != c.want || !strings.Contains(words, c.says) || (got == replaceDone) != (words == "") {
			t.Errorf("%s: %v, %q", name, got, words)
		}
	}
}

func TestReplacedClaims(t *testing.T) {
	pool := &v1alpha1.ShardPool{}
	for text, want := range map[string]string{
		"": "", "1=a": "1=a", "10=c, 2=b": "2=b,10=c", "x=a,-1=b,3,4=": "", "7=u-i-d,nonsense": "7=u-i-d",
	} {
		pool.Annotations = map[string]string{fleet.AnnotationReplaced: text}
		if got := markWords(fleet.ReplacedClaims(pool)); got != want {
			t.Errorf("%q is %q, not %q", text, got, want)
		}
	}
}
