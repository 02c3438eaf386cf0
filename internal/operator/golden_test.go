package operator

import (
	"encoding/json"
	"flag"
	"os"
	"path/filepath"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"sheaf.dev/sheaf/client/recordv1"
	"sheaf.dev/sheaf/controllers/shardpool/observed"
	"sheaf.dev/sheaf/internal/kube/workload"
	"sheaf.dev/sheaf/internal/test/must"
)

var update = flag.Bool("update", false, "write the golden files anew")

// TestTheStatusOfAShardObject compares the status of Shard objects with golden files. The status is derived from
// shards' responses.
func TestTheStatusOfAShardObject(t *testing.T) {
	rotational, eta := false, 6.5
	shard := func(state recordv1.ShardState) *recordv1.Shard {
		return &recordv1.Shard{
			Name: "ssd-1", Address: "10.0.0.1:7610", Alive: true, VolumeUuid: "vol-1", Generation: 3, Path: "/data",
			FileSystem: "xfs", MountOptions: []string{"rw", "noatime"}, Source: "/dev/x", Rotational: &rotational,
			CapacityBytes: 4 << 40, FreeBytes: 1 << 40, ReserveBytes: 1 << 30, MemoryNeedBytes: 3 << 30,
			MemoryLimitBytes: 4 << 30, Residency: "Index", Groups: 4, Leaders: 1, Version: "v1.2.3", State: state,
			Message: "a message", StoreUuid: "store-1", Problems: []string{"a problem"},
			Load: &recordv1.Load{GroupsTotal: 4, GroupsLoaded: 2, BytesTotal: 1 << 30, BytesDone: 420 << 20,
				BytesPerSecond: 100 << 20, DeviceBytesPerSecond: 200 << 20, EtaSeconds: 5.8, ElapsedSeconds: 4.2},
		}
	}
	groups := []*recordv1.Group{
		{Group: "1", State: recordv1.GroupState_GROUP_STATE_SERVING, Leader: true, Records: 10, StoredBytes: 100,
			AppliedIndex: 12},
		{Group: "2", State: recordv1.GroupState_GROUP_STATE_DAMAGED, Message: "bad bytes", Records: 20, StoredBytes: 200},
		{Group: "3", State: recordv1.GroupState_GROUP_STATE_FAILED, Lost: true, Message: "its data are missing"},
		{Group: "4", State: recordv1.GroupState_GROUP_STATE_LOADING,
			Copy: &recordv1.Copy{BytesTotal: 100, BytesDone: 40, EtaSeconds: &eta}},
	}
	for name, state := range map[string]recordv1.ShardState{
		"serving": recordv1.ShardState_SHARD_STATE_SERVING, "loading": recordv1.ShardState_SHARD_STATE_LOADING,
		"memory": recordv1.ShardState_SHARD_STATE_MEMORY_TOO_SMALL, "foreign": recordv1.ShardState_SHARD_STATE_FOREIGN,
		"unknown": recordv1.ShardState_SHARD_STATE_UNSPECIFIED, "newer": 99,
	} {
		o := &observed.Shard{
			Name: "ssd-1", Number: 1, StoreUID: "store-1", NodeName: "n1", Template: "t1", Copies: 3, MessageMax: 600,
			Pod: &corev1.Pod{
				ObjectMeta: metav1.ObjectMeta{Annotations: map[string]string{workload.AnnotationTemplate: "t1"}},
				Spec:       corev1.PodSpec{NodeName: "n1"},
				Status: corev1.PodStatus{Phase: corev1.PodRunning, ContainerStatuses: []corev1.ContainerStatus{{
					Name: workload.ContainerShard, State: corev1.ContainerState{Running: &corev1.ContainerStateRunning{}}}}},
			},
			Node:   &corev1.Node{},
			Report: &recordv1.ShardStatus{Shard: shard(state), Groups: groups},
		}
		got, err := json.MarshalIndent(observed.Decide(o), "", "  ")
		must.OK(t, err)
		file := filepath.Join("testdata", "shard-"+name+".json")
		if *update {
			must.OK(t, os.WriteFile(file, append(got, '\n'), 0o600))
		}
		want, err := os.ReadFile(file)
		if err != nil || string(want) != string(got)+"\n" {
			t.Errorf("%v: %s differs (go test ./internal/operator -update writes it anew; look at it then):\n%s", err, file,
				got)
		}
	}
}
