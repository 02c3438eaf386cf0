package v1alpha1

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// RecordGrant lets callers of a store do something with its records. Without a grant nobody may do anything, but the
// store's own processes and administrators by certificate. What several grants allow adds up; nothing takes away.
//
// +kubebuilder:object:root=true
// +kubebuilder:subresource:status
// +kubebuilder:resource:shortName=rgrant,categories=sheaf
// +kubebuilder:printcolumn:name="Store",type=string,JSONPath=`.spec.store`
// +kubebuilder:printcolumn:name="Verbs",type=string,JSONPath=`.spec.verbs`
// +kubebuilder:printcolumn:name="Ready",type=string,JSONPath=`.status.conditions[?(@.type=="Ready")].status`
// +kubebuilder:printcolumn:name="Status",type=string,JSONPath=`.status.conditions[?(@.type=="Ready")].reason`
// +kubebuilder:printcolumn:name="Table",type=integer,JSONPath=`.status.table`,priority=1
// +kubebuilder:printcolumn:name="Age",type=date,JSONPath=`.metadata.creationTimestamp`
type RecordGrant struct {
	metav1.TypeMeta `json:",inline"`
	// +optional
	metav1.ObjectMeta `json:"metadata,omitzero"`
	// Spec says who may do what.
	// +required
	Spec RecordGrantSpec `json:"spec"`
	// Status is what became of it; the operator writes it.
	// +optional
	Status RecordGrantStatus `json:"status,omitzero"`
}

// RecordGrantList is a list of RecordGrants.
// +kubebuilder:object:root=true
type RecordGrantList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitzero"`
	Items           []RecordGrant `json:"items"`
}

// RecordGrantSpec says who may do what.
type RecordGrantSpec struct {
	// Store is the name of the RecordStore, in this namespace. One that is not there yet may be named.
	// +required
	// +kubebuilder:validation:MaxLength=40
	// +kubebuilder:validation:XValidation:rule="self.matches('^[a-z]([-a-z0-9]*[a-z0-9])?$')",message="store must be the name of a RecordStore of this namespace"
	Store string `json:"store"`
	// Subjects are whom it is for.
	// +required
	// +listType=atomic
	// +kubebuilder:validation:MinItems=1
	// +kubebuilder:validation:MaxItems=100
	Subjects []GrantSubject `json:"subjects"`
	// Verbs are what they may do: get, put, delete, scan, watch with records; admin-read (status, lists, routing of all
	// groups) and admin-write (make groups, compact, verify, accept losses) with the store.
	// +required
	// +listType=set
	// +kubebuilder:validation:MinItems=1
	// +kubebuilder:validation:MaxItems=7
	Verbs []GrantVerb `json:"verbs"`
	// Groups are where: all of them, or some by their names. A group that is not there yet may be named.
	// +required
	Groups GrantGroups `json:"groups"`
}

// GrantVerb is what a grant allows.
// +kubebuilder:validation:Enum=get;put;delete;scan;watch;admin-read;admin-write
type GrantVerb string

// GrantSubjectKind says how a subject is recognised.
// +kubebuilder:validation:Enum=Certificate;ServiceAccount;ServiceAccounts;OIDC;OIDCGroup;Anybody
type GrantSubjectKind string

// Kinds of subjects.
const (
	// GrantCertificate is the caller with the certificate of that name, as in spec.tls.clients of the store.
	GrantCertificate GrantSubjectKind = "Certificate"
	// GrantServiceAccount is one ServiceAccount, by a token for the audience sheaf/NAMESPACE/STORE.
	GrantServiceAccount GrantSubjectKind = "ServiceAccount"
	// GrantServiceAccounts are all ServiceAccounts of a namespace.
	GrantServiceAccounts GrantSubjectKind = "ServiceAccounts"
	// GrantOIDC is the subject of a token of another issuer.
	GrantOIDC GrantSubjectKind = "OIDC"
	// GrantOIDCGroup is whoever's token of another issuer claims that group.
	GrantOIDCGroup GrantSubjectKind = "OIDCGroup"
	// GrantAnybody is whoever has a certificate or a token that is good for the store.
	GrantAnybody GrantSubjectKind = "Anybody"
)

// GrantSubject is whom a grant is for.
// +kubebuilder:validation:XValidation:rule="has(self.name) == (self.kind != 'ServiceAccounts' && self.kind != 'Anybody')",message="name: kinds Certificate, ServiceAccount, OIDC and OIDCGroup need one, the others have none"
// +kubebuilder:validation:XValidation:rule="has(self.namespace) == (self.kind == 'ServiceAccount' || self.kind == 'ServiceAccounts')",message="namespace: kinds ServiceAccount and ServiceAccounts need one, the others have none"
// +kubebuilder:validation:XValidation:rule="has(self.issuer) == (self.kind == 'OIDC' || self.kind == 'OIDCGroup')",message="issuer: kinds OIDC and OIDCGroup need one, the others have none"
type GrantSubject struct {
	// Kind says how the subject is recognised: by a Certificate (name), as a ServiceAccount (namespace, name), as one of
	// all ServiceAccounts of a namespace, by a token of another issuer (OIDC: issuer, name; OIDCGroup: issuer, name of
	// the group), or Anybody who is known to the store.
	// +required
	Kind GrantSubjectKind `json:"kind"`
	// Issuer of tokens.
	// +optional
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=512
	Issuer string `json:"issuer,omitempty"`
	// Namespace of ServiceAccounts.
	// +optional
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=63
	Namespace string `json:"namespace,omitempty"`
	// Name of the certificate, ServiceAccount, subject or group.
	// +optional
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=253
	Name string `json:"name,omitempty"`
}

// GrantGroups are groups of records.
// +kubebuilder:validation:XValidation:rule="(has(self.all) && self.all) != (has(self.names) || has(self.prefixes))",message="groups: give all: true, or names and prefixes"
type GrantGroups struct {
	// All groups. Groups of routing Hash are numbers that mean nothing to people: give all.
	// +optional
	All bool `json:"all,omitempty"`
	// Names of groups.
	// +optional
	// +listType=set
	// +kubebuilder:validation:MinItems=1
	// +kubebuilder:validation:MaxItems=500
	// +kubebuilder:validation:items:MinLength=1
	// +kubebuilder:validation:items:MaxLength=253
	Names []string `json:"names,omitempty"`
	// Prefixes of names of groups.
	// +optional
	// +listType=set
	// +kubebuilder:validation:MinItems=1
	// +kubebuilder:validation:MaxItems=500
	// +kubebuilder:validation:items:MinLength=1
	// +kubebuilder:validation:items:MaxLength=253
	Prefixes []string `json:"prefixes,omitempty"`
}

// RecordGrantStatus is what became of a grant.
type RecordGrantStatus struct {
	// ObservedGeneration is the generation of the spec that the rest is about.
	// +optional
	ObservedGeneration int64 `json:"observedGeneration,omitempty"`
	// Table is the version of the table of grants that has this one. Gateways and shards tell in
	// sheaf_access_table_version which one they use.
	// +optional
	Table int64 `json:"table,omitempty"`
	// Conditions: Ready is True when the grant is in the table that gateways and shards read.
	// +optional
	// +listType=map
	// +listMapKey=type
	// +kubebuilder:validation:MaxItems=4
	Conditions []metav1.Condition `json:"conditions,omitempty"`
}
