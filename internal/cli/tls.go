package cli

import (
	"cmp"
	"os"

	"github.com/spf13/pflag"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"

	"sheaf.dev/sheaf/client"
)

// Environment variables that stand for flags that are not given.
const (
	envCA   = "SHEAF_CA"
	envCert = "SHEAF_CERT"
	envKey  = "SHEAF_KEY"
)

// TLS says how a server is spoken to: in plaintext where nothing is given.
type TLS struct{ files client.TLSFiles }

// Add adds the flags.
func (t *TLS) Add(flags *pflag.FlagSet) {
	flags.StringVar(&t.files.CA, "ca", "", "authorities of the store, in PEM: speak TLS with the server (or $"+envCA+")")
	flags.StringVar(&t.files.Cert, "cert", "", "certificate to show to the server, in PEM (or $"+envCert+")")
	flags.StringVar(&t.files.Key, "key", "", "its key (or $"+envKey+")")
}

// credentials reads the files.
func (t *TLS) credentials() (credentials.TransportCredentials, error) {
	files := client.TLSFiles{
		CA: cmp.Or(t.files.CA, os.Getenv(envCA)), Cert: cmp.Or(t.files.Cert, os.Getenv(envCert)), Key: cmp.Or(t.files.Key, os.Getenv(envKey)),
	}
	if files == (client.TLSFiles{}) {
		return insecure.NewCredentials(), nil
	}
	made, err := client.TLS(files)
	if err != nil {
		return nil, Usagef("--ca, --cert and --key: %w", err)
	}
	return made, nil
}
