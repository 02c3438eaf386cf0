package shard

import (
	"bytes"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"

	"google.golang.org/grpc/mem"

	"sheaf.dev/sheaf/client/call/message"
	"sheaf.dev/sheaf/client/recordv1"
)

// scribbling is a buffer pool that overwrites each buffer that is returned to it. Therefore a test in this package
// fails if a shard returns a message's buffer, but then still uses bytes of the message, such as the data of a put.
type scribbling struct {
	mem.BufferPool
	given atomic.Int64 // number of returned buffers
}

// Put implements mem.BufferPool.
func (s *scribbling) Put(b *[]byte) {
	whole := (*b)[:cap(*b)]
	for n := copy(whole, "given back "); n > 0 && n < len(whole); n *= 2 {
		copy(whole[n:], whole[:n])
	}
	s.given.Add(1)
	s.BufferPool.Put(b)
}

var pool = &scribbling{BufferPool: message.Pool}

func init() { message.Pool = pool } // runs before all tests

// The shard does not copy the data of a put out of its message. It releases the message's buffer as soon as the group
// has copied the data.
func TestDataOfPutsAreStoredAsTheyCame(t *testing.T) {
	t.Parallel()
	inBubble(t, func(t *bubble) {
		f := start(t, newRegistry(hash4, "s1"), nil).ready()
		before := pool.given.Load()
		data := func(id int64) []byte {
			return bytes.Repeat([]byte(fmt.Sprintf("%d ", id)), int(100+id*37%9000))
		}
		const callers, batches, records = 4, 5, 40
		var wait sync.WaitGroup
		for c := range int64(callers) {
			wait.Go(func() {
				stream, err := f.records.BatchPut(f.ctx())
				if err != nil {
					t.Error(err)
					return
				}
				for n := range int64(batches) {
					in := &recordv1.BatchPutRequest{}
					for i := range int64(records) {
						id := (c*batches+n)*records + i
						in.Puts = append(in.Puts, &recordv1.PutRequest{Key: key(id), Data: data(id)})
					}
					if err := stream.Send(in); err != nil {
						t.Error(err)
						return
					}
				}
				for range batches {
					if _, err := stream.Recv(); err != nil {
						t.Error(err)
						return
					}
				}
				id := 10_216 - c // so much data (about 50 KB) that a message arrives in several parts
				if _, err := f.records.Put(f.ctx(), &recordv1.PutRequest{Key: key(id), Data: data(id)}); err != nil {
					t.Error(err)
				}
			})
		}
		wait.Wait()
		check := func(id int64) {
			got, err := f.records.Get(f.ctx(), &recordv1.GetRequest{Key: key(id)})
			if err != nil || !bytes.Equal(got.GetRecord().GetData(), data(id)) {
				t.Fatalf("record %d: error %v, data begin with %.30q", id, err, got.GetRecord().GetData())
			}
		}
		for id := range int64(callers * batches * records) {
			check(id)
		}
		for c := range int64(callers) {
			check(10_216 - c)
		}
		if pool.given.Load() == before {
			t.Fatal("no buffer was given back")
		}
	})
}
