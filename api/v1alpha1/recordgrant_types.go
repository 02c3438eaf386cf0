package v1alpha1

import metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

// RecordGrant gives callers of a store rights in some of its groups. A caller may do what at least one grant allows; no
// grant takes a right away. Only the store's own processes, and administrators with a certificate, need no grant.
//
// +kubebuilder:object:root=true
// +kubebuilder:subresource:status
// +kubebuilder:resource:shortName=rgrant,categories=sheaf
// +kubebuilder:printcolumn:name="Store",type=string,JSONPath=`.spec.storeRef.name`
// +kubebuilder:printcolumn:name="Ready",type=string,JSONPath=`.status.conditions[?(@.type=="Ready")].status`
// +kubebuilder:printcolumn:name="Verbs",type=string,JSONPath=`.spec.verbs`
// +kubebuilder:printcolumn:name="Table",type=integer,JSONPath=`.status.tableVersion`,priority=1
// +kubebuilder:printcolumn:name="Trouble",type=string,JSONPath=`.status.conditions[?(@.type=="Stalled")].message`
// +kubebuilder:printcolumn:name="Age",type=date,JSONPath=`.metadata.creationTimestamp`
type RecordGrant struct {
	metav1.TypeMeta `json:",inline"`
	// +optional
	metav1.ObjectMeta `json:"metadata,omitzero"`
	// Spec says what is granted, and to whom.
	// +required
	Spec RecordGrantSpec `json:"spec"`
	// Status says whether the grant is in force; the operator writes it. A new object has a default status, which says
	// that the operator has not seen the object yet.
	// +optional
	// +kubebuilder:default={conditions: {{type: "Ready", status: "Unknown", reason: "Pending", message: "Waiting for the operator. Where this stays, see whether it runs", lastTransitionTime: "1970-01-01T00:00:00Z"}, {type: "Reconciling", status: "True", reason: "Pending", message: "Waiting for the operator. Where this stays, see whether it runs", lastTransitionTime: "1970-01-01T00:00:00Z"}}}
	Status RecordGrantStatus `json:"status,omitzero"`
}

// RecordGrantList is a list of RecordGrants.
// +kubebuilder:object:root=true
type RecordGrantList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitzero"`
	Items           []RecordGrant `json:"items"`
}

// RecordGrantSpec lets each of the subjects use each of the verbs in each of the groups.
type RecordGrantSpec struct {
	// StoreRef names the RecordStore, in this namespace. Cannot be changed.
	// +required
	// +kubebuilder:validation:XValidation:rule="self.name == oldSelf.name",fieldPath=".name",message="storeRef cannot be changed: make a new RecordGrant"
	StoreRef StoreReference `json:"storeRef"`
	// Subjects are the callers that get the rights.
	// +required
	// +listType=atomic
	// +kubebuilder:validation:MinItems=1
	// +kubebuilder:validation:MaxItems=64
	Subjects []GrantSubject `json:"subjects"`
	// Verbs are the rights.
	// +required
	// +listType=set
	// +kubebuilder:validation:MinItems=1
	// +kubebuilder:validation:MaxItems=7
	Verbs []GrantVerb `json:"verbs"`
	// Groups in which the subjects may use the verbs. They need not exist.
	// +required
	Groups GrantGroups `json:"groups"`
}

// GrantVerb is a right: get, put, delete, scan and watch are about records; admin-read allows status, lists and the
// routing of all groups; admin-write allows all other calls of AdminService.
// +kubebuilder:validation:Enum=get;put;delete;scan;watch;admin-read;admin-write
type GrantVerb string

// GrantSubjectKind says how a subject is recognised.
// +kubebuilder:validation:Enum=Certificate;ServiceAccount;ServiceAccounts;OIDC;OIDCGroup;Anybody
type GrantSubjectKind string

// The kinds of subjects.
const (
	// GrantCertificate means a caller with a certificate of the store for client/NAME.
	GrantCertificate GrantSubjectKind = "Certificate"
	// GrantServiceAccount means a ServiceAccount with a token for the audience sheaf/NAMESPACE/STORE.
	GrantServiceAccount GrantSubjectKind = "ServiceAccount"
	// GrantServiceAccounts means all ServiceAccounts of a namespace.
	GrantServiceAccounts GrantSubjectKind = "ServiceAccounts"
	// GrantOIDC means a caller whose token comes from an issuer in the RecordStore's spec.access, and is for this subject
	// (sub).
	GrantOIDC GrantSubjectKind = "OIDC"
	// GrantOIDCGroup means every caller whose token comes from an issuer in the RecordStore's spec.access, and names the
	// group.
	GrantOIDCGroup GrantSubjectKind = "OIDCGroup"
	// GrantAnybody means every caller with a certificate or a token for the store.
	GrantAnybody GrantSubjectKind = "Anybody"
)

