package v1alpha1

// AuditMode says what gateways and shards write to their audit logs.
// +kubebuilder:validation:Enum=None;Refusals;Writes
type AuditMode string

// Modes of audit logs.
const (
	// AuditNone writes nothing.
	AuditNone AuditMode = "None"
	// AuditRefusals writes refused calls, administrative calls and first uses of grants.
	AuditRefusals AuditMode = "Refusals"
	// AuditWrites writes the same as AuditRefusals, and also each allowed put and delete.
	AuditWrites AuditMode = "Writes"
)

// Audit says what gateways and shards write to their audit logs. Audit logs go to standard output, where the cluster's
// log collector reads them. Each line is a JSON object with the field kind. Other log lines go to standard error.
type Audit struct {
	// Mode: Refusals writes each refused call, each administrative call and the first use of each grant; Writes also
	// writes each allowed put and delete, with ids and outcome; None writes nothing.
	// +optional
	// +kubebuilder:default=Refusals
	Mode AuditMode `json:"mode,omitempty"`
}
