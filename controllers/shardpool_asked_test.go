package controllers

import (
	"context"
	"errors"
	"strings"
	"testing"

	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"sheaf.dev/sheaf/api/v1alpha1"
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
		"well":                     {func(*askedReplacement) {}, replaceGiveUp, "every group on it has a majority elsewhere"},
		"no such shard":            {func(a *askedReplacement) { a.Exists = false }, replaceRefused, "the pool has none of that number"},
		"a shard that goes":        {func(a *askedReplacement) { a.Leaves = true }, replaceRefused, "which is to be removed"},
		"a single copy":            {func(a *askedReplacement) { a.Copies = 1 }, replaceRefused, "one copy of each group"},
		"no claim":                 {func(a *askedReplacement) { a.Claim = nil }, replaceWaits, "has no claim yet"},
		"etcd is away":             {func(a *askedReplacement) { a.Known, a.Unknown = false, errors.New("no route") }, replaceWaits, "no route"},
		"copies that are not well": {func(a *askedReplacement) { a.Undecided = []string{"1", "2"} }, replaceWaits, "until 2 groups have a majority of copies without it (groups 1, 2)"},
		"given up, the pod runs":   {func(a *askedReplacement) { a.Replaced, a.Stopped = "old", false }, replaceWaits, "its pod is stopped first"},
		"given up":                 {func(a *askedReplacement) { a.Replaced = "old" }, replaceRemove, "claim data-ssd-1-0 is deleted"},
		// What is on the disk counts no more, so that nothing found later may stop half-way.
		"given up, and then copies fall behind": {func(a *askedReplacement) { a.Replaced, a.Known, a.Undecided = "old", false, []string{"1"} }, replaceRemove, ""},
		"given up, and then to be removed":      {func(a *askedReplacement) { a.Replaced, a.Leaves = "old", true }, replaceRemove, ""},
		"the claim is gone":                     {func(a *askedReplacement) { a.Replaced, a.Claim = "old", nil }, replaceDone, ""},
		"another claim":                         {func(a *askedReplacement) { a.Replaced, a.Claim = "old", claim("new") }, replaceDone, ""},
		"another claim, copies behind":          {func(a *askedReplacement) { a.Replaced, a.Claim, a.Undecided = "old", claim("new"), []string{"1"} }, replaceDone, ""},
	} {
		a := askedReplacement{Name: "ssd-1", Number: 1, Exists: true, Copies: 3, Claim: claim("old"), Stopped: true, Known: true}
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
		pool.Annotations = map[string]string{annotationReplaced: text}
		if got := markWords(replacedClaims(pool)); got != want {
			t.Errorf("%q is %q, not %q", text, got, want)
		}
	}
}

