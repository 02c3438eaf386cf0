package shard

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"io"
	"math/rand/v2"
	"strconv"
	"strings"
	"sync"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"sheaf.dev/sheaf/client/call/reason"
	"sheaf.dev/sheaf/client/recordv1"
	"sheaf.dev/sheaf/internal/placement"
	"sheaf.dev/sheaf/internal/storage/group/format"
	"sheaf.dev/sheaf/internal/storage/vfs"
)

// written is a put or a delete of one record.
type written struct {
	bytes int // size of the data; negative if this is a delete
	acked bool
}

// absent is used as the number of a write if the record has no data, because nothing was written or because it was
// deleted.
const absent = -1

// record contains the writes to one record, in the order in which its only writer began them. A write whose outcome
// is unknown may have been applied at any time. Of all other writes, only the last one matters.
type record struct {
	id     int64
	writes []written
}

// mayBe reports whether the record may have the data of its n-th write. If n is the constant absent, it reports
// whether the record may have no data at all.
func (r *record) mayBe(n int) bool {
	last := -1
	for i, w := range r.writes {
		if w.acked {
			last = i
		}
	}
	if n == absent {
		if last < 0 || r.writes[last].bytes < 0 {
			return true
		}
		for _, w := range r.writes {
			if !w.acked && w.bytes < 0 {
				return true
			}
		}
		return false
	}
	return n >= 0 && n < len(r.writes) && r.writes[n].bytes >= 0 && (n == last || !r.writes[n].acked)
}

const tags = 100_000 // maximum number of writes to one record

func (r *record) content(n int) []byte {
	return data(r.id*tags+int64(n), r.writes[n].bytes)[:r.writes[n].bytes]
}

// which returns the number of the write that wrote this data. If there is no such write, it returns the constant
// absent.
func (r *record) which(b []byte) int {
	tag, _, _ := bytes.Cut(b, []byte("/"))
	n, err := strconv.ParseInt(string(tag), 10, 64)
	n -= r.id * tags
	if err != nil || n < 0 || n >= int64(len(r.writes)) || r.writes[n].bytes < 0 || !bytes.Equal(b, r.content(int(n))) {
		return absent
	}
	return int(n)
}

// person is a client. Some records are written only by this client. It makes one call at a time, and repeats each
// call until it gets a response or gives up.
type person struct {
	x       *exploration
	random  *rand.Rand
	records []*record
	calls   int
}

// patienceOfCall is the time limit for one attempt of a call. If the group has a leader, a call needs much less.
const patienceOfCall = 5 * time.Second

func (p *person) live(ctx context.Context) {
	for ctx.Err() == nil {
		r := p.records[p.random.IntN(len(p.records))]
		switch dice := p.random.IntN(100); {
		case dice < 55:
			p.put(r, 20+p.random.IntN(3000))
		case dice < 65:
			p.delete(r)
		case dice < 75:
			p.upload(r, format.DataBytesMax+1+p.random.IntN(5000))
		default:
			p.read(r)
		}
		p.calls++
		time.Sleep(time.Duration(p.random.IntN(300)) * time.Millisecond) // hardly any virtual time would pass otherwise
	}
}

// tries makes a call for a record, and repeats it until it gets a response. It reports whether the call succeeded.
func (p *person) tries(r *record, do func(ctx context.Context, c recordv1.RecordServiceClient) error) bool {
	name := placement.GroupName(p.x.routing.GroupOf(r.id))
	err := p.x.atLeader(name, p.random.IntN, do)
	if err != nil {
		p.x.violate(oracleOf(err), "record %d of group %s: %v", r.id, name, err)
	}
	return err == nil
}

// oracleOf returns the oracle that an error violates if it persists.
func oracleOf(err error) oracle {
	if status.Code(err) == codes.DataLoss {
		return oracleDamage
	}
	return oracleStuck
}

// atLeader makes a call to the shard that leads a group according to etcd. In every third attempt, or if etcd names
// no leader, it calls a random shard. It repeats the call until it gets a response or the time given by patience has
// passed. An error that reports damage also counts as a response.
func (x *exploration) atLeader(name string, choose func(n int) int,
	do func(ctx context.Context, c recordv1.RecordServiceClient) error) (err error) {
	for began, try := time.Now(), 0; time.Since(began) < x.patience; try++ {
		m := x.machines[choose(len(x.machines))]
		if leader := x.machineOf(x.registry.now().Groups[name].Leader); leader != nil && try%3 < 2 {
			m = leader
		}
		_, client := m.running()
		if client == nil {
			time.Sleep(2 * time.Millisecond)
			continue
		}
		ctx, cancel := context.WithTimeout(context.Background(), patienceOfCall)
		err = do(ctx, client)
		cancel()
		switch status.Code(err) {
		case codes.OK, codes.DataLoss:
			return err
		case codes.Internal, codes.InvalidArgument, codes.Unimplemented:
			if strings.Contains(status.Convert(err).Message(), vfs.ErrCrashed.Error()) {
				break // a process whose disk is dead still responds for a moment, which a machine that has died would not do
			}
			x.violate(oracleAnswers, "group %s at %s: %v", name, m.name, err)
			return err
		}
		time.Sleep(time.Duration(1+choose(10)) * time.Millisecond)
	}
	return err
}

// begin records a write before the request is sent.
func (r *record) begin(bytes int) int {
	r.writes = append(r.writes, written{bytes: bytes})
	return len(r.writes) - 1
}

