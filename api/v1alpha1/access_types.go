package v1alpha1

// Access lists who may call a store, in addition to callers with its certificates and ServiceAccounts of the cluster.
// RecordGrants say what each caller may do.
type Access struct {
	// Issuers of OpenID Connect tokens, such as the identity provider of your organisation. The operator reads their
	// keys and passes these to gateways and shards, which therefore ask no issuer themselves.
	// +optional
	// +listType=map
	// +listMapKey=url
	// +kubebuilder:validation:MaxItems=8
	Issuers []TokenIssuer `json:"issuers,omitempty"`
}

// TokenIssuer is an issuer of tokens. The tokens are JWTs, signed with ES256 or RS256.
// +kubebuilder:validation:XValidation:rule="has(self.caBundle) != has(self.keysFrom)",message="give caBundle, by which the issuer is checked when its keys are read, or keysFrom, where they are in a ConfigMap: one of both"
type TokenIssuer struct {
	// URL of the issuer, as in the claim iss of its tokens. The operator reads the issuer's keys from the jwks_uri in
	// URL/.well-known/openid-configuration: every hour, and also when a token names an unknown key, but then at most
	// once a minute.
	// +required
	// +kubebuilder:validation:MaxLength=512
	// +kubebuilder:validation:XValidation:rule="self.startsWith('https://')",message="url must begin with https://: whoever could change the answers on the way could call as anybody"
	// +kubebuilder:validation:XValidation:rule="self.matches('^https://[A-Za-z0-9]([A-Za-z0-9.-]*[A-Za-z0-9])?(:[0-9]{1,5})?(/[A-Za-z0-9._~%!$&()*+,;=:@/-]*)?$')",message="url must be https://HOST, with a port and a path where the issuer has them, as in iss of its tokens: no user, query or fragment"
	URL string `json:"url"`
	// Audiences that are accepted: a token must have at least one of them. The default is sheaf/NAMESPACE/STORE, as for
	// ServiceAccounts.
	// +optional
	// +listType=set
	// +kubebuilder:validation:MinItems=1
	// +kubebuilder:validation:MaxItems=8
	// +kubebuilder:validation:items:MinLength=1
	// +kubebuilder:validation:items:MaxLength=512
	// +kubebuilder:validation:items:XValidation:rule="self.matches('^[!-~]+$')",message="an audience holds letters, digits and signs of ASCII, and no spaces, such as sheaf/prod/quotes"
	Audiences []string `json:"audiences,omitempty"`
	// GroupsClaim is the claim of a token that lists the caller's groups. The default is groups.
	// +optional
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=128
	// +kubebuilder:validation:XValidation:rule="self.matches('^[!-~]+$')",message="groupsClaim holds letters, digits and signs of ASCII, and no spaces, such as groups"
	GroupsClaim string `json:"groupsClaim,omitempty"`
	// CABundle has the authorities, in PEM, with which the issuer's certificate is verified. The operator's image
	// contains no authorities: for a public issuer, give the root of its certificate.
	// +optional
	// +kubebuilder:validation:MaxLength=65536
	// +kubebuilder:validation:XValidation:rule="self.contains('-----BEGIN CERTIFICATE-----')",message="caBundle must hold certificates in PEM: it begins with -----BEGIN CERTIFICATE-----"
	CABundle string `json:"caBundle,omitempty"`
	// KeysFrom names a ConfigMap of this namespace whose key jwks.json holds the issuer's JSON Web Key Set, for issuers
	// that the operator cannot reach. The operator reads the ConfigMap every minute.
	// +optional
	KeysFrom *KeysFrom `json:"keysFrom,omitempty"`
}

// KeysFrom names a ConfigMap.
type KeysFrom struct {
	// ConfigMapName is the name of the ConfigMap.
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=253
	// +kubebuilder:validation:XValidation:rule="self.matches('^[a-z0-9]([-a-z0-9.]*[a-z0-9])?$')",message="configMapName must be the name of a ConfigMap of this namespace"
	ConfigMapName string `json:"configMapName"`
}
