package v1alpha1

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// TLSMode says how the processes of a store, and its callers, are to speak.
// +kubebuilder:validation:Enum=Required;Optional;Disabled
type TLSMode string

// Modes of TLS.
const (
	// TLSRequired takes connections by TLS alone.
	TLSRequired TLSMode = "Required"
	// TLSOptional lets the store's processes use TLS among themselves, and takes plaintext of callers too: for the time
	// in which callers change.
	TLSOptional TLSMode = "Optional"
	// TLSDisabled uses plaintext, and takes TLS of callers too.
	TLSDisabled TLSMode = "Disabled"
)

// TLSSource says who makes the certificates.
// +kubebuilder:validation:Enum=Operator;CertManager;Provided
type TLSSource string

// Sources of certificates.
const (
	// TLSFromOperator lets the operator be the authority.
	TLSFromOperator TLSSource = "Operator"
	// TLSFromCertManager asks an issuer of cert-manager for all certificates.
	TLSFromCertManager TLSSource = "CertManager"
	// TLSProvided takes certificates from Secrets that somebody else writes.
	TLSProvided TLSSource = "Provided"
)

// TLS says how the connections of a store are protected. Everything here can be changed while the store serves: no
// shard restarts for it; gateways do not either, and members of a managed etcd restart one at a time.
// +kubebuilder:validation:XValidation:rule="(self.source == 'CertManager') == has(self.certManager)",message="certManager is for source CertManager, which needs it: set both, or neither"
// +kubebuilder:validation:XValidation:rule="(self.source == 'Provided') == has(self.provided)",message="provided is for source Provided, which needs it: set both, or neither"
// +kubebuilder:validation:XValidation:rule="self.source == 'Operator' || !has(self.rotate) || size(self.rotate) == 0",message="rotate is for source Operator: with another source, take rotate out, and let the issuer or the Secrets have other authorities"
// +kubebuilder:validation:XValidation:rule="self.source != 'Provided' || !has(self.clients) || size(self.clients) == 0",message="clients is for the sources Operator and CertManager: with source Provided, make the certificates of callers yourself, and take clients out"
type TLS struct {
	// Mode is Required (TLS alone), Optional (plaintext of callers is taken too) or Disabled. Callers who use plaintext
	// are refused once a store has become Required: where there are some, ask for Optional first, and for Required
	// when status.tls.plaintextConnections is 0.
	// +optional
	// +kubebuilder:default=Required
	Mode TLSMode `json:"mode,omitempty"`
	// Source of the certificates: Operator, which makes two authorities (one of the store's processes, one of its
	// callers) in Secret STORE-authority, and certificates of 30 days; CertManager, an issuer of cert-manager; or
	// Provided, Secrets that somebody else writes. Another source means other authorities: the store goes over to them
	// while it serves.
	// +optional
	// +kubebuilder:default=Operator
	Source TLSSource `json:"source,omitempty"`
	// CertManager says which issuer signs the certificates. For source CertManager.
	// +optional
	CertManager *TLSCertManager `json:"certManager,omitempty"`
	// Provided says where the certificates are. For source Provided.
	// +optional
	Provided *TLSProvidedSecrets `json:"provided,omitempty"`
	// Clients are names of callers. The operator makes a Secret STORE-client-NAME-tls for each, with tls.crt, tls.key
	// and ca.crt, by which a caller reads and writes records. One who may administer the store too has
	// STORE-admin-tls. The Secret of a name that is taken out of the list is deleted.
	// +optional
	// +listType=set
	// +kubebuilder:validation:MaxItems=64
	// +kubebuilder:validation:items:MaxLength=63
	// +kubebuilder:validation:items:XValidation:rule="self.matches('^[a-z0-9]([-a-z0-9]*[a-z0-9])?$')",message="the name of a client is lower case letters, digits and -, such as reader"
	Clients []string `json:"clients,omitempty"`
	// GatewayNames are DNS names by which callers reach the gateways, beside those of the Service: they go into the
	// gateways' certificate.
	// +optional
	// +listType=set
	// +kubebuilder:validation:MaxItems=16
	// +kubebuilder:validation:items:MaxLength=253
	// +kubebuilder:validation:items:XValidation:rule="self.matches('^([*][.])?[a-z0-9]([-a-z0-9]*[a-z0-9])?([.][a-z0-9]([-a-z0-9]*[a-z0-9])?)*$')",message="a name of the gateway is a DNS name, such as quotes.example.org"
	GatewayNames []string `json:"gatewayNames,omitempty"`
	// PublishTo are namespaces from which pods call the store by token. The operator keeps a ConfigMap
	// NAMESPACE.STORE-ca in each (for store quotes of namespace prod: prod.quotes-ca), with the authorities of the store
	// in ca.crt, also while these change. That of a namespace that is taken out of the list is deleted. Pods of the
	// store's own namespace find ca.crt in ConfigMap STORE-tls.
	// +optional
	// +listType=set
	// +kubebuilder:validation:MaxItems=64
	// +kubebuilder:validation:items:MaxLength=63
	// +kubebuilder:validation:items:XValidation:rule="self.matches('^[a-z0-9]([-a-z0-9]*[a-z0-9])?$')",message="publishTo holds names of namespaces: lower case letters, digits and -"
	PublishTo []string `json:"publishTo,omitempty"`
	// Rotate is any word: where it is another one than before, the authorities of the store are replaced by new ones,
	// without a restart of gateways and shards. Such as the date.
	// +optional
	// +kubebuilder:validation:MaxLength=64
	// +kubebuilder:validation:XValidation:rule="self.matches('^[A-Za-z0-9._:-]*$')",message="rotate holds letters, digits and . _ : - only, such as 2026-11-30"
	Rotate string `json:"rotate,omitempty"`
}

