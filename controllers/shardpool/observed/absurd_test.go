package observed

import (
	"fmt"
	"math"
	"testing"
	"unicode/utf8"

	corev1 "k8s.io/api/core/v1"

	"sheaf.dev/sheaf/api/v1alpha1"
	"sheaf.dev/sheaf/client/recordv1"
	"sheaf.dev/sheaf/controllers/fleet"
	"sheaf.dev/sheaf/internal/kube/workload"
	"sheaf.dev/sheaf/internal/test/fleettest"
)

// Whatever is observed about a shard, the shard gets a state, a message of limited length, and plausible numbers.
func TestAnAbsurdShardHasAState(t *testing.T) {
	words := []string{"ssd-1", "n1", "Ready", "True", "False", "Bound", "Lost", "Running", "Failed",
		workload.ContainerShard,
		"CrashLoopBackOff", "ImagePullBackOff", fleet.ReasonOOMKilled, "Unschedulable", corev1.TaintNodeOutOfService,
		"FailedMount: no such device", "vol-1", "store-1", workload.AnnotationTemplate, "t1", "PodScheduled",
		string(v1alpha1.ShardServing), string(v1alpha1.ShardLoading), string(v1alpha1.ShardPending),
		string(v1alpha1.ShardForeign), string(v1alpha1.ShardDiskLost), string(v1alpha1.ShardMemoryTooSmall),
		string(v1alpha1.ShardImagePull)}
	fleettest.Absurdly(t, words, func(a *fleettest.Absurd) {
		honest, o := serveWell(), serveWell()
		a.Fill(o)
		// In some rounds, keep some parts valid, so that the absurd values in the other parts determine the result.
		for _, keep := range []func(){
			func() { o.NodeName, o.Node, o.Parked, o.Refused = honest.NodeName, honest.Node, false, "" },
			func() { o.Claim, o.Volume = honest.Claim, honest.Volume },
			func() { o.Set, o.Pod = honest.Set, honest.Pod },
			func() { o.ReportErr = fmt.Errorf("%w: %s", fleet.ErrVolumeSilent, a.Text()) },
			func() { o.Report = nil },
			func() {
				if r, h := o.Report.GetShard(), honest.Report.GetShard(); r != nil {
					r.State, o.EtcdTrouble = recordv1.ShardState_SHARD_STATE_LOADING, nil
					r.VolumeUuid, r.StoreUuid, r.FileSystem, r.MountOptions, r.Source, r.Rotational = h.VolumeUuid, h.StoreUuid,
						h.FileSystem, h.MountOptions, h.Source, h.Rotational
					r.CapacityBytes, r.FreeBytes, r.ReserveBytes = h.CapacityBytes, h.FreeBytes, h.ReserveBytes
				}
			},
			func() { o.EtcdTrouble = nil },
		} {
			if a.IntN(2) == 0 {
				keep()
			}
		}
		o.MessageMax = honest.MessageMax
		got := Decide(o)
		if got.State == "" || len(got.Message) > o.MessageMax || !utf8.ValidString(got.Message) {
			t.Fatalf("state %q, a message of %d bytes: %q", got.State, len(got.Message), got.Message)
		}
		if o.Report != nil && !o.Parked {
			o.Last = v1alpha1.ShardStatus{}
			got = Decide(o)
			if got.LoadPercent < 0 || got.LoadPercent > 100 || got.LoadDevicePercent < 0 || got.LoadDevicePercent > 9999 ||
				got.LoadBytesPerSecond < 0 || got.Groups < 0 || len(got.Load) > 100 {
				t.Fatalf("the load is %d %%, %d %%, %d B/s, %q of %d groups", got.LoadPercent, got.LoadDevicePercent,
					got.LoadBytesPerSecond, got.Load, got.Groups)
			}
		}
	})
}

// A broken clock or a different version of a shard may make its rates absurd. The conversion of NaN to an integer
// depends on the processor.
func TestAbsurdLoadRatesAreDropped(t *testing.T) {
	for rate, want := range map[float64]string{
		math.NaN(): "50% 0B/s", math.Inf(-1): "50% 0B/s", -1: "50% 0B/s", math.Inf(1): "50% 0B/s",
		1e300: "50% 0B/s", 1 << 30: "50% 1.0GiB/s (100% of the device)",
	} {
		o := serveWell()
		o.Report.Shard.State = recordv1.ShardState_SHARD_STATE_LOADING
		o.Report.Shard.Load = &recordv1.Load{BytesTotal: 1 << 30, BytesDone: 1 << 29, BytesPerSecond: rate,
			DeviceBytesPerSecond: rate, EtaSeconds: -1}
		if got := Decide(o); got.Load != want {
			t.Errorf("%g: %q, %d B/s, %d %%", rate, got.Load, got.LoadBytesPerSecond, got.LoadDevicePercent)
		}
	}
}
