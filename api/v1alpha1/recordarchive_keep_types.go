package v1alpha1

import metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

// ArchiveRetention says which points in time of an archive stay readable, and whether the rest is deleted.
type ArchiveRetention struct {
	// Points makes points in time by a schedule. A point stays readable when it is older than keep.window.
	// +optional
	Points *ArchivePoints `json:"points,omitempty"`
	// Keep says what stays readable while prune is Delete.
	// +optional
	Keep *ArchiveKeep `json:"keep,omitempty"`
	// Prune is Delete to delete, once a day, what neither keep nor a point needs. The pod then needs 32 bytes of memory
	// for each version of the largest group, in addition to what it needs to archive. Objects are listed for deletion one
	// day before they are deleted, and nothing is deleted while a restore reads the archive. Never keeps everything for
	// ever.
	// +optional
	// +kubebuilder:default=Never
	// +kubebuilder:validation:XValidation:rule="self in ['Delete', 'Never']",message="prune must be Delete or Never"
	// +kubebuilder:validation:MaxLength=16
	Prune PrunePolicy `json:"prune,omitempty"`
}

// PrunePolicy says whether an archive is pruned.
type PrunePolicy string

// These are the values of PrunePolicy.
const (
	PruneDelete PrunePolicy = "Delete"
	PruneNever  PrunePolicy = "Never"
)

// ArchivePoints says when points are made.
type ArchivePoints struct {
	// Schedule has five fields of cron in UTC: minute (one number, so that there is at most one point an hour), hour, day
	// of the month, month and day of the week. For example, 0 3 * * * makes a point at 3:00 each day. If the archive's pod
	// is down at that time, it makes one point when it runs again. Such points have names like auto-20261130-030000.
	// +required
	// +kubebuilder:validation:MaxLength=100
	// +kubebuilder:validation:XValidation:rule="self.matches('^[0-5]?[0-9]( +[0-9A-Za-z*?,/-]+){4}$')",message="schedule must have five fields of cron: minute (one number), hour, day of the month, month and day of the week, in UTC, such as 0 3 * * *"
	Schedule string `json:"schedule"`
}

// ArchiveKeep says what stays readable while an archive is pruned. Each record that exists now stays, too.
type ArchiveKeep struct {
	// Window is how far back every state stays readable, such as 168h.
	// +optional
	// +kubebuilder:default="168h"
	// +kubebuilder:validation:Type=string
	// +kubebuilder:validation:MaxLength=32
	// +kubebuilder:validation:XValidation:rule="self.matches('^([0-9]{1,6}(ms|s|m|h)){1,4}$') && duration(self) >= duration('1h') && duration(self) <= duration('87600h')",message="window must be a duration from 1h to 87600h, such as 168h"
	Window *metav1.Duration `json:"window,omitempty"`
	// Points is how many of the points of the schedule are kept, the newest ones. Other points are kept until they end or
	// are deleted.
	// +optional
	// +kubebuilder:default=30
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=10000
	Points int32 `json:"points,omitempty"`
}

// ArchivePointsStatus describes the points of an archive.
type ArchivePointsStatus struct {
	// Kept is the number of points that are kept.
	// +optional
	Kept int32 `json:"kept"`
	// Newest is the name of the point with the latest time.
	// +optional
	Newest string `json:"newest,omitempty"`
	// NewestTime is the time of that point.
	// +optional
	NewestTime *metav1.Time `json:"newestTime,omitempty"`
	// Next is when the next point of the schedule is made.
	// +optional
	Next *metav1.Time `json:"next,omitempty"`
	// Message says why the last attempt to make a point failed. It is absent if that attempt succeeded.
	// +optional
	Message string `json:"message,omitempty"`
}

// ArchivePruneStatus says what pruning has deleted.
type ArchivePruneStatus struct {
	// LastTime is when the archive was last pruned.
	// +optional
	LastTime *metav1.Time `json:"lastTime,omitempty"`
	// DeletedObjects is the number of objects that the present pod has deleted.
	// +optional
	DeletedObjects int64 `json:"deletedObjects"`
	// DeletedBytes is the total size of these objects.
	// +optional
	DeletedBytes int64 `json:"deletedBytes"`
	// Message says why the archive was not pruned when it was due. It is absent if it was.
	// +optional
	Message string `json:"message,omitempty"`
}