// TLSCertManager names an issuer of cert-manager.
type TLSCertManager struct {
	// IssuerRef is the issuer. It has to tell its authority in ca.crt, as issuers of kind CA and Vault do, and to sign
	// URIs.
	IssuerRef TLSIssuerRef `json:"issuerRef"`
}

// TLSIssuerRef names an issuer as cert-manager does.
type TLSIssuerRef struct {
	// Name of the issuer.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=253
	// +kubebuilder:validation:XValidation:rule="self.matches('^[a-z0-9]([-a-z0-9.]*[a-z0-9])?$')",message="issuerRef.name is the name of an issuer: lower case letters, digits, . and -"
	Name string `json:"name"`
	// Kind of the issuer: Issuer, which is in the namespace of the store, ClusterIssuer, or one of another group.
	// +optional
	// +kubebuilder:default=Issuer
	// +kubebuilder:validation:MaxLength=63
	// +kubebuilder:validation:XValidation:rule="self.matches('^[A-Za-z][A-Za-z0-9]*$')",message="issuerRef.kind is the kind of an issuer, such as Issuer or ClusterIssuer"
	Kind string `json:"kind,omitempty"`
	// Group of that kind.
	// +optional
	// +kubebuilder:default=cert-manager.io
	// +kubebuilder:validation:MaxLength=253
	// +kubebuilder:validation:XValidation:rule="self.matches('^[a-z0-9]([-a-z0-9.]*[a-z0-9])?$')",message="issuerRef.group is the group of a kind, such as cert-manager.io"
	Group string `json:"group,omitempty"`
}

// TLSProvidedSecrets says where certificates are that somebody else makes. The operator reads these Secrets, and writes
// none of them.
type TLSProvidedSecrets struct {
	// SecretPrefix begins the names of the Secrets, which are in the namespace of the store: PREFIXgateway, PREFIXetcd
	// (of a managed etcd), PREFIXoperator, PREFIXshard-NAME for each shard, and PREFIXadmin where there is one. Each has
	// tls.crt, tls.key and ca.crt; client.crt and client.key where the certificate shown to servers is another one;
	// client-ca.crt where callers have other authorities. Such as quotes-given-.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=100
	// +kubebuilder:validation:XValidation:rule="self.matches('^[a-z0-9]([-a-z0-9.]*[a-z0-9])?-?$')",message="secretPrefix is lower case letters, digits, . and -, such as quotes-given-"
	SecretPrefix string `json:"secretPrefix"`
}

