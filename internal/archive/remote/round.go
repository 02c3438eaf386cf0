package remote

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"iter"
	"maps"
	"sync"
	"time"

	"github.com/google/uuid"
	"go.etcd.io/raft/v3/raftpb"
	"google.golang.org/protobuf/proto"

	archivev1 "sheaf.dev/sheaf/api/sheaf/archive/v1"
	"sheaf.dev/sheaf/internal/archive/archiver"
	"sheaf.dev/sheaf/internal/storage/group/format"
)

// answer holds one message from a shard, or the error that ended the shard's response.
type answer struct {
	from    *shard
	message *archivev1.FollowResponse
	err     error
}

// Round implements archiver.Source. If a shard does not respond, Round yields its error, and continues without it.
// The next round asks the shard again.
func (s *Source) Round(ctx context.Context, positions map[uuid.UUID]uint64) iter.Seq2[archiver.News, error] {
	return func(yield func(archiver.News, error) bool) {
		addresses, err := s.opts.Shards(ctx)
		var shards []*shard
		if err == nil {
			shards, err = s.connect(addresses)
		}
		if err != nil && !yield(archiver.News{}, fmt.Errorf("the shards of the store are not known: %w", err)) {
			return
		}
		ctx, cancel := context.WithCancel(ctx)
		answers := make(chan answer)
		var asking sync.WaitGroup
		defer asking.Wait()
		defer cancel()
		asking.Go(func() { askAll(ctx, shards, s.header(), s.requests(positions), answers) })
		r := round{source: s, yield: yield, pieces: map[uuid.UUID]*piece{}, why: map[uuid.UUID]news{}}
		for one := range answers {
			if !r.take(&one) {
				return
			}
		}
		r.end()
	}
}

// askAll asks all shards, a few at a time. It sends their responses to the channel answers, and closes the channel
// after the last one.
func askAll(ctx context.Context, shards []*shard, header *archivev1.Header, requests []*archivev1.FollowRequest,
	answers chan<- answer) {
	defer close(answers)
	turns := make(chan struct{}, shardsAtOnce)
	var all sync.WaitGroup
	defer all.Wait()
	for _, sh := range shards {
		select {
		case turns <- struct{}{}:
		case <-ctx.Done():
			return
		}
		all.Go(func() {
			defer func() { <-turns }()
			err := sh.ask(ctx, header, requests, func(m *archivev1.FollowResponse) bool {
				select {
				case answers <- answer{from: sh, message: m}:
					return true
				case <-ctx.Done():
					return false
				}
			})
			if err == nil {
				return
			}
			sh.end() // the rest of the response is not needed
			select {
			case answers <- answer{from: sh, err: err}:
			case <-ctx.Done():
			}
		})
	}
}

// ask asks the shard once, and calls give for each message. If ask returns an error, the caller must end the call of
// Follow.
func (sh *shard) ask(ctx context.Context, header *archivev1.Header, requests []*archivev1.FollowRequest,
	give func(*archivev1.FollowResponse) bool) (err error) {
	if sh.call == nil {
		// The call must outlive the round, because the positions that it has sent serve as holds on the shard's groups
		// only as long as the call lasts.
		lasting, cancel := context.WithCancel(context.WithoutCancel(ctx))
		stream, err := sh.client.Follow(lasting)
		if err != nil {
			cancel()
			return err
		}
		sh.call = &call{stream: stream, cancel: cancel}
	}
	c := sh.call
	keep := context.AfterFunc(ctx, c.cancel)
	defer func() {
		if !keep() && err == nil {
			err = ctx.Err() // the call was cancelled, although the shard has finished its round
		}
	}()
	for _, in := range requests {
		if !c.begun {
			in = &archivev1.FollowRequest{Header: header, Positions: in.GetPositions(), More: in.GetMore(),
				ArchivedThroughUnixNs: in.GetArchivedThroughUnixNs()}
			c.begun = true
		}
		if err := c.stream.Send(in); err != nil {
			if _, err := c.stream.Recv(); err != nil {
				return err // the reason why the shard has ended the call
			}
			return err
		}
	}
	for {
		late := time.AfterFunc(silenceMax, c.cancel)
		m, err := c.stream.Recv()
		if !late.Stop() { // the timer has cancelled the call, even if a response has just arrived
			err = fmt.Errorf("no answer came for %v: %w", silenceMax, cmp.Or(err, context.Canceled))
		}
		switch {
		case errors.Is(err, io.EOF):
			return io.ErrUnexpectedEOF
		case err != nil:
			return err
		case m.GetRoundEnds():
			return nil
		case !give(m):
			return ctx.Err()
		}
	}
}

