package v1alpha1

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// TLSMode says whether the processes of a store, and its callers, use TLS.
// +kubebuilder:validation:Enum=Required;Optional;Disabled
type TLSMode string

// TLS modes.
const (
	// TLSRequired accepts only TLS.
	TLSRequired TLSMode = "Required"
	// TLSOptional lets the store's processes use TLS among themselves, and accepts plaintext from callers, too, while
	// callers switch to TLS.
	TLSOptional TLSMode = "Optional"
	// TLSDisabled uses plaintext, and accepts TLS from callers, too.
	TLSDisabled TLSMode = "Disabled"
)

// TLSSource says who issues the certificates.
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
// shard and no gateway restarts for it; members of a managed etcd restart, one at a time.
// +kubebuilder:validation:XValidation:rule="(self.source == 'CertManager') == has(self.certManager)",message="certManager is for source CertManager, which needs it: set both, or neither"
// +kubebuilder:validation:XValidation:rule="(self.source == 'Provided') == has(self.provided)",message="provided is for source Provided, which needs it: set both, or neither"
// +kubebuilder:validation:XValidation:rule="self.source == 'Operator' || !has(self.rotate) || size(self.rotate) == 0",message="rotate is for source Operator: with another source, take rotate out, and let the issuer or the Secrets have other authorities"
// +kubebuilder:validation:XValidation:rule="self.source != 'Provided' || !has(self.clients) || size(self.clients) == 0",message="clients is for the sources Operator and CertManager: with source Provided, make the certificates of callers yourself, and take clients out"
type TLS struct {
	// Mode is Required (only TLS), Optional (plaintext from callers is accepted, too) or Disabled. Once a store has
	// become Required, it refuses callers who use plaintext: if there are any, set Optional first, and Required when
	// status.tls.plaintextConnections is 0.
	// +optional
	// +kubebuilder:default=Required
	Mode TLSMode `json:"mode,omitempty"`
	// Source of the certificates: Operator, which creates two authorities (one for the store's processes, one for its
	// callers) in Secret STORE-authority, and certificates that are valid for 30 days; CertManager, an issuer of
	// cert-manager; or Provided, Secrets that somebody else writes. A different source means different authorities: the
	// store switches to them while it serves.
	// +optional
	// +kubebuilder:default=Operator
	Source TLSSource `json:"source,omitempty"`
	// CertManager says which issuer signs the certificates. It belongs to source CertManager.
	// +optional
	CertManager *TLSCertManager `json:"certManager,omitempty"`
	// Provided says where the certificates are. It belongs to source Provided.
	// +optional
	Provided *TLSProvidedSecrets `json:"provided,omitempty"`
	// Clients are names of callers. For each, the operator creates a Secret STORE-client-NAME-tls with tls.crt, tls.key
	// and ca.crt, with which a caller reads and writes records. For callers who also administer the store there is
	// STORE-admin-tls. If you remove a name from the list, its Secret is deleted.
	// +optional
	// +listType=set
	// +kubebuilder:validation:MaxItems=64
	// +kubebuilder:validation:items:MaxLength=63
	// +kubebuilder:validation:items:XValidation:rule="self.matches('^[a-z0-9]([-a-z0-9]*[a-z0-9])?$')",message="the name of a client is lower case letters, digits and -, such as reader"
	Clients []string `json:"clients,omitempty"`
	// GatewayNames are DNS names, in addition to those of the Service, with which callers reach the gateways. They
	// become part of the gateways' certificate.
	// +optional
	// +listType=set
	// +kubebuilder:validation:MaxItems=16
	// +kubebuilder:validation:items:MaxLength=253
	// +kubebuilder:validation:items:XValidation:rule="self.matches('^([*][.])?[a-z0-9]([-a-z0-9]*[a-z0-9])?([.][a-z0-9]([-a-z0-9]*[a-z0-9])?)*$')",message="a name of the gateway is a DNS name, such as quotes.example.org"
	GatewayNames []string `json:"gatewayNames,omitempty"`
	// PublishTo are namespaces from which pods call the store with tokens. In each, the operator maintains a ConfigMap
	// NAMESPACE.STORE-ca (for store quotes of namespace prod: prod.quotes-ca), with the store's authorities in ca.crt,
	// also while these change. If you remove a namespace from the list, its ConfigMap is deleted. Pods of the store's
	// own namespace find ca.crt in ConfigMap STORE-tls.
	// +optional
	// +listType=set
	// +kubebuilder:validation:MaxItems=64
	// +kubebuilder:validation:items:MaxLength=63
	// +kubebuilder:validation:items:XValidation:rule="self.matches('^[a-z0-9]([-a-z0-9]*[a-z0-9])?$')",message="publishTo holds names of namespaces: lower case letters, digits and -"
	PublishTo []string `json:"publishTo,omitempty"`
	// Rotate is any word, such as the date. When it changes, new authorities replace those of the store, without a
	// restart of gateways and shards.
	// +optional
	// +kubebuilder:validation:MaxLength=64
	// +kubebuilder:validation:XValidation:rule="self.matches('^[A-Za-z0-9._:-]*$')",message="rotate holds letters, digits and . _ : - only, such as 2026-11-30"
	Rotate string `json:"rotate,omitempty"`
}

