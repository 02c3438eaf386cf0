package cli

import (
	"errors"
	"math"
	"net"
	"slices"
	"sync/atomic"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"

	"sheaf.dev/sheaf/client"
	"sheaf.dev/sheaf/client/call/liveness"
	"sheaf.dev/sheaf/client/recordv1"
)

// dataBytesMax is the maximum size for Put and Get; larger data use Upload and Download.
const dataBytesMax = 1 << 20

// listBytesMax is the maximum size of one list of all groups or shards.
const listBytesMax = 16 << 20

// forever is longer than any call, and does not overflow when it is added to a time.
const forever time.Duration = math.MaxInt64 / 2

var reconnects = backoff.Config{BaseDelay: 50 * time.Millisecond, Multiplier: 1.6, Jitter: 0.2,
	MaxDelay: 2 * time.Second}

// Conn talks to a gateway (or a shard). It uses the public client for records, and adds the calls that only
// administrators make.
type Conn struct {
	*client.Client
	Admin  recordv1.AdminServiceClient
	Access recordv1.AccessServiceClient
	Server string

	admin *grpc.ClientConn
	waits atomic.Pointer[waits] // nil: no notes are printed
}

// Dial prepares connections to HOST:PORT. It sends nothing yet. If no server listens there, calls fail immediately,
// because the person who typed the command wants to know now. If a server has answered before and is then unavailable,
// calls wait for it. callTimeout bounds each call with one answer whose context has no deadline, and the time for which
// streams try to resume. With 0 there is no bound.
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
	// With the passthrough resolver, the attempt to connect looks the name up, and the error of the attempt describes a
	// problem with the name.
	admin, err := grpc.NewClient("passthrough:///"+server, append(own,
		grpc.WithNoProxy(), grpc.WithTransportCredentials(creds),
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(listBytesMax)),
		// The address of a Service may lead to a gateway on a failed node. The next attempt is likely to reach another
		// gateway.
		grpc.WithContextDialer(liveness.Dial),
		// Commands that poll continue while the server restarts. They must notice soon that the server is back.
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
