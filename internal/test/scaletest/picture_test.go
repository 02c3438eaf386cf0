package scaletest

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"sheaf.dev/sheaf/api/v1alpha1"
	"sheaf.dev/sheaf/internal/kube/workload"
	"sheaf.dev/sheaf/internal/placement"
	"sheaf.dev/sheaf/internal/test/must"
)

// picture is the final state of a store, without the parts that differ from run to run. If two stores are created in
// different ways and end with the same specification, their pictures must be equal.
type picture struct {
	sets, pods, claims int
	// template is the specification that all StatefulSets have in common, without the parts that identify a shard.
	template string
	groups   int
	wanted   int // number of targets that the planner would change if it ran again
	apart    int // number of groups whose copies are on their target shards and in different zones
}

// takePicture collects the data of the picture. It fails the test if the StatefulSets of the shards are not all equal.
func (c *cluster) takePicture(ctx context.Context, t *testing.T, f *fleet, shards int) picture {
	t.Helper()
	of := []client.ListOption{client.InNamespace("default"), client.MatchingLabels{v1alpha1.LabelPool: "ssd"}}
	var sets appsv1.StatefulSetList
	var pods corev1.PodList
	var claims corev1.PersistentVolumeClaimList
	for _, list := range []client.ObjectList{&sets, &pods, &claims} {
		must.OK(t, c.client.List(ctx, list, of...))
	}
	out := picture{sets: len(sets.Items), pods: len(pods.Items), claims: len(claims.Items)}
	volumes := map[string]string{}
	for i := range claims.Items {
		volumes[claims.Items[i].Name] = string(claims.Items[i].UID)
	}
	hashes := map[string]string{}
	for i := range sets.Items {
		set := &sets.Items[i]
		hashes[set.Name+"-0"] = set.Spec.Template.Annotations[workload.AnnotationTemplate]
		if template := f.commonSpec(t, set, volumes[workload.ShardClaim(set.Name)]); out.template == "" {
			out.template = template
		} else if template != out.template {
			t.Errorf("StatefulSet %s differs from the others:\n%s\n%s", set.Name, template, out.template)
		}
	}
	for i := range pods.Items {
		pod := &pods.Items[i]
		volume := volumes[workload.ShardClaim(strings.TrimSuffix(pod.Name, "-0"))]
		if pod.Annotations[workload.AnnotationTemplate] != hashes[pod.Name] ||
			pod.Annotations[workload.AnnotationVolume] != volume {
			t.Errorf("pod %s has annotations %v: its set has template %s, and its volume is %s",
				pod.Name, pod.Annotations, hashes[pod.Name], volume)
		}
	}
	if out.sets != shards || out.pods != shards || out.claims != shards {
		t.Errorf("there are %d StatefulSets, %d pods and %d claims of %d shards", out.sets, out.pods, out.claims, shards)
	}
	f.checkGroups(ctx, t, &out)
	return out
}

// commonSpec returns a StatefulSet's spec as a string, without the names of the shard and the store.
func (f *fleet) commonSpec(t *testing.T, set *appsv1.StatefulSet, volume string) string {
	t.Helper()
	if have := set.Spec.Template.Annotations[workload.AnnotationVolume]; have != volume {
		t.Errorf("StatefulSet %s knows volume %q, and has %q", set.Name, have, volume)
	}
	spec, err := json.Marshal(set.Spec)
	must.OK(t, err)
	number := set.Labels[v1alpha1.LabelShard]
	return strings.NewReplacer(
		volume, "VOLUME", f.storeUID, "STORE", set.Spec.Template.Annotations[workload.AnnotationTemplate], "HASH", f.c.etcd,
		"ETCD",
		fmt.Sprintf("%s-0.", set.Name), "SHARD.", fmt.Sprintf("=%s\"", set.Name), "=SHARD\"",
		fmt.Sprintf("%q", set.Name+"-tls"), "\"SHARD-tls\"", fmt.Sprintf("%q", number), "NUMBER",
	).Replace(string(spec))
}

// checkGroups checks that no group is moving and that the planner has nothing left to change.
func (f *fleet) checkGroups(ctx context.Context, t *testing.T, out *picture) {
	t.Helper()
	view := f.view(ctx, t)
	change, unplaced := placement.Plan(view, view.Meta.Policy())
	out.groups, out.wanted = len(view.Groups), len(change)+len(unplaced)
	copies := map[string]int{}
	for name := range view.Shards {
		copies[name] = 0
	}
	for name, g := range view.Groups {
		zones := map[string]bool{}
		wanted := view.Targets[name].Shards
		for _, m := range g.Members {
			copies[m.Shard]++
			if slices.Contains(wanted, m.Shard) {
				zones[view.Shards[m.Shard].Domain] = true
			}
		}
		if len(zones) == view.Meta.Copies && len(g.Members) == view.Meta.Copies {
			out.apart++
		}
	}
	least, most := 1<<30, 0
	for _, n := range copies {
		least, most = min(least, n), max(most, n)
	}
	t.Logf("%d groups on %d shards, each of which has %d to %d copies", out.groups, len(view.Shards), least, most)
	if out.wanted > 0 || out.apart != out.groups {
		t.Errorf("the planner would still change %d groups, and %d of %d have their copies where they are wanted, in "+
			"different zones",
			out.wanted, out.apart, out.groups)
	}
}
