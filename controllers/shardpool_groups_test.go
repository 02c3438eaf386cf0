package controllers

import (
	"context"
	"fmt"
	"strings"

	. "github.com/onsi/gomega"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"sheaf.dev/sheaf/api/v1alpha1"
	"sheaf.dev/sheaf/client/recordv1"
	"sheaf.dev/sheaf/controllers/fleet"
)

var _ = Describe("Groups that are not well", func() {
	It("are counted and named, from the shards to the store", func(ctx context.Context) {
		p := newStorePlay(ctx)
		p.running(ctx, 2)
		p.away = true // from now on, the test itself sets the reports of the shards
		groups := func(shard int, change func(*recordv1.ShardStatus)) {
			p.setReport(fmt.Sprintf("ssd-%d", shard), func(r *recordv1.ShardStatus) {
				for n := range 4 {
					r.Groups = append(r.Groups, &recordv1.Group{Group: fmt.Sprint(4*shard + n),
						State: recordv1.GroupState_GROUP_STATE_SERVING, Leader: true,
						Records: 10, StoredBytes: 100})
				}
				if change != nil {
					change(r)
				}
			})
		}
		groups(0, nil)
		groups(1, func(r *recordv1.ShardStatus) {
			r.Groups[1].State, r.Groups[1].Message = recordv1.GroupState_GROUP_STATE_DAMAGED, "some stored bytes are bad"
			r.Groups[2] = &recordv1.Group{Group: "6", State: recordv1.GroupState_GROUP_STATE_FAILED, Lost: true,
				Message: "bring the old volume back " + strings.Repeat("x", 1000)}
		})
		p.settle(ctx)
		status := p.get(ctx).Status
		Expect(status.Records).To(Equal(int64(70)))
		Expect(status.StoredBytes).To(Equal(int64(700)))
		Expect(status.Groups).To(And(HaveField("Total", int32(8)), HaveField("Serving", int32(7)),
			HaveField("Damaged", int32(1)),
			HaveField("DataLost", int32(1)), HaveField("Degraded", int32(0)), HaveField("Moving", int32(0))))
		Expect(status.Groups.NotWell).To(HaveLen(2))
		Expect(status.Groups.NotWell[0]).To(And(HaveField("Group", "6"), HaveField("State", "DataLost"),
			HaveField("Shard", "ssd-1")))
		Expect(len(status.Groups.NotWell[0].Message)).To(Equal(fleet.TroubleBytesMax))
		Expect(status.Groups.NotWell[1]).To(And(HaveField("Group", "5"), HaveField("State", "Damaged"),
			HaveField("Message", "some stored bytes are bad")))
		p.expect(ctx, v1alpha1.ConditionReady, metav1.ConditionFalse, "DataLost", "7 of 8 groups",
			"group 6 of shard ssd-1: bring the old volume back")

		By("a disk that is lost: so are all its groups")
		p.setReport("ssd-1", func(r *recordv1.ShardStatus) {
			r.Shard.State, r.Shard.Message = recordv1.ShardState_SHARD_STATE_DISK_LOST, "the volume is blank"
		})
		p.settle(ctx)
		status = p.get(ctx).Status
		Expect(status.Groups).To(And(HaveField("Serving", int32(4)), HaveField("DataLost", int32(4)),
			HaveField("Damaged", int32(0))))
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
