package main

import (
	"cmp"
	"log/slog"
	"os"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/spf13/cobra"

	"sheaf.dev/sheaf/internal/local/cli"
	"sheaf.dev/sheaf/internal/security/certs"
	"sheaf.dev/sheaf/internal/security/identity"
)

// tlsFlags say where a process of a store has its certificates.
type tlsFlags struct {
	dir string
	// look is the time between two checks of the folder. Its flag is hidden, because only tests need a shorter time.
	look time.Duration
}

func (f *tlsFlags) add(cmd *cobra.Command) {
	cmd.Flags().StringVar(&f.dir, "tls-dir", "",
		"folder with tls.crt, tls.key and ca.crt (and client.crt, client.key): speak mutual TLS alone; "+
			"the files are read again when they change (default: plaintext)")
	const look = "tls-look"
	cmd.Flags().DurationVar(&f.look, look, 0, "time between two looks at --tls-dir (default: 10s)")
	_ = cmd.Flags().MarkHidden(look) // fails only for an unknown flag
}

// open returns the certificates, which must be for a process with that role and name. It returns nil without TLS. The
// caller closes them.
func (f *tlsFlags) open(want identity.Identity, logger *slog.Logger, registry prometheus.Registerer) (*certs.Source,
	error) {
	if f.look < 0 {
		return nil, cli.Usagef("--tls-look %s: must be above 0", f.look)
	}
	if f.dir == "" {
		return nil, nil
	}
	source, err := certs.Open(certs.Config{Dir: f.dir, Every: f.look, Logger: logger})
	if err != nil {
		return nil, cli.Usagef("--tls-dir: %w", err)
	}
	if id := source.Identity(); id.Role != want.Role || id.Name != want.Name {
		source.Close()
		return nil, cli.Usagef("--tls-dir %s: its certificate names %s, and this process is the %s %s of its store", f.dir,
			id, want.Role, want.Name)
	}
	registry.MustRegister(source.Collectors()...)
	return source, nil
}

// envTLSDir is the environment variable with the folder of --tls-dir, for commands that are typed in a pod of the
// store.
const envTLSDir = "SHEAF_TLS_DIR"

// ownTLS says where a command finds the certificates of the process for which it acts.
type ownTLS struct {
	dir string
}

func (f *ownTLS) add(cmd *cobra.Command) {
	cmd.Flags().StringVar(&f.dir, "tls-dir", "",
		"folder with tls.crt, tls.key and ca.crt of a process of the store, for which this command speaks (or $"+envTLSDir+
			"; default: plaintext)")
}

// open returns the certificates, or nil without TLS. The caller closes them.
func (f *ownTLS) open() (*certs.Source, error) {
	dir := cmp.Or(f.dir, os.Getenv(envTLSDir))
	if dir == "" {
		return nil, nil
	}
	source, err := certs.Open(certs.Config{Dir: dir})
	if err != nil {
		return nil, cli.Usagef("--tls-dir: %w", err)
	}
	return source, nil
}
