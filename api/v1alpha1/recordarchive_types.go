package v1alpha1

import (
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// RecordArchive keeps an archive of a RecordStore in a bucket of S3, Google Cloud Storage or Azure: everything that the
// store has acknowledged, some seconds later. A pod of its own copies the store; shards get no credentials of the
// bucket. A store has at most one RecordArchive. If a RecordArchive is deleted, its bucket stays as it is.
//
// +kubebuilder:object:root=true
// +kubebuilder:subresource:status
// +kubebuilder:resource:shortName=rarchive,categories=sheaf
// +kubebuilder:printcolumn:name="Store",type=string,JSONPath=`.spec.storeRef.name`
// +kubebuilder:printcolumn:name="Ready",type=string,JSONPath=`.status.conditions[?(@.type=="Ready")].status`
// +kubebuilder:printcolumn:name="Current",type=string,JSONPath=`.status.conditions[?(@.type=="ArchiveCurrent")].status`
// +kubebuilder:printcolumn:name="Archived",type=date,JSONPath=`.status.archivedThrough`
// +kubebuilder:printcolumn:name="Proven",type=date,JSONPath=`.status.drill.proven`
// +kubebuilder:printcolumn:name="Holes",type=integer,JSONPath=`.status.holes`
// +kubebuilder:printcolumn:name="Groups",type=integer,JSONPath=`.status.groups`,priority=1
// +kubebuilder:printcolumn:name="URL",type=string,JSONPath=`.spec.url`,priority=1
// +kubebuilder:printcolumn:name="Trouble",type=string,JSONPath=`.status.conditions[?(@.type=="Stalled")].message`
// +kubebuilder:printcolumn:name="Age",type=date,JSONPath=`.metadata.creationTimestamp`
type RecordArchive struct {
	metav1.TypeMeta `json:",inline"`
	// +optional
	metav1.ObjectMeta `json:"metadata,omitzero"`
	// Spec says which store is archived, and where.
	// +required
	Spec RecordArchiveSpec `json:"spec"`
	// Status says how far the store is archived; the operator writes it. A new object has a default status, which says
	// that the operator has not seen the object yet.
	// +optional
	// +kubebuilder:default={conditions: {{type: "Ready", status: "Unknown", reason: "Pending", message: "Waiting for the operator. Where this stays, see whether it runs", lastTransitionTime: "1970-01-01T00:00:00Z"}, {type: "Reconciling", status: "True", reason: "Pending", message: "Waiting for the operator. Where this stays, see whether it runs", lastTransitionTime: "1970-01-01T00:00:00Z"}}}
	Status RecordArchiveStatus `json:"status,omitzero"`
}

// RecordArchiveList is a list of RecordArchives.
// +kubebuilder:object:root=true
type RecordArchiveList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitzero"`
	Items           []RecordArchive `json:"items"`
}

