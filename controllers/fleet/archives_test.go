package fleet

import (
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"sheaf.dev/sheaf/api/v1alpha1"
)

func TestTheOldestArchiveOfAStoreCounts(t *testing.T) {
	at := time.Date(2026, 11, 29, 12, 0, 0, 0, time.UTC)
	archive := func(name, store string, age time.Duration) v1alpha1.RecordArchive {
		a := v1alpha1.RecordArchive{}
		a.Name, a.CreationTimestamp = name, metav1.NewTime(at.Add(-age))
		a.Spec.StoreRef.Name = store
		return a
	}
	leaving := archive("leaving", "quotes", time.Hour)
	leaving.DeletionTimestamp = new(metav1.NewTime(at))
	all := []v1alpha1.RecordArchive{leaving, archive("young", "quotes", 0), archive("b", "quotes", time.Minute),
		archive("a", "quotes", time.Minute), archive("other", "other", time.Hour)}
	if got := ArchiveOf(all, "quotes"); got == nil || got.Name != "a" {
		t.Errorf("%v", got)
	}
	if got := ArchiveOf(all, "none"); got != nil {
		t.Errorf("%v", got)
	}
}
