package cli

import (
	"context"
	"crypto/rand"
	"fmt"
	"hash/crc32"
	"net"
	"sync/atomic"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"

	recordv1 "sheaf.dev/sheaf/api/sheaf/record/v1"
	"sheaf.dev/sheaf/internal/routing"
)

// Sizes in bytes that the contract of the API sets.
const (
	dataBytesMax  = 1 << 20 // of Put and Get; above that Upload and Download
	chunkBytes    = 1 << 20
	messageBytes  = 16 << 20 // of one answer: a record, its attributes and the framing are far below
	requestIDSize = 16
)

var reconnects = backoff.Config{BaseDelay: 50 * time.Millisecond, Multiplier: 1.6, Jitter: 0.2, MaxDelay: 2 * time.Second}

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// Conn is a connection to a gateway (or a shard).
type Conn struct {
	grpc    *grpc.ClientConn
	Records recordv1.RecordServiceClient
	Routing recordv1.RoutingServiceClient
	Admin   recordv1.AdminServiceClient
	Server  string
	// CallTimeout bounds each call with one answer (also where it is repeated) whose context has no deadline; 0: not at
	// all.
	CallTimeout time.Duration

	waits atomic.Pointer[waits] // nil: nobody wants to know
}

// Dial prepares a connection to HOST:PORT; nothing is sent yet.
func Dial(server string) (*Conn, error) {
	if _, port, err := net.SplitHostPort(server); err != nil || port == "" {
		return nil, Usagef("--server %q: must be HOST:PORT, as 127.0.0.1:7600", server)
	}
	c := &Conn{Server: server}
	// Passthrough: the name is looked up by the attempt to connect, which says what is wrong with it.
	cc, err := grpc.NewClient("passthrough:///"+server,
		grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(messageBytes)),
		grpc.WithUserAgent("sheaf-cli"),
		// An import goes on over a restart of the server: it must notice soon that it is back.
		grpc.WithConnectParams(grpc.ConnectParams{Backoff: reconnects, MinConnectTimeout: 5 * time.Second}),
		grpc.WithChainUnaryInterceptor(c.unaryWaits), grpc.WithChainStreamInterceptor(c.streamWaits),
	)
	if err != nil {
		return nil, Usagef("--server %q: %w", server, err)
	}
	c.grpc = cc
	c.Records, c.Routing, c.Admin = recordv1.NewRecordServiceClient(cc), recordv1.NewRoutingServiceClient(cc), recordv1.NewAdminServiceClient(cc)
	return c, nil
}

// bounded gives a context without a deadline that of one call.
func (c *Conn) bounded(ctx context.Context) (context.Context, context.CancelFunc) {
	if _, ok := ctx.Deadline(); ok || c.CallTimeout == 0 {
		return ctx, func() {}
	}
	return context.WithTimeout(ctx, c.CallTimeout)
}

// Close ends the connection.
func (c *Conn) Close() error { return c.grpc.Close() }

// NewRequestID makes a request id: 16 random bytes.
func NewRequestID() []byte {
	id := make([]byte, requestIDSize)
	_, _ = rand.Read(id) // never fails, see its documentation
	return id
}

// Retry calls do until it succeeds, fails for good, or the time is up. do must be safe to repeat: a read, or a write
// with a request id. Once the outcome of a write was unknown it stays so, whatever a later attempt was refused for before its request id was
// looked up.
func Retry(ctx context.Context, patience time.Duration, do func() error) error {
	const first, most = 20 * time.Millisecond, time.Second
	wait, deadline := first, time.Now().Add(patience)
	if until, ok := ctx.Deadline(); ok && until.Before(deadline) {
		deadline = until
	}
	var doubt, last error
	for {
		err := do()
		v := routing.Judge(status.Convert(err), true)
		switch {
		case err == nil || v.EndsDoubt:
			return err
		case v.Reason == routing.ReasonOutcomeUnknown:
			doubt = err
		case doubt != nil:
			err = fmt.Errorf("%w; tried again: %v", doubt, err) //nolint:errorlint // the later failure says nothing of the write
		}
		if code := status.Code(err); last != nil && doubt == nil && ctx.Err() != nil && (code == codes.DeadlineExceeded || code == codes.Canceled) {
			return fmt.Errorf("%w; the answer before was: %v", err, status.Convert(last).Message()) // this attempt was cut, and says less
		}
		// A try in the little time that is left would be cut, and tell nothing.
		if !Retryable(err) || time.Now().Add(2*wait).After(deadline) {
			return err
		}
		last = err
		select {
		case <-ctx.Done():
			return fmt.Errorf("%w (stopped waiting: %w)", err, context.Cause(ctx))
		case <-time.After(wait):
		}
		wait = min(2*wait, most)
	}
}

// retry calls do again while the server says that it may be (loading, no leader, overloaded). A server that nobody can
// reach is not waited for: the person who typed the command wants to know now.
func (c *Conn) retry(ctx context.Context, do func() error) error {
	var unreachable error
	err := Retry(ctx, patience, func() error {
		err := do()
		if err != nil && Reason(err) == "" {
			unreachable = err
			return nil
		}
		return err
	})
	if unreachable != nil {
		return unreachable
	}
	return err
}

// Mode asks the gateway how ids find their group. A connection that breaks off under the question, as when the gateway is
// restarted, is no answer yet: it is asked again, a few times.
func (c *Conn) Mode(ctx context.Context) (mode recordv1.RoutingMode, err error) {
	const attempts = 3
	for range attempts {
		if mode, err = c.mode(ctx); status.Code(err) != codes.Unavailable || ctx.Err() != nil {
			break
		}
	}
	if err != nil {
		return 0, fmt.Errorf("asking for the routing: %w", err)
	}
	return mode, nil
}

func (c *Conn) mode(ctx context.Context) (recordv1.RoutingMode, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	stream, err := c.Routing.WatchRouting(ctx, &recordv1.WatchRoutingRequest{})
	if err != nil {
		return 0, err
	}
	table, err := stream.Recv()
	if err != nil {
		return 0, err
	}
	return table.GetMode(), nil
}
