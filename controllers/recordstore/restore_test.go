package recordstore

import (
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"sheaf.dev/sheaf/api/v1alpha1"
	"sheaf.dev/sheaf/controllers/fleet"
	"sheaf.dev/sheaf/controllers/step"
	"sheaf.dev/sheaf/internal/placement"
)

// The end of a restore is only what etcd says: all keys are known, the list is complete, and no group waits.
func TestRestoreState(t *testing.T) {
	for name, c := range map[string]struct {
		unread   bool
		restore  *placement.Restore
		waits    bool
		unusable string
		groups   int // groups of Hash routing; etcd has the groups 1 and 2
		want     restoreState
	}{
		"etcd was not read":            {unread: true, restore: &placement.Restore{}, want: restoreUnknown},
		"the list is being written":    {restore: &placement.Restore{Listing: true}, want: restoreListing},
		"a group waits":                {restore: &placement.Restore{}, waits: true, want: restoreWaiting},
		"a group waits in a list":      {restore: &placement.Restore{Listing: true}, waits: true, want: restoreListing},
		"nothing waits":                {restore: &placement.Restore{}, want: restoreDone},
		"rebuilt without the restore":  {want: restoreDone},
		"a key of a group is unusable": {restore: &placement.Restore{}, unusable: "groups/7", want: restoreUnknown},
		"the key of group 0 is lost":   {restore: &placement.Restore{}, groups: 3, want: restoreUnknown},
		"one of two keys is lost":      {restore: &placement.Restore{}, waits: true, groups: 3, want: restoreUnknown},
		"the list lacks group 0":       {restore: &placement.Restore{Listing: true}, groups: 3, want: restoreListing},
		"another key is unusable":      {restore: &placement.Restore{}, unusable: "volumes/7", want: restoreDone},
	} {
		seen := &observed{hasPlaces: !c.unread, places: fleet.Places{}}
		seen.places.Meta.Restore = c.restore
		seen.places.Meta.Routing = placement.Routing{Mode: placement.Hash, Groups: c.groups}
		seen.places.Groups = map[string]placement.Group{"1": {Name: "1"}, "2": {Name: "2", Restoring: c.waits}}
		if c.unusable != "" {
			seen.places.Unusable = map[string]placement.Unusable{c.unusable: {Key: c.unusable}}
		}
		if got := seen.restoreState(); got != c.want {
			t.Errorf("%s: %v, want %v", name, got, c.want)
		}
	}
}

// Only a restore that is known to have ended needs no source.
func TestARestoringStoreNeedsItsSource(t *testing.T) {
	for name, c := range map[string]struct {
		restores bool
		restored metav1.ConditionStatus // empty: there is no condition
		want     bool
	}{
		"no restore":     {},
		"new":            {restores: true, want: true},
		"groups wait":    {restores: true, restored: metav1.ConditionFalse, want: true},
		"it is unknown":  {restores: true, restored: metav1.ConditionUnknown, want: true},
		"it is restored": {restores: true, restored: metav1.ConditionTrue},
	} {
		store := testStore()
		if c.restores {
			store.Spec.Restore = &v1alpha1.Restore{}
		}
		if c.restored != "" {
			step.SetCondition(&store.Status.Conditions, 1, v1alpha1.ConditionRestored, c.restored, "Reason", "words")
		}
		if got := isRestoring(store); got != c.want {
			t.Errorf("%s: %t, want %t", name, got, c.want)
		}
		leaves, err := storeLeaves(store)
		if err != nil {
			t.Fatal(err)
		}
		has := false
		for _, leaf := range leaves {
			has = has || leaf.Secret == "quotes-restore-tls"
		}
		if has != c.want {
			t.Errorf("%s: a certificate of the source: %t, want %t", name, has, c.want)
		}
	}
}