var _ = Describe("A disk that is to be replaced", func() {
	var p *storePlay
	claim := func(ctx context.Context, shard string) types.UID {
		var c corev1.PersistentVolumeClaim
		Expect(api.Get(ctx, types.NamespacedName{Namespace: p.Namespace, Name: "data-" + shard + "-0"}, &c)).To(Succeed())
		return c.UID
	}
	start := func(ctx context.Context, copies int32) {
		p = newStorePlay(ctx)
		p.create(ctx, func(s *v1alpha1.RecordStore) { s.Spec.Replication.Copies = copies })
		p.pool(ctx, 3)
		p.settle(ctx)
		p.ready(ctx)
	}
	// fresh lets a shard that was started again find another volume.
	fresh := func() {
		p.reported = func(name string, r *ShardReport) {
			if p.started[name] >= 2 {
				r.Volume.UUID = "another-of-" + name
			}
		}
	}

	It("gets another volume, once for each time that it is named", func(ctx context.Context) {
		start(ctx, 3)
		was, pod := claim(ctx, "ssd-1"), p.pod(ctx, "ssd-1").UID
		volume := p.getPool(ctx).Status.ShardStatuses[1].Volume.UUID
		fresh()
		p.changePool(ctx, func(s *v1alpha1.ShardPoolSpec) { s.Replace = []int32{1} })
		p.settle(ctx)
		p.ready(ctx)
		Expect(claim(ctx, "ssd-1")).NotTo(Equal(was))
		Expect(p.pod(ctx, "ssd-1").UID).NotTo(Equal(pod))
		Expect(p.getPool(ctx).Status.ShardStatuses[1].Volume.UUID).To(Equal("another-of-ssd-1"))
		Expect(p.getPool(ctx).Annotations[annotationForget]).To(Equal(volume))
		Expect(p.started).To(And(HaveKeyWithValue("ssd-0", 1), HaveKeyWithValue("ssd-1", 2), HaveKeyWithValue("ssd-2", 1)))

		By("and not once more while it stays there, nor by another operator")
		p.operator(acting)
		now := claim(ctx, "ssd-1")
		p.settle(ctx)
		Expect(claim(ctx, "ssd-1")).To(Equal(now))

		By("but when it is taken out and named again")
		p.changePool(ctx, func(s *v1alpha1.ShardPoolSpec) { s.Replace = nil })
		p.settle(ctx)
		Expect(p.getPool(ctx).Annotations).NotTo(HaveKey(annotationReplaced))
		Expect(claim(ctx, "ssd-1")).To(Equal(now))
		p.changePool(ctx, func(s *v1alpha1.ShardPoolSpec) { s.Replace = []int32{1} })
		p.settle(ctx)
		Expect(claim(ctx, "ssd-1")).NotTo(Equal(now))
		Expect(p.started["ssd-1"]).To(Equal(3))
	})

	It("is not where the store has a single copy of each group", func(ctx context.Context) {
		start(ctx, 1)
		was := claim(ctx, "ssd-1")
		p.changePool(ctx, func(s *v1alpha1.ShardPoolSpec) { s.Replace = []int32{1, 7} })
		p.settle(ctx)
		Expect(claim(ctx, "ssd-1")).To(Equal(was))
		Expect(p.started["ssd-1"]).To(Equal(1))
		p.expectPool(ctx, "ssd", v1alpha1.ConditionStalled, metav1.ConditionTrue, reasonReplaceRefused, "one copy of each group")
		p.changePool(ctx, func(s *v1alpha1.ShardPoolSpec) { s.Replace = nil })
		p.settle(ctx)
		p.ready(ctx)
	})

	It("waits where a group has no majority without it, and goes on when it has", func(ctx context.Context) {
		start(ctx, 3)
		was := claim(ctx, "ssd-1")
		p.NoSets = true
		Expect(api.Delete(ctx, p.pod(ctx, "ssd-0"))).To(Succeed())
		Expect(p.etcd.Leave(ctx, p.Namespace, "quotes", "ssd-0")).To(Succeed())
		p.changePool(ctx, func(s *v1alpha1.ShardPoolSpec) { s.Replace = []int32{1} })
		p.settle(ctx)
		Expect(claim(ctx, "ssd-1")).To(Equal(was))
		Expect(p.getPool(ctx).Annotations).NotTo(HaveKey(annotationForget))
		p.NoSets = false
		fresh()
		p.uuidOf = p.etcd.Volume
		p.settle(ctx)
		Expect(claim(ctx, "ssd-1")).NotTo(Equal(was))
	})

	It("is replaced all the same by operators that end after each write", func(ctx context.Context) {
		start(ctx, 3)
		was := claim(ctx, "ssd-1")
		fresh()
		p.changePool(ctx, func(s *v1alpha1.ShardPoolSpec) { s.Replace = []int32{1} })
		for range 40 {
			p.operator((&killer{at: 1}).client())
			_ = p.round(ctx) // it ends in the middle
		}
		p.operator(acting)
		p.settle(ctx)
		p.ready(ctx)
		Expect(claim(ctx, "ssd-1")).NotTo(Equal(was))
		Expect(p.started["ssd-1"]).To(Equal(2))
		Expect(p.started["ssd-0"]).To(Equal(1))
	})
})