// TLSCertManager names an issuer of cert-manager.
type TLSCertManager struct {
	// IssuerRef is the issuer. It has to supply its authority in ca.crt, as issuers of kind CA and Vault do, and has to
	// sign URIs.
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

// TLSProvidedSecrets names the Secrets with certificates that somebody else issues. The operator only reads these
// Secrets.
type TLSProvidedSecrets struct {
	// SecretPrefix is the prefix of the Secrets' names. The Secrets are in the namespace of the store: PREFIXgateway,
	// PREFIXetcd (of a managed etcd), PREFIXoperator, PREFIXshard-NAME for each shard, and optionally PREFIXadmin. Each
	// has tls.crt, tls.key and ca.crt; also client.crt and client.key if a process shows servers a different certificate,
	// and client-ca.crt if callers have other authorities. A prefix is, for example, quotes-given-.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=100
	// +kubebuilder:validation:XValidation:rule="self.matches('^[a-z0-9]([-a-z0-9.]*[a-z0-9])?-?$')",message="secretPrefix is lower case letters, digits, . and -, such as quotes-given-"
	SecretPrefix string `json:"secretPrefix"`
}

// TLSTransport says which transport the operator told the processes of a store to use.
// +kubebuilder:validation:Enum=plaintext;both;required
type TLSTransport string

// Transports, as the file `mode` of a process spells them.
const (
	// TransportPlaintext connects with plaintext, and accepts plaintext and TLS.
	TransportPlaintext TLSTransport = "plaintext"
	// TransportBoth connects with TLS, and accepts plaintext and TLS.
	TransportBoth TLSTransport = "both"
	// TransportRequired connects with TLS, and accepts only TLS.
	TransportRequired TLSTransport = "required"
)

// TLSPhase says which change of a store's certificates is in progress.
// +kubebuilder:validation:Enum=Ready;Switching;Trusting;Issuing;Dropping
type TLSPhase string

// Phases of a change of certificates.
const (
	// TLSReady: the store uses the transport and the authorities that the spec asks for.
	TLSReady TLSPhase = "Ready"
	// TLSSwitching: the processes switch from one transport to another.
	TLSSwitching TLSPhase = "Switching"
	// TLSTrusting: processes and callers begin to trust the next authorities in addition to the previous ones.
	TLSTrusting TLSPhase = "Trusting"
	// TLSIssuing: all certificates are created again, by the next authorities.
	TLSIssuing TLSPhase = "Issuing"
	// TLSDropping: processes stop trusting the previous authorities.
	TLSDropping TLSPhase = "Dropping"
)

// TLSStatus is what the operator observed about the certificates of a store, and the progress of changes to them.
type TLSStatus struct {
	// Default is what an absent spec.tls means for this store, which was decided when the operator first saw the store:
	// Required for new stores, Disabled for stores that served before Sheaf supported TLS.
	// +optional
	Default TLSMode `json:"default,omitempty"`
	// Mode that applies, from spec.tls or by default.
	// +optional
	Mode TLSMode `json:"mode,omitempty"`
	// Transport that the operator told the processes to use.
	// +optional
	Transport TLSTransport `json:"transport,omitempty"`
	// Phase says which change is in progress.
	// +optional
	Phase TLSPhase `json:"phase,omitempty"`
	// Since is when the phase or the transport last changed.
	// +optional
	Since *metav1.Time `json:"since,omitempty"`
	// Bundle is the SHA-256 of the authorities with which processes of the store verify each other, and callers verify
	// the store.
	// +optional
	Bundle string `json:"bundle,omitempty"`
	// ClientBundle is the SHA-256 of the authorities with which callers are verified.
	// +optional
	ClientBundle string `json:"clientBundle,omitempty"`
	// NotAfter is when the first of the certificates in use expires.
	// +optional
	NotAfter *metav1.Time `json:"notAfter,omitempty"`
	// Processes is the number of the store's running processes: gateways, shards and members of a managed etcd.
	// +optional
	Processes int32 `json:"processes,omitempty"`
	// Reported is the number of these processes that have reported that they use the present transport and authorities.
	// +optional
	Reported int32 `json:"reported,omitempty"`
	// PlaintextConnections is the number of plaintext connections that processes have open, as last reported.
	// +optional
	PlaintextConnections int32 `json:"plaintextConnections,omitempty"`
	// Rotating is the value of spec.tls.rotate that is being carried out.
	// +optional
	Rotating string `json:"rotating,omitempty"`
	// Rotated is the value of spec.tls.rotate that was carried out last.
	// +optional
	Rotated string `json:"rotated,omitempty"`
	// Source for which the operator has created objects, such as Certificates. It differs from spec.tls.source until a
	// change of the source is complete.
	// +optional
	Source TLSSource `json:"source,omitempty"`
	// Clients whose Secrets the operator has created.
	// +optional
	// +listType=set
	// +kubebuilder:validation:MaxItems=128
	Clients []string `json:"clients,omitempty"`
	// Published are namespaces in which the operator may have created a ConfigMap with the authorities.
	// +optional
	// +listType=set
	// +kubebuilder:validation:MaxItems=128
	Published []string `json:"published,omitempty"`
	// WithoutImage is the image with which the store served before Sheaf supported TLS. The store's pods get certificates
	// only when the image changes or spec.tls is set, so that an update of the operator alone restarts no pod.
	// +optional
	WithoutImage string `json:"withoutImage,omitempty"`
}