// RecordArchiveSpec says which store is archived, where, and with which rights.
// +kubebuilder:validation:XValidation:rule="!has(self.credentialsSecretRef) || !has(self.serviceAccountName)",fieldPath=".serviceAccountName",message="give credentialsSecretRef or serviceAccountName, not both: remove one of them"
// +kubebuilder:validation:XValidation:rule="!has(self.extraEnv) || self.extraEnv.all(e, !(e.name in ['AWS_ACCESS_KEY_ID', 'AWS_SECRET_ACCESS_KEY', 'AWS_SESSION_TOKEN', 'AWS_CA_BUNDLE', 'GOOGLE_APPLICATION_CREDENTIALS', 'AZURE_STORAGE_ACCOUNT', 'AZURE_STORAGE_KEY', 'AZURE_STORAGE_SAS_TOKEN']))",fieldPath=".extraEnv",message="extraEnv must not hold credentials, which everybody who may read the object would see: put them into the Secret of credentialsSecretRef"
type RecordArchiveSpec struct {
	// StoreRef names the RecordStore, in this namespace. Cannot be changed.
	// +required
	// +kubebuilder:validation:XValidation:rule="self.name == oldSelf.name",fieldPath=".name",message="storeRef cannot be changed: make a new RecordArchive"
	StoreRef StoreReference `json:"storeRef"`
	// URL of the bucket: s3://BUCKET/PATH, gs://BUCKET/PATH or azblob://CONTAINER/PATH, with options after a ?, such as
	// s3://backups/quotes?region=eu-central-1. It contains no credentials. Several stores may share a URL, because each
	// store has its own folder there. A change begins a new archive at the new URL with a first copy of each group; the
	// archive at the old URL stays as it is.
	// +required
	// +kubebuilder:validation:MaxLength=1024
	// +kubebuilder:validation:XValidation:rule="self.matches('^(s3|gs|azblob)://[A-Za-z0-9._-]+(/[A-Za-z0-9._/-]*)?([?][!-~]*)?$')",message="url must be s3://BUCKET/PATH, gs://BUCKET/PATH or azblob://CONTAINER/PATH, with options behind a ?, and without a user or a key"
	URL string `json:"url"`
	// CredentialsSecretRef names a Secret of this namespace with the credentials of the bucket. For S3, the Secret has
	// the keys AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, also AWS_SESSION_TOKEN if there is a session token, and
	// ca.crt if the server's certificate is signed by an authority of your own. For Google it has the key
	// credentials.json. For Azure it has AZURE_STORAGE_ACCOUNT, and AZURE_STORAGE_KEY or AZURE_STORAGE_SAS_TOKEN. If the
	// Secret's content changes, the archive's pod is replaced within a minute; no pod of the store restarts. If both this
	// field and serviceAccountName are absent, the bucket must accept the pod without credentials.
	// +optional
	CredentialsSecretRef *ArchiveSecretReference `json:"credentialsSecretRef,omitempty"`
	// ServiceAccountName is the ServiceAccount of the archive's pod, by which the cloud identifies the pod (IAM roles for
	// service accounts, workload identity). Its name must be sheaf-archive, or begin with sheaf-archive-, because the
	// operator may use no other ServiceAccount. The pod gets no token for the Kubernetes API. A change replaces the pod.
	// +optional
	// +kubebuilder:validation:MaxLength=63
	// +kubebuilder:validation:XValidation:rule="self.matches('^sheaf-archive(-[a-z0-9]([a-z0-9-]*[a-z0-9])?)?$')",message="serviceAccountName must be sheaf-archive, or begin with sheaf-archive-: the operator may use no other ServiceAccount"
	ServiceAccountName string `json:"serviceAccountName,omitempty"`
	// Interval is the time after which the archive stores the new writes of all groups in the next object, such as 10s.
	// Each object is one request to the bucket. If nothing is written to the store, an object is created only every 10
	// minutes.
	// +optional
	// +kubebuilder:default="10s"
	// +kubebuilder:validation:Type=string
	// +kubebuilder:validation:MaxLength=32
	// +kubebuilder:validation:XValidation:rule="self.matches('^([0-9]{1,6}(ms|s|m|h)){1,4}$') && duration(self) >= duration('1s') && duration(self) <= duration('1h')",message="interval must be a duration from 1s to 1h, such as 10s or 5m"
	Interval *metav1.Duration `json:"interval,omitempty"`
	// Encryption says with which keys the objects of the archive are encrypted. Without it, objects are encrypted only as
	// the bucket does it by itself. It may be added to an archive that exists: objects that exist stay as they are. It may
	// not be removed while an archive with encrypted objects continues at the same URL.
	// +optional
	Encryption *ArchiveEncryption `json:"encryption,omitempty"`
	// Hold says how much history the shards keep for the archive while it is behind.
	// +optional
	Hold *ArchiveHold `json:"hold,omitempty"`
	// Drill makes the operator run drills, which prove that the archive can be restored. If it is absent, none run by
	// themselves.
	// +optional
	Drill *ArchiveDrill `json:"drill,omitempty"`
	// Image of the archive's pod. The default is the operator's. ImagePullPolicy and imagePullSecrets are those of the
	// store. A change replaces the pod.
	// +optional
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=512
	// +kubebuilder:validation:XValidation:rule="self.matches('^[A-Za-z0-9]([A-Za-z0-9._:/@+-]*[A-Za-z0-9])?$')",message="image must be an image's name, such as example.org/sheaf-archive:v1: remove spaces and other characters"
	Image            string `json:"image,omitempty"`
	ArchiveRetention `json:",inline"`
	PodOptions       `json:",inline"`
}

// ArchiveSecretReference names a Secret of the same namespace.
type ArchiveSecretReference struct {
	// Name of the Secret.
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=253
	// +kubebuilder:validation:XValidation:rule="self.matches('^[a-z0-9]([a-z0-9.-]*[a-z0-9])?$')",message="name must be the name of a Secret of this namespace"
	Name string `json:"name"`
}

// ArchiveEncryption names the keys of an encrypted archive. If they are lost, the archive is lost.
type ArchiveEncryption struct {
	// SecretRef names a Secret of this namespace. Each of its keys has one encryption key: 32 random bytes in base64, as
	// openssl rand -base64 32 prints them. The first one in the order of names encrypts new objects, or the one that the
	// key current of the Secret names. All of them decrypt, so leave each one there as long as objects need it. If the
	// Secret's content changes, the pod is replaced within a minute.
	// +required
	SecretRef ArchiveSecretReference `json:"secretRef"`
}

