package main

import (
	"github.com/prometheus/client_golang/prometheus"
	"github.com/spf13/cobra"

	"sheaf.dev/sheaf/internal/local/cli"
	"sheaf.dev/sheaf/internal/security/access/guard"
)

// auditFlags hold the flags of the audit log, in which a process of a store records what it refuses and does.
type auditFlags struct {
	path   string
	writes bool
}

func (f *auditFlags) add(cmd *cobra.Command) {
	cmd.Flags().StringVar(&f.path, "audit-log", "",
		"with --tls-dir: file (or FIFO) to which refusals, administrative calls and first uses of grants go as lines of "+
			"JSON; "+
			"-: standard output; a slow reader holds up nothing, lines are lost then and counted (default: none)")
	cmd.Flags().BoolVar(&f.writes, "audit-writes", false,
		"with --audit-log: every put and delete that is allowed, too, with ids and outcome")
}

// open opens the audit log, or returns nil if none is requested. The caller closes it.
func (f *auditFlags) open(secure bool, server string, registry prometheus.Registerer) (*guard.Audit, error) {
	switch {
	case f.path == "" && f.writes:
		return nil, cli.Usagef("--audit-writes needs --audit-log")
	case f.path == "":
		return nil, nil
	case !secure:
		return nil, cli.Usagef("--audit-log needs --tls-dir: without TLS nobody is known to call, and nothing is refused")
	}
	audit, err := guard.OpenAudit(guard.AuditConfig{Path: f.path, Server: server, Writes: f.writes})
	if err != nil {
		return nil, cli.Usagef("--audit-log: %w", err)
	}
	registry.MustRegister(audit.Collectors()...)
	return audit, nil
}