// request returns the request id for a write.
func (r *record) request(n int) []byte {
	id := make([]byte, 16)
	binary.LittleEndian.PutUint64(id, uint64(r.id)+1)
	binary.LittleEndian.PutUint64(id[8:], uint64(n)+1)
	return id
}

func (p *person) put(r *record, bytes int) {
	n := r.begin(bytes)
	in := &recordv1.PutRequest{Key: p.x.key(r.id), Data: r.content(n), RequestId: r.request(n)}
	r.writes[n].acked = p.tries(r, func(ctx context.Context, c recordv1.RecordServiceClient) error {
		_, err := c.Put(ctx, in)
		return err
	})
}

func (p *person) delete(r *record) {
	n := r.begin(-1)
	in := &recordv1.DeleteRequest{Key: p.x.key(r.id), RequestId: r.request(n)}
	r.writes[n].acked = p.tries(r, func(ctx context.Context, c recordv1.RecordServiceClient) error {
		_, err := c.Delete(ctx, in)
		return err
	})
}

// upload writes a blob. It often cuts the connection, either during the upload or after everything was sent. It
// retries some of these uploads.
func (p *person) upload(r *record, bytes int) {
	n := r.begin(bytes)
	content := r.content(n)
	cutAt, repeat := p.random.IntN(8), p.random.IntN(3) > 0
	for once := true; once || repeat; once = false {
		cut := once && cutAt < 5
		ok := p.tries(r, func(ctx context.Context, c recordv1.RecordServiceClient) error {
			ctx, cancel := context.WithCancel(ctx)
			defer cancel()
			stream, err := c.Upload(ctx)
			if err != nil {
				return err
			}
			_ = stream.Send(&recordv1.UploadRequest{Part: &recordv1.UploadRequest_Header{
				Header: &recordv1.UploadHeader{Key: p.x.key(r.id), RequestId: r.request(n)},
			}})
			half := len(content) / 2
			for i, part := range [][]byte{content[:half], content[half:]} {
				if cut && i == cutAt {
					p.x.fire("upload cut in the middle")
					return nil
				}
				_ = stream.Send(&recordv1.UploadRequest{Part: &recordv1.UploadRequest_Chunk{Chunk: part}})
			}
			if cut {
				_ = stream.CloseSend()
				p.disconnectSoon(stream, cancel)
				return nil
			}
			_, err = stream.CloseAndRecv()
			return err
		})
		if ok && !cut {
			r.writes[n].acked = true
			return
		}
		if !ok {
			return
		}
		p.read(r)
	}
}

// disconnectSoon cuts the connection of an upload after everything was sent, while the shard is still processing it.
func (p *person) disconnectSoon(stream recordv1.RecordService_UploadClient, cancel func()) {
	timer := time.AfterFunc(time.Duration(p.random.IntN(30_000))*time.Microsecond, cancel)
	defer timer.Stop()
	if err := stream.RecvMsg(&recordv1.UploadResponse{}); status.Code(err) == codes.Canceled {
		p.x.fire("upload cut behind its end")
	}
}

// read reads a record from the leader.
func (p *person) read(r *record) {
	var got []byte
	var found bool
	if !p.tries(r, func(ctx context.Context, c recordv1.RecordServiceClient) (err error) {
		got, found, err = download(ctx, c, p.x.key(r.id))
		return err
	}) {
		return
	}
	p.x.judgeRecord("a read", r, got, found)
}

// download returns the data of a record. The result found is false if the record has no data.
func download(ctx context.Context, c recordv1.RecordServiceClient, key *recordv1.RecordKey) (got []byte, found bool,
	err error) {
	stream, err := c.Download(ctx, &recordv1.DownloadRequest{Key: key})
	if err != nil {
		return nil, false, err
	}
	for {
		out, err := stream.Recv()
		switch {
		case errors.Is(err, io.EOF):
			return got, true, nil
		case reasonOf(err) == reason.RecordNotFound:
			return nil, false, nil
		case err != nil:
			return nil, false, err
		}
		got = append(got, out.GetChunk().GetData()...)
	}
}

// judgeRecord checks whether the data that was read can result from the writes to the record.
func (x *exploration) judgeRecord(who string, r *record, got []byte, found bool) {
	n := absent
	if found {
		if n = r.which(got); n == absent {
			x.violate(oracleInvented, "%s of record %d gave %d bytes that nobody wrote: %.60q", who, r.id, len(got), got)
			return
		}
	}
	if !r.mayBe(n) {
		x.violate(oracleKept, "%s of record %d gave its write %d of %d: %+v", who, r.id, n, len(r.writes),
			r.writes[max(0, len(r.writes)-5):])
	}
}

// people is the set of all clients.
type people struct {
	all  []*person
	wait sync.WaitGroup
	quit context.CancelFunc
}

func (x *exploration) newPeople(n, records int) *people {
	ps := &people{}
	ctx, cancel := context.WithCancel(context.Background())
	ps.quit = cancel
	for i := range n {
		p := &person{x: x, random: rand.New(rand.NewPCG(x.seed, uint64(100+i)))}
		for j := range records {
			r := &record{id: int64(i*records + j)}
			p.records, x.records[r.id] = append(p.records, r), r
		}
		ps.all = append(ps.all, p)
		ps.wait.Go(func() { p.live(ctx) })
	}
	if x.deleter != nil {
		ps.wait.Go(func() { x.deleter.work(ctx) })
	}
	return ps
}
