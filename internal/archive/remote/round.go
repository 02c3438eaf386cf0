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

// answer is a message of a shard, or why the rest of its answer is missing.
type answer struct {
	from    *shard
	message *archivev1.FollowResponse
	err     error
}

// Round implements archiver.Source. A shard that does not answer is left out with its error, and asked again in the
// next round.
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

// askAll asks shards, some at a time, and closes answers.
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
			sh.end() // what is left of the answer is not wanted
			select {
			case answers <- answer{from: sh, err: err}:
			case <-ctx.Done():
			}
		})
	}
}

// ask asks the shard once, and calls the function give for each message. After an error, the call must be ended.
func (sh *shard) ask(ctx context.Context, header *archivev1.Header, requests []*archivev1.FollowRequest,
	give func(*archivev1.FollowResponse) bool) (err error) {
	if sh.call == nil {
		// The call lasts longer than the round: the shard keeps the positions of a call as the hold of its groups.
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
			err = ctx.Err() // the call is cancelled, although the shard had ended its round
		}
	}()
	for _, in := range requests {
		if !c.begun {
			in = &archivev1.FollowRequest{Header: header, Positions: in.GetPositions(), More: in.GetMore()}
			c.begun = true
		}
		if err := c.stream.Send(in); err != nil {
			if _, err := c.stream.Recv(); err != nil {
				return err // the reason for which the shard has ended the call
			}
			return err
		}
	}
	for {
		late := time.AfterFunc(silenceMax, c.cancel)
		m, err := c.stream.Recv()
		if !late.Stop() { // the call is cancelled, even if an answer has just come
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

// round turns the answers of all shards into news.
type round struct {
	source *Source
	yield  func(archiver.News, error) bool
	pieces map[uuid.UUID]*piece // of groups that have news
	why    map[uuid.UUID]news   // groups that were left out, and that have no news from another shard
}

// news are news with the error that is yielded with them.
type news struct {
	archiver.News
	err error
}

// piece is the news of one group. In one round they come from one shard: if the lead changes during the round, two
// shards may answer for the group at the same time.
type piece struct {
	from  *shard
	ended bool
}

// take takes an answer. It returns false if no more news are wanted.
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
	case m.GetLeftOut() != "":
		err := fmt.Errorf("shard %s: group %s: %s", one.from.address, m.GetName(), m.GetLeftOut())
		if p != nil && p.from == one.from && !p.ended {
			p.ended = true
			return r.yield(out, err)
		}
		r.why[id] = news{out, err}
		return true
	case p != nil && (p.from != one.from || p.ended):
		return true // another shard has the word in this round
	}
	delete(r.why, id)
	if p == nil {
		p = &piece{from: one.from}
		r.pieces[id] = p
		r.source.hear(id, m.GetName(), one.from.address)
	}
	p.ended = !m.GetMore()
	out.Unknown, out.Gone, out.More = m.GetUnknown(), m.GetGone(), m.GetMore()
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

// lost reports a shard whose answer has ended early, and the groups whose news are incomplete.
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

// end reports the groups that were left out everywhere.
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
