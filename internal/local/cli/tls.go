package cli

import (
	"cmp"
	"os"

	"github.com/spf13/pflag"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"

	"sheaf.dev/sheaf/client"
)

// These environment variables replace missing flags.
const (
	envCA   = "SHEAF_CA"
	envCert = "SHEAF_CERT"
	envKey  = "SHEAF_KEY"

	envToken = "SHEAF_TOKEN_FILE"
)

// TLS holds the TLS settings for connections to a server. If none is set, the connection is plaintext.
type TLS struct {
	files client.TLSFiles
	token string // file
}

// Add adds the flags.
func (t *TLS) Add(flags *pflag.FlagSet) {
	flags.StringVar(&t.files.CA, "ca", "", "authorities of the store, in PEM: speak TLS with the server (or $"+envCA+")")
	flags.StringVar(&t.files.Cert, "cert", "", "certificate to show to the server, in PEM (or $"+envCert+")")
	flags.StringVar(&t.files.Key, "key", "", "its key (or $"+envKey+")")
	flags.StringVar(&t.token, "token-file", "",
		"file with a token that says who calls, in place of a certificate; read again when it changes (or $"+envToken+")")
}

// credentials reads the files. perCall is nil if there is no token.
func (t *TLS) credentials() (transport credentials.TransportCredentials, perCall credentials.PerRPCCredentials,
	err error) {
	files := client.TLSFiles{
		CA: cmp.Or(t.files.CA, os.Getenv(envCA)), Cert: cmp.Or(t.files.Cert, os.Getenv(envCert)),
		Key: cmp.Or(t.files.Key, os.Getenv(envKey)),
	}
	token := cmp.Or(t.token, os.Getenv(envToken))
	switch {
	case token != "" && files.Cert != "":
		return nil, nil, Usagef("--cert and --token-file both say who calls: give one of them")
	case token != "" && files.CA == "":
		return nil, nil, Usagef("--token-file needs --ca: a token goes over TLS alone")
	case files == (client.TLSFiles{}):
		return insecure.NewCredentials(), nil, nil
	}
	if transport, err = client.TLS(files); err != nil {
		return nil, nil, Usagef("--ca, --cert and --key: %w", err)
	}
	if token != "" {
		perCall = client.Token(token)
	}
	return transport, perCall, nil
}
