package bench

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"sync/atomic"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"

	"sheaf.dev/sheaf/bench/drive"
	"sheaf.dev/sheaf/bench/result"
	"sheaf.dev/sheaf/bench/rounds"
	"sheaf.dev/sheaf/client"
	"sheaf.dev/sheaf/client/recordv1"
	"sheaf.dev/sheaf/internal/local/dev"
)

// RPCOptions are the options of RPC.
type RPCOptions struct {
	Options
	Time    time.Duration // duration of each measurement
	Records int           // number of records that are read
	Sizes   []int         // bytes of data in a record
	Callers []int
	TLS     bool // use TLS on all connections, including those to the servers that Sheaf is compared with
}

// rpcBench is one run of the RPC benchmark. It uses a store with one shard, an echo server, and a hop that forwards
// calls to the echo server.
type rpcBench struct {
	outcome
	opts    RPCOptions
	direct  *grpc.ClientConn // connection to the shard
	gateway *grpc.ClientConn
	echo    *grpc.ClientConn
	hop     *grpc.ClientConn // connection to a server that forwards raw bytes to the echo server
	bare    *grpc.ClientConn // connection to a server that responds to record API messages without storing anything
	client  *client.Client   // calls the shard directly
	stop    []func()
}

var rpcParts = parts[rpcBench]{{"calls", (*rpcBench).calls}}

// RPC measures unary and batch calls over loopback, and compares them with plain gRPC calls between the same
// processes.
func RPC(ctx context.Context, opts RPCOptions) (*result.Report, error) {
	b := &rpcBench{opts: opts, outcome: outcome{Options: opts.Options}}
	return rpcParts.measure(ctx, b, &b.outcome, "rpc")
}

func (b *rpcBench) calls(ctx context.Context) error {
	defer b.close()
	if err := b.start(ctx); err != nil {
		return err
	}
	for _, size := range b.opts.Sizes {
		for _, callers := range b.opts.Callers {
			if err := b.unary(ctx, size, callers); err != nil {
				return err
			}
		}
		if err := b.compareBatches(ctx, size); err != nil {
			return err
		}
	}
	return nil
}

func (b *rpcBench) start(ctx context.Context) error {
	d, err := dev.Start(ctx, dev.Config{Dir: b.dir, Shards: 1, Listen: "127.0.0.1:0", TLS: b.opts.TLS})
	if err != nil {
		return fmt.Errorf("starting a store: %w", err)
	}
	b.stop = append(b.stop, d.Kill)
	if err := d.WaitReady(ctx, nil); err != nil {
		return fmt.Errorf("starting a store: %w", err)
	}
	by, ours := plainLink(), insecure.NewCredentials()
	if b.opts.TLS {
		if by, err = tlsLink(); err != nil {
			return err
		}
		if ours, err = client.TLS(d.CallerFiles()); err != nil {
			return err
		}
	}
	echo, stopEcho, err := serveEcho(ctx, by)
	if err != nil {
		return err
	}
	b.stop = append(b.stop, stopEcho)
	hop, stopHop, err := serveHop(ctx, by, echo)
	if err != nil {
		return err
	}
	b.stop = append(b.stop, stopHop)
	bare, stopBare, err := serveBare(ctx, by)
	if err != nil {
		return err
	}
	b.stop = append(b.stop, stopBare)
	for _, c := range []struct {
		conn    **grpc.ClientConn
		address string
		creds   credentials.TransportCredentials
	}{{&b.direct, d.Status().Shards[0].GetShard().GetAddress(), ours}, {&b.gateway, d.Addr(), ours},
		{&b.echo, echo, by.client}, {&b.hop, hop, by.client}, {&b.bare, bare, by.client}} {
		cc, err := grpc.NewClient(c.address, grpc.WithTransportCredentials(c.creds))
		if err != nil {
			return fmt.Errorf("connecting to %s: %w", c.address, err)
		}
		b.stop = append(b.stop, func() { _ = cc.Close() })
		*c.conn = cc
	}
	if b.client, err = client.Dial(ctx, client.Config{Addresses: []string{d.Addr()}, Direct: true,
		Credentials: ours}); err != nil {
		return err
	}
	b.stop = append(b.stop, func() { _ = b.client.Close() })
	return nil
}

func (b *rpcBench) close() {
	for i := len(b.stop) - 1; i >= 0; i-- {
		b.stop[i]()
	}
}

// firstID returns the first id of the records with the given size. Each size has its own range of ids.
func firstID(size int) int64 { return int64(size) << 32 }

// fill stores, in batches, the records that are read later.
func (b *rpcBench) fill(ctx context.Context, size int) error {
	const batch = 100
	var next atomic.Int64
	return drive.Parallel(8, func(int) error {
		stream, err := recordv1.NewRecordServiceClient(b.direct).BatchPut(ctx)
		if err != nil {
			return err
		}
		for {
			from := next.Add(batch) - batch
			if from >= int64(b.opts.Records) {
				return stream.CloseSend()
			}
			if err := exchange(stream, putBatch(firstID(size)+from, batch, randomBytes(size))); err != nil {
				return fmt.Errorf("filling: %w", err)
			}
		}
	})
}

func putBatch(id int64, n int, data []byte) *recordv1.BatchPutRequest {
	request := &recordv1.BatchPutRequest{Puts: make([]*recordv1.PutRequest, n)}
	for i := range request.Puts {
		request.Puts[i] = &recordv1.PutRequest{Key: &recordv1.RecordKey{Id: id + int64(i)}, Data: data}
	}
	return request
}