// GrantSubject is one caller, or a set of callers, that a grant is for.
// +kubebuilder:validation:XValidation:rule="(self.kind in ['Certificate', 'ServiceAccount', 'OIDC', 'OIDCGroup']) == has(self.name)",fieldPath=".name",message="a Certificate, a ServiceAccount, OIDC and OIDCGroup need a name, and other kinds have none"
// +kubebuilder:validation:XValidation:rule="!has(self.name) || self.kind in ['OIDC', 'OIDCGroup'] || self.name.matches('^[A-Za-z0-9]([A-Za-z0-9._-]*[A-Za-z0-9])?$')",fieldPath=".name",message="name must be letters, digits and . _ - between them: the ServiceAccount's name, or that behind client/ in the certificate"
// +kubebuilder:validation:XValidation:rule="(self.kind in ['OIDC', 'OIDCGroup']) == has(self.issuer)",fieldPath=".issuer",message="OIDC and OIDCGroup need an issuer, and other kinds have none"
// +kubebuilder:validation:XValidation:rule="(self.kind in ['ServiceAccount', 'ServiceAccounts']) == has(self.__namespace__)",fieldPath=".namespace",message="a ServiceAccount and ServiceAccounts need a namespace, and other kinds have none"
type GrantSubject struct {
	// Kind says how the subject is recognised.
	// +required
	Kind GrantSubjectKind `json:"kind"`
	// Namespace of the ServiceAccount or ServiceAccounts.
	// +optional
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=63
	// +kubebuilder:validation:XValidation:rule="self.matches('^[a-z0-9]([-a-z0-9]*[a-z0-9])?$')",message="a namespace's name holds a-z, 0-9 and - only: write it as kubectl get namespaces shows it"
	Namespace string `json:"namespace,omitempty"`
	// Issuer is the url of one of spec.access.issuers of the RecordStore.
	// +optional
	// +kubebuilder:validation:MaxLength=512
	// +kubebuilder:validation:XValidation:rule="self.startsWith('https://')",message="issuer must be the url of one of spec.access.issuers of the RecordStore, which begins with https://"
	Issuer string `json:"issuer,omitempty"`
	// Name of the ServiceAccount, of the caller in its certificate, or of the subject or group in the issuer's tokens.
	// +optional
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=253
	// +kubebuilder:validation:XValidation:rule="self.matches('^[^\\\\x00-\\\\x1f\\\\x7f]+$')",message="name must be text without control characters"
	Name string `json:"name,omitempty"`
}

// GrantGroupText is the name of a group, or a prefix of group names.
// +kubebuilder:validation:MinLength=1
// +kubebuilder:validation:MaxLength=253
// +kubebuilder:validation:XValidation:rule="self.matches('^[A-Za-z0-9_-][A-Za-z0-9._-]*$')",message="names of groups hold letters, digits and . _ - and do not begin with a dot"
type GrantGroupText string

// GrantGroups are groups of a store. In Hash routing, groups are named "0", "1" and so on, so a grant should use all.
// +kubebuilder:validation:XValidation:rule="(has(self.all) && self.all) != (has(self.names) || has(self.prefixes))",message="give either all: true, or names, prefixes or both"
type GrantGroups struct {
	// All groups, including future ones.
	// +optional
	All bool `json:"all,omitempty"`
	// Names of groups.
	// +optional
	// +listType=set
	// +kubebuilder:validation:MinItems=1
	// +kubebuilder:validation:MaxItems=256
	Names []GrantGroupText `json:"names,omitempty"`
	// Prefixes of names of groups.
	// +optional
	// +listType=set
	// +kubebuilder:validation:MinItems=1
	// +kubebuilder:validation:MaxItems=256
	Prefixes []GrantGroupText `json:"prefixes,omitempty"`
}

// RecordGrantStatus says whether a grant is in force.
type RecordGrantStatus struct {
	// ObservedGeneration is the generation of the spec that this status describes.
	// +optional
	ObservedGeneration int64 `json:"observedGeneration,omitempty"`
	// TableVersion is the version of the store's table of grants that contains this grant; gateways and shards apply
	// the table within seconds.
	// +optional
	TableVersion int64 `json:"tableVersion,omitempty"`
	// Conditions: Ready, Reconciling, Stalled; Compiled is True when the grant is in the store's table, InForce when
	// every gateway and shard uses that table.
	// +optional
	// +listType=map
	// +listMapKey=type
	// +kubebuilder:validation:MaxItems=32
	Conditions []metav1.Condition `json:"conditions,omitempty"`
}
