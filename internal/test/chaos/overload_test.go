package chaos

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc"
	"google.golang.org/grpc/status"

	"sheaf.dev/sheaf/client"
	"sheaf.dev/sheaf/client/call/routing"
	"sheaf.dev/sheaf/client/recordv1"
)

// bursts are the callers of an overload, grouped by the size of their puts. Together, the large puts exceed the 16
// MiB that one group accepts at a time (see memoryOfShard). The small puts then use up the remaining memory, so that
// the server also refuses calls from the workers.
var bursts = []struct{ callers, bytes int }{{40, 512 << 10}, {110, 8 << 10}, {130, 500}}

const (
	// burstStoredMax limits the bytes that a burst stores. A gateway gives each put a request id, and compaction keeps
	// every put with a request id. So the data of a burst remains on three disks for ten minutes.
	burstStoredMax = 32 << 20
	burstRefusals  = 20              // a burst must cause at least this many refusals
	burstLasts     = 7 * time.Second // the burst continues for this time, which is longer than workers retry most calls

	overloadedRate = "1M"         // bytes per second; so slow that the groups on the disk are easy to overload
	overloaded     = "OVERLOADED" // the reason that a refusal gives
)

// burst is a set of callers that put to one group through the gateways, as fast as their puts are answered.
type burst struct {
	taken, bytes, refused, failed atomic.Int64 // bytes counts the data of the accepted puts
	numbers                       atomic.Int64 // numbers of the puts, used as their timestamps
	cancel                        context.CancelFunc
	wait                          sync.WaitGroup
	conns                         []*grpc.ClientConn

	mu   sync.Mutex
	told map[int64][]int64 // for each record, the puts that were refused as OVERLOADED
}

// newBurst begins a burst. Its records have negative ids, which no worker uses.
func (n *nemesis) newBurst(group int) (*burst, error) {
	b := &burst{told: map[int64][]int64{}}
	for _, g := range n.gateways {
		conn, err := grpc.NewClient(g.machine.address+":7600", n.dialOptions()...)
		if err != nil {
			return nil, err
		}
		b.conns = append(b.conns, conn)
	}
	hash := routing.Routing{Mode: routing.Hash, Groups: n.cfg.groups}
	var ctx context.Context
	ctx, b.cancel = context.WithCancel(context.Background())
	id := int64(0)
	for _, of := range bursts {
		data := make([]byte, of.bytes)
		for i := range of.callers {
			for id--; hash.GroupOf(id) != group; id-- { // a record for each caller
			}
			of := id
			b.wait.Go(func() { b.put(ctx, recordv1.NewRecordServiceClient(b.conns[i%len(b.conns)]), of, data) })
		}
	}
	return b, nil
}

// put makes one put after another until the burst ends. After a put was refused, it pauses briefly.
func (b *burst) put(ctx context.Context, to recordv1.RecordServiceClient, id int64, data []byte) {
	for ctx.Err() == nil && b.bytes.Load() < burstStoredMax {
		number := b.numbers.Add(1)
		call, cancel := context.WithTimeout(ctx, 5*time.Second)
		_, err := to.Put(call, &recordv1.PutRequest{Key: &recordv1.RecordKey{Id: id}, Data: data, TimestampUnixNs: &number})
		cancel()
		switch {
		case err == nil:
			b.taken.Add(1)
			b.bytes.Add(int64(len(data)))
		case reasonOf(err) == overloaded:
			b.refused.Add(1)
			b.mu.Lock()
			b.told[id] = append(b.told[id], number)
			b.mu.Unlock()
			time.Sleep(20 * time.Millisecond)
		default:
			b.failed.Add(1)
			time.Sleep(50 * time.Millisecond)
		}
	}
}