// round converts the responses of all shards to News.
type round struct {
	source *Source
	yield  func(archiver.News, error) bool
	pieces map[uuid.UUID]*piece // for each group with updates, the shard that sends them
	why    map[uuid.UUID]news   // errors for groups that a shard left out, unless another shard sends their updates
}

// news pairs a News with the error that is yielded with it.
type news struct {
	archiver.News
	err error
}

// piece records which shard sends a group's updates in this round. Only one shard may send them. If the leader changes
// during the round, two shards may send updates of the group at the same time.
type piece struct {
	from  *shard
	ended bool
}

// take processes one answer. It returns false if the caller wants no more News.
func (r *round) take(one *answer) bool {
	if one.err != nil {
		return r.lost(one.from, one.err)
	}
	m := one.message
	id, err := uuid.FromBytes(m.GetGroup())
	if err != nil {
		return r.yield(archiver.News{}, fmt.Errorf("shard %s: a message about no group: %w", one.from.address, err))
	}
	out := archiver.News{Group: id, Name: m.GetName()}
	p := r.pieces[id]
	switch {
	case m.GetLeftOut() != "" && !m.GetCopyAgain():
		err := fmt.Errorf("shard %s: group %s: %s", one.from.address, m.GetName(), m.GetLeftOut())
		if p != nil && p.from == one.from && !p.ended {
			p.ended = true
			return r.yield(out, err)
		}
		r.why[id] = news{out, err}
		return true
	case p != nil && (p.from != one.from || p.ended):
		return true // ignore updates from a second shard, and updates after the last one
	}
	delete(r.why, id)
	if p == nil {
		p = &piece{from: one.from}
		r.pieces[id] = p
		r.source.hear(id, m.GetName(), one.from.address)
	}
	p.ended = !m.GetMore()
	out.Unknown, out.Gone, out.More = m.GetUnknown(), m.GetGone(), m.GetMore()
	out.CopyAgain = m.GetCopyAgain()
	out.Through, out.Floor, out.FloorKnown = m.GetThrough(), m.GetHistoryFloor(), m.GetFloorKnown()
	if m.GetReadAtUnixNs() != 0 {
		out.ReadAt = time.Unix(0, m.GetReadAtUnixNs())
	}
	if out.Entries, err = decode(m.GetEntries()); err != nil {
		p.ended = true
		return r.yield(archiver.News{Group: id, Name: m.GetName()}, fmt.Errorf("shard %s: group %s: %w", one.from.address,
			m.GetName(), err))
	}
	return r.yield(out, nil)
}

// lost handles a shard whose response ended early. It yields the error once for each group whose updates are
// incomplete, and once for the shard as a whole.
func (r *round) lost(from *shard, err error) bool {
	err = fmt.Errorf("shard %s: %w", from.address, err)
	for id, p := range r.pieces {
		if p.from == from && !p.ended {
			p.ended = true
			if !r.yield(archiver.News{Group: id}, err) {
				return false
			}
		}
	}
	return r.yield(archiver.News{}, err)
}

// end yields an error for each group that all shards left out.
func (r *round) end() {
	for one := range maps.Values(r.why) {
		if !r.yield(one.News, one.err) {
			return
		}
	}
}

func decode(encoded [][]byte) ([]format.Entry, error) {
	entries := make([]format.Entry, len(encoded))
	for i, b := range encoded {
		var e raftpb.Entry
		if err := proto.Unmarshal(b, &e); err != nil {
			return nil, fmt.Errorf("an entry cannot be decoded: %w", err)
		}
		var err error
		if entries[i], err = format.DecodePayload(&e); err != nil {
			return nil, err
		}
	}
	return entries, nil
}