func exchange(stream grpc.BidiStreamingClient[recordv1.BatchPutRequest, recordv1.BatchPutResponse],
	request *recordv1.BatchPutRequest) error {
	if err := stream.Send(request); err != nil && !errors.Is(err, io.EOF) {
		return err
	}
	response, err := stream.Recv()
	if err != nil {
		return err
	}
	for _, result := range response.GetResults() {
		if s := result.GetStatus(); s.GetCode() != 0 {
			return fmt.Errorf("record: %s", s.GetMessage())
		}
	}
	return nil
}

// id returns the id of a record with the given size. Consecutive values of i give ids that are scattered over all
// filled records.
func (b *rpcBench) id(size int, i int64) int64 {
	return firstID(size) + drive.Scatter(i)%int64(b.opts.Records)
}

// figure is a function that takes one measurement.
type figure func() (float64, error)

// unaryGet measures reads of one record per call.
func (b *rpcBench) unaryGet(ctx context.Context, cc *grpc.ClientConn, size, callers int) figure {
	records := recordv1.NewRecordServiceClient(cc)
	return func() (float64, error) {
		return b.drive(callers, func(_ int, i int64) error {
			r, err := records.Get(ctx, &recordv1.GetRequest{Key: &recordv1.RecordKey{Id: b.id(size, i)}})
			if err == nil && len(r.GetRecord().GetData()) != size {
				return fmt.Errorf("a record has %d bytes, not %d", len(r.GetRecord().GetData()), size)
			}
			return err
		})
	}
}

// unaryPut measures writes of one record per call.
func (b *rpcBench) unaryPut(ctx context.Context, cc *grpc.ClientConn, size, callers int) figure {
	records, payload := recordv1.NewRecordServiceClient(cc), randomBytes(size)
	return func() (float64, error) {
		return b.drive(callers, func(_ int, i int64) error {
			_, err := records.Put(ctx, &recordv1.PutRequest{Key: &recordv1.RecordKey{Id: b.id(size, i)}, Data: payload})
			return err
		})
	}
}

// echoes measures calls that send bytes and receive them back.
func (b *rpcBench) echoes(ctx context.Context, cc *grpc.ClientConn, size, callers int) figure {
	payload := randomBytes(size)
	return func() (float64, error) {
		return b.drive(callers, func(int, int64) error {
			var answer []byte
			return cc.Invoke(ctx, echoMethod, &payload, &answer, grpc.ForceCodec(rawCodec{}))
		})
	}
}

// clientGet measures reads of one record per call by the Go client. The client finds the shard itself and checks the
// data.
func (b *rpcBench) clientGet(ctx context.Context, size, callers int) figure {
	return func() (float64, error) {
		return b.drive(callers, func(_ int, i int64) error {
			_, err := b.client.Get(ctx, client.Key{ID: b.id(size, i)}, nil)
			return err
		})
	}
}

// unary compares Get and Put with the echo, directly and through the gateway.
func (b *rpcBench) unary(ctx context.Context, size, callers int) error {
	if err := b.fill(ctx, size); err != nil {
		return err
	}
	b.Say("unary calls of %d bytes, %d callers", size, callers)
	got, err := b.takeTurns(ctx,
		rounds.One("echo", b.echoes(ctx, b.echo, size, callers)),
		rounds.One("get direct", b.unaryGet(ctx, b.direct, size, callers)),
		rounds.One("hop", b.echoes(ctx, b.hop, size, callers)),
		rounds.One("get gateway", b.unaryGet(ctx, b.gateway, size, callers)),
		rounds.One("put direct", b.unaryPut(ctx, b.direct, size, callers)),
		rounds.One("put gateway", b.unaryPut(ctx, b.gateway, size, callers)),
		rounds.One("bare get", b.unaryGet(ctx, b.bare, size, callers)),
		rounds.One("get client", b.clientGet(ctx, size, callers)),
	)
	if err != nil {
		return err
	}
	name := func(what string) string { return fmt.Sprintf("%s, %d B, %d callers", what, size, callers) }
	putTarget := 0.0
	if callers >= 64 {
		putTarget = 0.4
	}
	b.add(
		got.against(name("unary Get direct / bare echo"), "/s", "get direct", "echo", 0.85),
		got.against(name("unary Get by gateway / two-hop raw echo"), "/s", "get gateway", "hop", 0.85),
		got.against(name("durable unary Put direct / bare echo"), "/s", "put direct", "echo", putTarget),
		got.against(name("durable unary Put by gateway / two-hop raw echo"), "/s", "put gateway", "hop", 0),
		got.against(name("unary Get direct / same messages, nothing stored"), "/s", "get direct", "bare get", 0).
			WithNote("the limit answers the same GetRequest with the same GetResponse from memory"),
		got.against(name("unary Get by the Go client, direct / bare echo"), "/s", "get client", "echo", 0).
			WithNote("the client also routes, watches deadlines and checks CRC32C"),
	)
	return nil
}

// drive makes calls from n goroutines for opts.Time and returns calls per second. Each call receives a unique number i.
func (b *rpcBench) drive(n int, call func(caller int, i int64) error) (float64, error) {
	did, err := drive.Callers(n, b.opts.Time, call)
	return did.PerSecond, err
}

func randomBytes(n int) []byte {
	b := make([]byte, n)
	_, _ = rand.Read(b) // an error does not matter, because Read is documented never to return one
	return b
}