// checkRefusedPuts records a violation if the store holds data of a put that was refused as OVERLOADED.
func (n *nemesis) checkRefusedPuts(b *burst) error {
	for id, told := range b.told {
		ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
		for r, err := range n.load.clients[0].Versions(ctx, client.Key{ID: id}) {
			if err != nil && !errors.Is(err, client.ErrNotFound) {
				cancel()
				return fmt.Errorf("versions of record %d of the burst: %w", id, err)
			}
			if number := r.Timestamp.UnixNano(); err == nil && slices.Contains(told, number) {
				n.load.history.violate("put %d of record %d was refused as OVERLOADED, and is version %s", number, id, r.Version)
			}
		}
		cancel()
	}
	return nil
}

func reasonOf(err error) string {
	for _, detail := range status.Convert(err).Details() {
		if info, ok := detail.(*errdetails.ErrorInfo); ok {
			return info.GetReason()
		}
	}
	return ""
}

// endBurst stops a burst, and checks the responses that its callers received.
func (n *nemesis) endBurst(b *burst) error {
	if err := b.end(); err != nil {
		return err
	}
	return n.checkRefusedPuts(b)
}

// end waits until all callers have finished.
func (b *burst) end() error {
	b.cancel()
	b.wait.Wait()
	var errs []error
	for _, c := range b.conns {
		errs = append(errs, c.Close())
	}
	return errors.Join(errs...)
}

// overload sends more calls to a group than its leader's slow disk can handle, and stops a gateway while they wait. The
// calls that the stopped gateway had accepted are retried through another gateway, and are refused there.
func (n *nemesis) overload(victim *server) (words string, err error) {
	disk := victim.machine.slow
	defer disk.set("off")
	before := n.load.failed.count(overloaded)
	b, group, err := n.flood(victim, func() { disk.set(overloadedRate) })
	if err != nil {
		return "", err
	}
	defer func() { err = errors.Join(err, n.endBurst(b)) }()
	gateway := anyGateway(n)
	stopped, err := hold(gateway.process, burstLasts, func() error { return nil })
	if err != nil {
		return "", err
	}
	disk.set("off")
	return fmt.Sprintf("%v; %s was stopped for %.1f s; %d of the workers' calls ended with that", b.words(group),
		gateway.name, stopped.Seconds(),
		n.load.failed.count(overloaded)-before), await(gateway.name, time.Minute, gateway.ready)
}

// overloadAndKill sends more calls to a group than it accepts, and kills its leader while they wait, so that the
// retries of all callers reach the next leader.
func (n *nemesis) overloadAndKill(victim *server) (words string, err error) {
	before := n.load.failed.count(overloaded)
	b, group, err := n.flood(victim, func() {})
	if err != nil {
		return "", err
	}
	defer func() { err = errors.Join(err, n.endBurst(b)) }()
	killed, err := n.kill(victim)
	if err != nil {
		return "", err
	}
	return fmt.Sprintf("%v; %d of the workers' calls ended with that; %s", b.words(group),
		n.load.failed.count(overloaded)-before, killed), nil
}

// flood starts a burst on a group that a shard leads, and waits until calls are refused.
func (n *nemesis) flood(victim *server, begin func()) (b *burst, group int, err error) {
	groups, err := n.awaitLeading(victim)
	if err != nil {
		return nil, 0, err
	}
	if group, err = strconv.Atoi(groups[n.random.IntN(len(groups))]); err != nil {
		return nil, 0, err
	}
	begin()
	if b, err = n.newBurst(group); err != nil {
		return nil, 0, err
	}
	if err := await("the group is overloaded", time.Minute, func() error {
		if b.refused.Load() < burstRefusals {
			return errors.New(b.words(group))
		}
		return nil
	}); err != nil {
		return nil, 0, errors.Join(err, b.end())
	}
	return b, group, nil
}

func (b *burst) words(group int) string {
	return fmt.Sprintf("group %d: %d puts of %d MiB were taken, %d refused as too many, %d failed", group, b.taken.Load(),
		b.bytes.Load()>>20,
		b.refused.Load(), b.failed.Load())
}

// count returns the number of calls that failed with one kind of error.
func (f *failures) count(what string) (count int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, one := range f.all {
		if one.what == what {
			count++
		}
	}
	return count
}