// ArchiveHold says how much history the shards keep for an archive that is behind. Beyond it, compaction goes on, and
// the archive notes a hole in its history. A write is never refused or delayed for an archive.
// +kubebuilder:validation:MinProperties=1
type ArchiveHold struct {
	// MaxBytes is how much each shard keeps, for all its groups together, from 64Mi to 1Pi. The default is 5 % of the
	// shard's volume. A change restarts one shard at a time, and so does the deletion of a RecordArchive that has this
	// field.
	// +optional
	// +kubebuilder:validation:Schemaless
	// +kubebuilder:validation:Type=string
	// +kubebuilder:validation:MaxLength=32
	// +kubebuilder:validation:XValidation:rule="isQuantity(self) && quantity(self).compareTo(quantity('64Mi')) >= 0 && quantity(self).compareTo(quantity('1Pi')) <= 0",message="maxBytes must be a number with a unit, from 64Mi to 1Pi, such as 20Gi"
	MaxBytes *resource.Quantity `json:"maxBytes,omitempty"`
}

// RecordArchiveStatus says how far a store is archived. Most of it comes from the archive's pod, whose counters begin
// at 0 when it starts.
type RecordArchiveStatus struct {
	// ObservedGeneration is the generation of the spec that this status describes.
	// +optional
	ObservedGeneration int64 `json:"observedGeneration,omitempty"`
	// URL of the archive that this status describes.
	// +optional
	URL string `json:"url,omitempty"`
	// State of the archive's pod, as it reports it: starting, archiving, waiting (for the next attempt) or ended (another
	// archiver has taken over).
	// +optional
	State string `json:"state,omitempty"`
	// ArchivedThrough is a point in time. Everything that any group acknowledged before it is in objects that the bucket
	// has acknowledged. The field is updated at most every 30 s, and is absent while the time is not known.
	// +optional
	ArchivedThrough *metav1.Time `json:"archivedThrough,omitempty"`
	// LagSeconds is the number of seconds between archivedThrough and the last update of this status.
	// +optional
	LagSeconds *int64 `json:"lagSeconds,omitempty"`
	// Groups is the number of groups that are archived. It is absent while it is not known.
	// +optional
	Groups *int32 `json:"groups,omitempty"`
	// WaitingGroups is the number of groups whose first copy in the archive is not complete yet. It is absent while it is
	// not known.
	// +optional
	WaitingGroups *int32 `json:"waitingGroups,omitempty"`
	// Holes is the number of holes in the history, over all groups. Records cannot be read as they were at a time within
	// a hole. It is absent while it is not known.
	// +optional
	Holes *int32 `json:"holes,omitempty"`
	// Objects is the number of objects that the pod has created in the bucket. It is absent until a pod has reported.
	// +optional
	Objects *int64 `json:"objects,omitempty"`
	// Bytes is the total size of these objects. It is absent until a pod has reported.
	// +optional
	Bytes *int64 `json:"bytes,omitempty"`
	// LastObject is the time at which the bucket last acknowledged an object.
	// +optional
	LastObject *metav1.Time `json:"lastObject,omitempty"`
	// Points describes the points of the archive. It is absent while they are not known.
	// +optional
	Points *ArchivePointsStatus `json:"points,omitempty"`
	// Prune says what pruning has deleted. It is absent unless spec.prune is Delete.
	// +optional
	Prune *ArchivePruneStatus `json:"prune,omitempty"`
	// Drill tells of the newest drill. The archive's pod looks for it when it starts, and every 10 minutes. The field is
	// absent if there was none.
	// +optional
	Drill *ArchiveDrillStatus `json:"drill,omitempty"`
	// DrillStarted is when the operator last started a drill.
	// +optional
	DrillStarted *metav1.Time `json:"drillStarted,omitempty"`
	// Version of the archive's pod.
	// +optional
	Version string `json:"version,omitempty"`
	// Conditions: Ready, Reconciling, Stalled; Archiving is True while a pod archives the store, and False, with the
	// reason that the bucket gave, while it cannot; ArchiveCurrent is True only while everything that was acknowledged up
	// to a minute ago (or six intervals, if that is longer) is in objects that the bucket has acknowledged; RestoreProven
	// is True if the newest drill has proven that the archive can be restored, False if it has found differences, Unknown
	// if it did not find out, or none ran yet, and absent if there was none and spec.drill is absent.
	// +optional
	// +listType=map
	// +listMapKey=type
	// +kubebuilder:validation:MaxItems=32
	Conditions []metav1.Condition `json:"conditions,omitempty"`
}
