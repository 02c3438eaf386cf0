package controllers

import (
	"context"
	"fmt"
	"strings"
	"testing"

	. "github.com/onsi/gomega"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"sheaf.dev/sheaf/api/v1alpha1"
)

func TestCountGroups(t *testing.T) {
	whole := GroupReport{Group: "1", State: "Serving", Leader: true, Records: 100, StoredBytes: 1000}
	follower := GroupReport{Group: "2", State: "Serving", Records: 100, StoredBytes: 1000}
	damaged := GroupReport{Group: "3", State: "Damaged", Leader: true, Records: 50, StoredBytes: 1000}
	gone := GroupReport{Group: "4", State: "Failed", Lost: true}
	before := v1alpha1.ShardStatus{Groups: 4, DamagedGroups: 2, Records: 1000, StoredBytes: 9000}
	report := func(state v1alpha1.ShardState, groups ...GroupReport) *ShardReport {
		return &ShardReport{State: state, Groups: groups}
	}
	for name, c := range map[string]struct {
		state  v1alpha1.ShardState
		report *ShardReport
		want   v1alpha1.ShardStatus
	}{
		"serving": {v1alpha1.ShardServing, report(v1alpha1.ShardServing, whole, follower, damaged, gone),
			v1alpha1.ShardStatus{Groups: 4, ServingGroups: 3, LeadingGroups: 2, DamagedGroups: 1, LostGroups: 1, Records: 150, StoredBytes: 3000}},
		"loading": {v1alpha1.ShardLoading, report(v1alpha1.ShardLoading, whole, GroupReport{State: "Loading"}),
			v1alpha1.ShardStatus{Groups: 2, ServingGroups: 1, LeadingGroups: 1, Records: 1000, StoredBytes: 9000}},
		"silent": {v1alpha1.ShardUnreachable, nil, v1alpha1.ShardStatus{Groups: 4, DamagedGroups: 2, Records: 1000, StoredBytes: 9000}},
		"held":   {v1alpha1.ShardPending, report(v1alpha1.ShardPending), v1alpha1.ShardStatus{Groups: 4, DamagedGroups: 2, Records: 1000, StoredBytes: 9000}},
		"disk lost": {v1alpha1.ShardDiskLost, report(v1alpha1.ShardDiskLost),
			v1alpha1.ShardStatus{Groups: 4, LostGroups: 4}},
	} {
		o := &observedShard{Last: before, Report: c.report}
		got := v1alpha1.ShardStatus{State: c.state}
		o.countGroups(&got)
		if c.want.State = c.state; got != c.want {
			t.Errorf("%s: %+v, want %+v", name, got, c.want)
		}
	}
}

// With several copies others lead the groups of a shard that is silent, and count their records.
func TestASilentShardHasNoRecordsWhereOthersHaveCopies(t *testing.T) {
	for copies, want := range map[int32]int64{1: 1000, 3: 0} {
		o := &observedShard{Copies: copies, Last: v1alpha1.ShardStatus{Groups: 4, LeadingGroups: 2, Records: 1000, StoredBytes: 9000}}
		got := v1alpha1.ShardStatus{State: v1alpha1.ShardNodeDown}
		o.countGroups(&got)
		if got.Records != want || got.LeadingGroups != 0 || got.Groups != 4 || got.StoredBytes != 9000 {
			t.Errorf("%d copies: %+v", copies, got)
		}
	}
}

func TestTheWorstGroupsAreNamedFirst(t *testing.T) {
	var list []v1alpha1.GroupTrouble
	for n := range 30 {
		list = append(list, v1alpha1.GroupTrouble{Group: fmt.Sprint(n), State: groupDamaged}, v1alpha1.GroupTrouble{Group: fmt.Sprint(n), State: "Unavailable"})
	}
	list = append(list, v1alpha1.GroupTrouble{Group: "29", State: groupLost})
	got := firstTroubles(list)
	if len(got) != troublesMax || got[0].Group != "29" || got[0].State != groupLost || got[1].Group != "0" || got[11].Group != "10" {
		t.Errorf("%+v", got)
	}
}

var _ = Describe("Groups that are not well", func() {
	It("are counted and named, from the shards to the store", func(ctx context.Context) {
		p := newStorePlay(ctx)
		p.create(ctx)
		p.pool(ctx, 2)
		p.settle(ctx)
		p.ready(ctx)
		p.away = true // from now on the shards say what this test says
		groups := func(shard int, change func(*ShardReport)) {
			p.says(fmt.Sprintf("ssd-%d", shard), func(r *ShardReport) {
				for n := range 4 {
					r.Groups = append(r.Groups, GroupReport{Group: fmt.Sprint(4*shard + n), State: "Serving", Leader: true, Records: 10, StoredBytes: 100})
				}
				if change != nil {
					change(r)
				}
			})
		}
		groups(0, nil)
		groups(1, func(r *ShardReport) {
			r.Groups[1].State, r.Groups[1].Message = "Damaged", "some stored bytes are bad"
			r.Groups[2] = GroupReport{Group: "6", State: "Failed", Lost: true, Message: "bring the old volume back " + strings.Repeat("x", 1000)}
		})
		p.settle(ctx)
		status := p.get(ctx).Status
		Expect(status.Records).To(Equal(int64(70)))
		Expect(status.StoredBytes).To(Equal(int64(700)))
		Expect(status.Groups).To(And(HaveField("Total", int32(8)), HaveField("Serving", int32(7)), HaveField("Damaged", int32(1)),
			HaveField("DataLost", int32(1)), HaveField("Degraded", int32(0)), HaveField("Moving", int32(0))))
		Expect(status.Groups.NotWell).To(HaveLen(2))
		Expect(status.Groups.NotWell[0]).To(And(HaveField("Group", "6"), HaveField("State", "DataLost"), HaveField("Shard", "ssd-1")))
		Expect(len(status.Groups.NotWell[0].Message)).To(Equal(troubleBytesMax))
		Expect(status.Groups.NotWell[1]).To(And(HaveField("Group", "5"), HaveField("State", "Damaged"), HaveField("Message", "some stored bytes are bad")))
		p.expect(ctx, v1alpha1.ConditionReady, metav1.ConditionFalse, "DataLost", "7 of 8 groups", "group 6 of shard ssd-1: bring the old volume back")

		By("a disk that is lost: so are all its groups")
		p.says("ssd-1", func(r *ShardReport) { r.State, r.Message = v1alpha1.ShardDiskLost, "the volume is blank" })
		p.settle(ctx)
		status = p.get(ctx).Status
		Expect(status.Groups).To(And(HaveField("Serving", int32(4)), HaveField("DataLost", int32(4)), HaveField("Damaged", int32(0))))
		Expect(status.Records).To(Equal(int64(40)))
		p.expect(ctx, v1alpha1.ConditionReady, metav1.ConditionFalse, "DiskLost", "the volume is blank")

		By("mended")
		groups(1, nil)
		p.settle(ctx)
		p.ready(ctx)
		status = p.get(ctx).Status
		Expect(status.Groups).To(Equal(v1alpha1.GroupCounts{Total: 8, Serving: 8}))
		Expect(status.Records).To(Equal(int64(80)))
	})
})
