package v1alpha1

import (
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// ArchiveDrill says when drills run. A drill restores some groups of the archive as of a random time into a volume of
// its own, checks every byte, and compares the records with the store (`sheaf-archive drill`).
type ArchiveDrill struct {
	// Schedule has five fields of cron in UTC: minute (one number, so that at most one drill an hour begins), hour, day of
	// the month, month and day of the week, such as "0 4 * * *". No drill begins while the store is not archived, or while
	// another drill runs.
	// +required
	// +kubebuilder:validation:MaxLength=100
	// +kubebuilder:validation:XValidation:rule="self.matches('^[0-5]?[0-9]( +[0-9A-Za-z*?,/-]+){4}$')",message="schedule must have five fields of cron: minute (one number), hour, day of the month, month and day of the week, in UTC, such as 0 4 * * *"
	Schedule string `json:"schedule"`
	// Groups is the number of groups that a drill restores, one after another. The next drill takes the next groups.
	// +optional
	// +kubebuilder:default=8
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=1000
	Groups int32 `json:"groups,omitempty"`
	// Storage is the volume of a drill. It is made for each drill, and deleted after it.
	// +required
	Storage ArchiveDrillStorage `json:"storage"`
}

// ArchiveDrillStorage is the volume into which a drill restores.
type ArchiveDrillStorage struct {
	// Size of the volume, from 64Mi to 1Pi. The largest group of the store must fit.
	// +required
	// +kubebuilder:validation:Schemaless
	// +kubebuilder:validation:Type=string
	// +kubebuilder:validation:MaxLength=32
	// +kubebuilder:validation:XValidation:rule="isQuantity(self) && quantity(self).compareTo(quantity('64Mi')) >= 0 && quantity(self).compareTo(quantity('1Pi')) <= 0",message="size must be a number with a unit, from 64Mi to 1Pi, such as 50Gi"
	Size resource.Quantity `json:"size"`
	// ClassName is the StorageClass of the volume. The default is that of the cluster.
	// +optional
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=253
	// +kubebuilder:validation:XValidation:rule="!format.dns1123Subdomain().validate(self).hasValue()",message="className must be the name of a StorageClass: kubectl get storageclasses shows them"
	ClassName *string `json:"className,omitempty"`
}

// ArchiveDrillStatus tells of the newest drill of an archive (`sheaf-archive drill`), which restored a part of it to
// prove that this is possible.
type ArchiveDrillStatus struct {
	// Time at which the drill began.
	// +optional
	Time metav1.Time `json:"time,omitzero"`
	// Point is the point in time as of which it restored.
	// +optional
	Point *metav1.Time `json:"point,omitempty"`
	// Groups is the number of groups that it tried to restore.
	// +optional
	Groups int32 `json:"groups"`
	// Records is the number of records that it restored.
	// +optional
	Records int64 `json:"records"`
	// Seconds is how long it took.
	// +optional
	Seconds int64 `json:"seconds"`
	// Result is proven (each group that was restored is right), differs (the archive is damaged, or does not hold what
	// the store held) or failed (the drill did not find out).
	// +optional
	Result string `json:"result,omitempty"`
	// Proven is when the newest drill began that has proven the archive. It is absent if none has.
	// +optional
	Proven *metav1.Time `json:"proven,omitempty"`
}
