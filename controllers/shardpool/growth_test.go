package shardpool

import (
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"sheaf.dev/sheaf/api/v1alpha1"
	"sheaf.dev/sheaf/controllers/shardpool/poolstatus"
)

// claimOf returns a claim for tests. The argument asked is the size that the claim requests, and has is its actual
// size. If has is empty, the claim is not bound.
func claimOf(asked, has string) *corev1.PersistentVolumeClaim {
	claim := &corev1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{Name: "data-ssd-0-0"}}
	claim.Spec.Resources.Requests = corev1.ResourceList{corev1.ResourceStorage: resource.MustParse(asked)}
	claim.Status.Phase = corev1.ClaimPending
	if has != "" {
		claim.Status.Phase = corev1.ClaimBound
		claim.Status.Capacity = corev1.ResourceList{corev1.ResourceStorage: resource.MustParse(has)}
	}
	return claim
}

func TestDecideGrowth(t *testing.T) {
	infeasible := claimOf("2Gi", "1Gi")
	infeasible.Status.AllocatedResourceStatuses = map[corev1.ResourceName]corev1.ClaimResourceStatus{
		corev1.ResourceStorage: corev1.PersistentVolumeClaimNodeResizeInfeasible,
	}
	deleted := claimOf("1Gi", "1Gi")
	deleted.DeletionTimestamp = &metav1.Time{}
	for name, c := range map[string]struct {
		claim      *corev1.PersistentVolumeClaim
		expandable bool
		want       claimGrowth
		says       string
	}{
		"no claim":                            {nil, true, claimFits, ""},
		"a claim that goes":                   {deleted, true, claimFits, ""},
		"as large as asked":                   {claimOf("2Gi", "2Gi"), false, claimFits, ""},
		"to be asked for":                     {claimOf("1Gi", "1Gi"), true, claimPatch, "from 1Gi to 2Gi"},
		"a class that forbids it":             {claimOf("1Gi", "1Gi"), false, claimForbidden, "has 1Gi, asked for are 2Gi"},
		"not bound":                           {claimOf("1Gi", ""), false, claimRemake, "2Gi"},
		"asked for, not there yet":            {claimOf("2Gi", "1Gi"), true, claimGrows, "from 1Gi to 2Gi"},
		"a driver that cannot":                {infeasible, true, claimInfeasible, "cannot be done"},
		"a disk larger than its claim":        {claimOf("1Gi", "3Gi"), false, claimFits, ""},
		"a larger one, in a class that grows": {claimOf("1Gi", "3Gi"), true, claimPatch, "2Gi"},
	} {
		got, words := decideGrowth(c.claim, resource.MustParse("2Gi"), c.expandable)
		if got != c.want || !strings.Contains(words, c.says) {
			t.Errorf("%s: %d %q, want %d %q", name, got, words, c.want, c.says)
		}
	}
}

func TestGrowthOfALocalVolumeNamesTheDisk(t *testing.T) {
	if words := localGrowth(nil) + localGrowth(&corev1.PersistentVolume{}); words != "" {
		t.Errorf("a volume of a driver: %q", words)
	}
	volume := &corev1.PersistentVolume{ObjectMeta: metav1.ObjectMeta{Name: "pv-1"}}
	volume.Spec.Local = &corev1.LocalVolumeSource{Path: "/dev/disk/by-id/a"}
	if words := localGrowth(volume); !strings.Contains(words, "/dev/disk/by-id/a") ||
		!strings.Contains(words, "PersistentVolume pv-1") {
		t.Errorf("by hand: %q", words)
	}
	volume.Labels = map[string]string{v1alpha1.LabelDiskSet: "local"}
	if words := localGrowth(volume); !strings.Contains(words, "DiskSet local") {
		t.Errorf("of a DiskSet: %q", words)
	}
}

// A claim that needs an administrator takes precedence over one that makes progress. If two claims are equally bad, the
// first one is reported.
func TestWorseGrowth(t *testing.T) {
	var found poolstatus.Growth
	for _, c := range []struct {
		what    claimGrowth
		words   string
		reason  string
		says    string
		stalled bool
	}{
		{claimFits, "", "", "", false},
		{claimGrows, "a grows", "Resizing", "a grows", false},
		{claimRemake, "b is created again", "Resizing", "a grows", false},
		{claimForbidden, "c cannot", "ResizeInfeasible", "c cannot. StorageClass \"fixed\" does not allow", true},
		{claimInfeasible, "d stays", "ResizeInfeasible", "c cannot", true},
		{claimFits, "", "ResizeInfeasible", "c cannot", true},
	} {
		found = worseGrowth(found, c.what, c.words, "fixed")
		if found.Reason != c.reason || !strings.HasPrefix(found.Message, c.says) || found.Stalled != c.stalled {
			t.Errorf("after %q: %+v", c.words, found)
		}
	}
}
