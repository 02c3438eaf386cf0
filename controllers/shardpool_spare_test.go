package controllers

import (
	"context"
	"slices"
	"strings"
	"testing"

	. "github.com/onsi/gomega"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"sheaf.dev/sheaf/api/v1alpha1"
)

// reportsOf makes turns: "a 1:500 2:20" is shard a with group 1 applied up to 500, and group 2 up to 20; "a 1:x" cannot serve it.
func reportsOf(words ...string) (turns []turn) {
	for _, w := range words {
		fields := strings.Fields(w)
		t := turn{Name: fields[0], State: v1alpha1.ShardServing, Report: &ShardReport{}}
		for _, f := range fields[1:] {
			name, applied, _ := strings.Cut(f, ":")
			g := GroupReport{Group: name, State: "Serving"}
			for _, c := range applied {
				if c == 'x' {
					g.State = "Loading"
					break
				}
				g.AppliedIndex = 10*g.AppliedIndex + uint64(c-'0')
			}
			t.Report.Groups = append(t.Report.Groups, g)
		}
		turns = append(turns, t)
	}
	return turns
}

func TestNeeded(t *testing.T) {
	view := viewOf(3, "a b c d", map[string]string{"1": "a b c", "2": "b c d", "3": "a -b d"})
	all := []string{"a 1:5000 3:7", "b 1:5000 2:20", "c 1:5000 2:20", "d 2:20 3:7"}
	for name, c := range map[string]struct {
		shard   string
		reports []string
		want    string
	}{
		"all well":                        {"c", all, ""},
		"a group lacks a copy":            {"d", all, "group 3 "},
		"another's copy is behind":        {"c", []string{"a 1:3999 3:7", "b 1:5000 2:20", "c 1:5000 2:20", "d 2:20 3:7"}, "group 1 "},
		"not by much":                     {"c", []string{"a 1:4000 3:7", "b 1:5000 2:20", "c 1:5000 2:20", "d 2:20 3:7"}, ""},
		"its own copy is behind":          {"c", []string{"a 1:5000 3:7", "b 1:5000 2:20", "c 1:1 2:20", "d 2:20 3:7"}, ""},
		"another's copy loads":            {"c", []string{"a 1:x 3:7", "b 1:5000 2:20", "c 1:5000 2:20", "d 2:20 3:7"}, "group 1 "},
		"another says nothing":            {"c", []string{"a 1:5000 3:7", "c 1:5000 2:20", "d 2:20 3:7"}, "groups 1, 2 "},
		"a shard without groups can go":   {"e", nil, ""},
		"nobody says anything, all wait":  {"c", nil, "groups 1, 2 "},
		"another one says what was asked": {"b", []string{"a 1:9 3:7", "b 1:5000 2:20", "c 1:9 2:20", "d 2:20 3:7"}, "group 1 "},
	} {
		if got := needed(view, c.shard, reportsOf(c.reports...)); (got == "") != (c.want == "") || !strings.Contains(got, c.want) {
			t.Errorf("%s: %q, want %q", name, got, c.want)
		}
	}
}

