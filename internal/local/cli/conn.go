package cli

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"net"
	"os"
	"slices"
	"sync/atomic"
	"time"

	"github.com/spf13/pflag"
	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"

	"sheaf.dev/sheaf/client"
	"sheaf.dev/sheaf/client/call/liveness"
	"sheaf.dev/sheaf/client/recordv1"
)

// dataBytesMax is the maximum size for Put and Get; larger data use Upload and Download.
const dataBytesMax = 1 << 20

// listBytesMax is the maximum size of the answer with all groups or shards.
const listBytesMax = 16 << 20

// forever is a time limit that no call reaches. Adding it to a point in time does not overflow.
const forever time.Duration = math.MaxInt64 / 2

var reconnects = backoff.Config{BaseDelay: 50 * time.Millisecond, Multiplier: 1.6, Jitter: 0.2,
	MaxDelay: 2 * time.Second}

// Conn is a connection to a gateway or a shard. It uses the public client for records, and adds the calls that only
// administrators make.
type Conn struct {
	*client.Client
	Admin  recordv1.AdminServiceClient
	Access recordv1.AccessServiceClient
	Server string

	admin *grpc.ClientConn
	waits atomic.Pointer[waits] // if nil, no notes are printed
}

// Dial prepares connections to HOST:PORT, and sends nothing yet. If no server listens at that address, calls fail
// immediately, so that the user notices. Calls wait for a server that has answered before. The argument callTimeout
// limits each call that has one answer and no deadline of its own. It also limits how long a stream tries to resume.
// 0 means no limit.
func Dial(server string, tls TLS, callTimeout time.Duration) (*Conn, error) {
	if _, port, err := net.SplitHostPort(server); err != nil || port == "" {
		return nil, Usagef("--server %q: must be HOST:PORT, as 127.0.0.1:7600", server)
	}
	if callTimeout == 0 {
		callTimeout = forever
	}
	creds, perCall, err := tls.credentials()
	if err != nil {
		return nil, err
	}
	c := &Conn{Server: server}
	options := []grpc.DialOption{
		grpc.WithUserAgent("sheaf-cli"),
		grpc.WithChainUnaryInterceptor(c.unaryWaits), grpc.WithChainStreamInterceptor(c.streamWaits),
	}
	own := options
	if perCall != nil {
		own = append(slices.Clone(options), grpc.WithPerRPCCredentials(perCall))
	}
	// With the passthrough resolver, the name is resolved while connecting, so that the connection error describes a
	// problem with the name.
	admin, err := grpc.NewClient("passthrough:///"+server, append(own,
		grpc.WithNoProxy(), grpc.WithTransportCredentials(creds),
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(listBytesMax)),
		// The address of a Service may lead to a gateway on a failed node. The next attempt is likely to reach another
		// gateway.
		grpc.WithContextDialer(liveness.Dial),
		// Commands that poll continue while the server restarts, and must notice soon that it has returned.
		grpc.WithConnectParams(grpc.ConnectParams{Backoff: reconnects, MinConnectTimeout: 5 * time.Second}),
	)...)
	if err != nil {
		return nil, Usagef("--server %q: %w", server, err)
	}
	c.admin, c.Admin, c.Access = admin, recordv1.NewAdminServiceClient(admin), recordv1.NewAccessServiceClient(admin)
	c.Client, err = client.New(client.Config{Addresses: []string{server}, Credentials: creds, CallCredentials: perCall,
		CallTimeout: callTimeout, FailFast: true, DialOptions: options})
	if err != nil {
		return nil, errors.Join(Usagef("--server %q: %w", server, err), admin.Close())
	}
	return c, nil
}

// Close closes the connections.
func (c *Conn) Close() error { return errors.Join(c.Client.Close(), c.admin.Close()) }

// Store stores the content of data as one record. It uses Put for up to 1 MiB of data, and Upload for more, and needs
// 1 MiB of memory. If data is an io.ReadSeeker at its start, Store repeats a failed upload.
func (c *Conn) Store(ctx context.Context, key client.Key, data io.Reader, options *client.PutOptions) (client.PutResult,
	error) {
	head, err := io.ReadAll(io.LimitReader(data, dataBytesMax+1))
	if err != nil {
		return client.PutResult{}, fmt.Errorf("reading the data: %w", err)
	}
	if len(head) <= dataBytesMax {
		return c.Put(ctx, key, head, options)
	}
	from, ok := data.(io.ReadSeeker)
	if !ok {
		return c.Upload(ctx, key, io.MultiReader(bytes.NewReader(head), data), options)
	}
	if _, err := from.Seek(0, io.SeekStart); err != nil {
		return client.PutResult{}, fmt.Errorf("reading the data: %w", err)
	}
	return c.Upload(ctx, key, from, options)
}

// Fetch reads a version of a record of any size into w. Without a version, it reads the newest one. Fetch writes the
// data in pieces, each after checking its CRC32C.
func (c *Conn) Fetch(ctx context.Context, key client.Key, version string, w io.Writer) (client.Record, error) {
	record, err := c.Get(ctx, key, &client.GetOptions{Version: version, BytesMax: dataBytesMax})
	if errors.Is(err, client.ErrTooLarge) {
		return c.Download(ctx, key, w, &client.DownloadOptions{Version: version})
	}
	if err != nil {
		return record, err
	}
	if _, err := w.Write(record.Data); err != nil {
		return record, fmt.Errorf("writing the data: %w", err)
	}
	return record, nil
}

// dataOf returns the data of a record from a scan. A scan leaves out large data, which dataOf reads with another call.
// The result closeData ends that call.
func (c *Conn) dataOf(ctx context.Context, r client.Record) (data io.Reader, closeData func(), err error) {
	if r.HasData {
		return bytes.NewReader(r.Data), func() {}, nil
	}
	from, err := c.Open(ctx, r.Key, &client.DownloadOptions{Version: r.Version})
	if err != nil {
		return nil, nil, err
	}
	return from, func() { _ = from.Close() }, nil // never fails
}

// These environment variables are used for flags that are not set.
const (
	envCA   = "SHEAF_CA"
	envCert = "SHEAF_CERT"
	envKey  = "SHEAF_KEY"

	envToken = "SHEAF_TOKEN_FILE"
)

// TLS holds the TLS settings for connections to a server. If none is set, the connection is plaintext.
type TLS struct {
	files client.TLSFiles
	token string // name of a file with a token
}

// Add adds the flags.
func (t *TLS) Add(flags *pflag.FlagSet) {
	flags.StringVar(&t.files.CA, "ca", "", "authorities of the store, in PEM: speak TLS with the server (or $"+envCA+")")
	flags.StringVar(&t.files.Cert, "cert", "", "certificate to show to the server, in PEM (or $"+envCert+")")
	flags.StringVar(&t.files.Key, "key", "", "its key (or $"+envKey+")")
	flags.StringVar(&t.token, "token-file", "",
		"file with a token that says who calls, in place of a certificate; read again when it changes (or $"+envToken+")")
}

// credentials reads the files. The result perCall is nil if there is no token.
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