// TLSTransport is what the processes of a store were told.
// +kubebuilder:validation:Enum=plaintext;both;required
type TLSTransport string

// Transports, as the file `mode` of a process spells them.
const (
	// TransportPlaintext dials plaintext, and takes both.
	TransportPlaintext TLSTransport = "plaintext"
	// TransportBoth dials TLS, and takes both.
	TransportBoth TLSTransport = "both"
	// TransportRequired dials TLS, and takes TLS alone.
	TransportRequired TLSTransport = "required"
)

// TLSPhase says what goes on with the certificates of a store.
// +kubebuilder:validation:Enum=Ready;Switching;Trusting;Issuing;Dropping
type TLSPhase string

// Phases.
const (
	// TLSReady: the store speaks as it is asked to, and its authorities are those asked for.
	TLSReady TLSPhase = "Ready"
	// TLSSwitching: the processes go from one transport to another.
	TLSSwitching TLSPhase = "Switching"
	// TLSTrusting: processes and callers learn to trust the next authorities beside those of before.
	TLSTrusting TLSPhase = "Trusting"
	// TLSIssuing: all certificates are created again, by the next authorities.
	TLSIssuing TLSPhase = "Issuing"
	// TLSDropping: processes learn to trust the authorities of before no more.
	TLSDropping TLSPhase = "Dropping"
)

// TLSStatus is what was seen of the certificates of a store, and how far their changes are.
type TLSStatus struct {
	// Default is what an absent spec.tls means for this store: decided when the operator saw it first. Required for
	// new stores; Disabled for those that served before there was TLS.
	// +optional
	Default TLSMode `json:"default,omitempty"`
	// Mode that is asked for, by spec.tls or by default.
	// +optional
	Mode TLSMode `json:"mode,omitempty"`
	// Transport that the processes were told.
	// +optional
	Transport TLSTransport `json:"transport,omitempty"`
	// Phase says what goes on.
	// +optional
	Phase TLSPhase `json:"phase,omitempty"`
	// Since when the phase, or the transport, is what it is.
	// +optional
	Since *metav1.Time `json:"since,omitempty"`
	// Bundle is the SHA-256 of the authorities by which processes of the store know each other, and callers know the
	// store.
	// +optional
	Bundle string `json:"bundle,omitempty"`
	// ClientBundle is the SHA-256 of the authorities by which callers are known.
	// +optional
	ClientBundle string `json:"clientBundle,omitempty"`
	// NotAfter is when the first of the certificates ends that processes have in use.
	// +optional
	NotAfter *metav1.Time `json:"notAfter,omitempty"`
	// Processes of the store that run: gateways, shards, members of a managed etcd.
	// +optional
	Processes int32 `json:"processes,omitempty"`
	// Reported is how many of these have said that they use what they were told.
	// +optional
	Reported int32 `json:"reported,omitempty"`
	// PlaintextConnections that processes have open, as they said last.
	// +optional
	PlaintextConnections int32 `json:"plaintextConnections,omitempty"`
	// Rotating is the value of spec.tls.rotate that is being carried out.
	// +optional
	Rotating string `json:"rotating,omitempty"`
	// Rotated is the value of spec.tls.rotate that was carried out last.
	// +optional
	Rotated string `json:"rotated,omitempty"`
	// Source by which the operator has made objects, such as Certificates: another one than spec.tls.source until a
	// change of the source is over.
	// +optional
	Source TLSSource `json:"source,omitempty"`
	// Clients whose Secrets the operator has made.
	// +optional
	// +listType=set
	// +kubebuilder:validation:MaxItems=128
	Clients []string `json:"clients,omitempty"`
	// Published are namespaces in which the operator may have made a ConfigMap with the authorities.
	// +optional
	// +listType=set
	// +kubebuilder:validation:MaxItems=128
	Published []string `json:"published,omitempty"`
	// WithoutImage is the image with which a store served before there was TLS: its pods are given certificates with
	// the next image, or when spec.tls is set, so that a new operator alone restarts none.
	// +optional
	WithoutImage string `json:"withoutImage,omitempty"`
}