var _ = Describe("Restarts of a store with several copies", func() {
	var p *storePlay
	BeforeEach(func(ctx context.Context) {
		p = newStorePlay(ctx)
		p.create(ctx, threeCopies)
		p.pool(ctx, 3)
		p.settle(ctx)
		p.ready(ctx)
	})
	images := func(ctx context.Context) (images []string) {
		for _, shard := range p.runs(ctx) {
			images = append(images, p.pod(ctx, shard).Spec.Containers[0].Image)
		}
		slices.Sort(images)
		return images
	}

	It("wait until each group has a majority that is up to date without the shard", func(ctx context.Context) {
		p.reported = func(shard string, r *ShardReport) {
			for n := range r.Groups {
				r.Groups[n].AppliedIndex = 5000
				if shard == "ssd-2" && p.started[shard] > 0 {
					r.Groups[n].AppliedIndex = 1 // it catches up
				}
			}
		}
		p.change(ctx, func(s *v1alpha1.RecordStore) { s.Spec.Image = "sheaf:2" })
		p.settle(ctx)
		Expect(images(ctx)).To(Equal([]string{"sheaf:1", "sheaf:1", "sheaf:1"}))
		p.expectPool(ctx, "ssd", v1alpha1.ConditionUpdated, metav1.ConditionFalse, "UpdateHeldUp", "is not restarted", "up to date")
		p.reported = nil
		p.settle(ctx)
		p.ready(ctx)
		Expect(images(ctx)).To(Equal([]string{"sheaf:2", "sheaf:2", "sheaf:2"}))
	})

	It("wait while a shard is parked", func(ctx context.Context) {
		p.changePool(ctx, func(s *v1alpha1.ShardPoolSpec) { s.Parked = []int32{1} })
		p.settle(ctx)
		Expect(p.etcd.Leave(ctx, p.Namespace, "quotes", "ssd-1")).To(Succeed())
		p.change(ctx, func(s *v1alpha1.RecordStore) { s.Spec.Image = "sheaf:2" })
		p.settle(ctx)
		Expect(images(ctx)).To(Equal([]string{"sheaf:1", "sheaf:1"}))
		p.expectPool(ctx, "ssd", v1alpha1.ConditionUpdated, metav1.ConditionFalse, "UpdateHeldUp", "no majority")
		p.changePool(ctx, func(s *v1alpha1.ShardPoolSpec) { s.Parked = nil })
		p.settle(ctx)
		p.ready(ctx)
		Expect(images(ctx)).To(Equal([]string{"sheaf:2", "sheaf:2", "sheaf:2"}))
	})
})

var _ = Describe("A disk that is lost", func() {
	var p *storePlay
	// blank is a shard that finds nothing where its volume was, until it is started for whatever is there.
	blank := func(shard string) {
		p.reported = func(name string, r *ShardReport) {
			if name == shard && p.started[shard] < 2 {
				r.State, r.Message, r.Groups, r.Volume = v1alpha1.ShardDiskLost, "the volume is blank", nil, VolumeReport{}
			}
			if name == shard && p.started[shard] >= 2 {
				r.Volume.UUID = "another"
			}
		}
	}
	start := func(ctx context.Context, copies int32) string {
		p = newStorePlay(ctx)
		p.create(ctx, func(s *v1alpha1.RecordStore) { s.Spec.Replication.Copies = copies })
		p.pool(ctx, 3)
		p.settle(ctx)
		p.ready(ctx)
		return p.getPool(ctx).Status.ShardStatuses[1].Volume.UUID
	}

	It("is replaced where every group has a majority elsewhere", func(ctx context.Context) {
		was := start(ctx, 3)
		blank("ssd-1")
		p.settle(ctx)
		Expect(p.getPool(ctx).Annotations[annotationForget]).To(Equal(was))
		Expect(p.started["ssd-1"]).To(Equal(2))
		p.ready(ctx)
		Expect(p.getPool(ctx).Status.ShardStatuses[1].Volume.UUID).To(Equal("another"))
	})

	It("is not where it had the only copy, nor where another majority is not there", func(ctx context.Context) {
		start(ctx, 1)
		blank("ssd-1")
		p.settle(ctx)
		Expect(p.getPool(ctx).Annotations).NotTo(HaveKey(annotationForget))
		p.expectPool(ctx, "ssd", v1alpha1.ConditionStalled, metav1.ConditionTrue, "DiskLost", "ssd-1")

		start(ctx, 3)
		p.NoSets = true
		Expect(api.Delete(ctx, p.pod(ctx, "ssd-0"))).To(Succeed())
		Expect(p.etcd.Leave(ctx, p.Namespace, "quotes", "ssd-0")).To(Succeed())
		blank("ssd-1")
		p.settle(ctx)
		Expect(p.getPool(ctx).Annotations).NotTo(HaveKey(annotationForget))
		p.expectPool(ctx, "ssd", v1alpha1.ConditionStalled, metav1.ConditionTrue, "DiskLost", "8 groups have too few other copies", "groups 0, 1", "blank")
	})
})
