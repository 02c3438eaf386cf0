package gateway

import (
	"context"
	"fmt"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/mem"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"

	recordv1 "sheaf.dev/sheaf/api/sheaf/record/v1"
	"sheaf.dev/sheaf/internal/base/parallel"
	"sheaf.dev/sheaf/internal/call/liveness"
	"sheaf.dev/sheaf/internal/call/message"
	"sheaf.dev/sheaf/internal/call/reason"
	"sheaf.dev/sheaf/internal/call/routing"
)

// item is one put or get of a batch.
type item struct {
	key        key
	begin, end int // in the message, tag and length included
	effect     routing.Effect
	answered   bool
	err        error // the last failure, when not answered
	failures   failures
	route      *route
	to         *shard // where it was sent last
}

// batch is one message with many items.
type batch struct {
	base  mem.Buffer // the whole message
	write bool
	items []item
}

// itemFields of PutRequest and GetRequest. A GetRequest has a version in the place of the request id; nobody asks then.
var itemFields = fields{key: 1, requestID: 3}

// readBatch finds the items of a message and takes its buffers over.
func readBatch(in *frame, field string, write bool, itemsMax, bytesMax int) (*batch, error) {
	defer in.free()
	if n := in.bufs.Len(); n > bytesMax {
		return nil, invalid(field,
			"the message has %d bytes, at most %d are allowed: send smaller batches, and a record above 1 MiB by Upload", n,
			bytesMax)
	}
	b := &batch{base: in.bufs.MaterializeToBuffer(message.Pool), write: write}
	err := eachItem(mem.BufferSlice{b.base}, func(s scanner, begin, end int) error {
		if len(b.items) == itemsMax {
			return invalid(field, "more than %d in one message", itemsMax)
		}
		it := item{begin: begin, end: end}
		if err := itemFields.readKey(s, &it.key); err != nil {
			return err
		}
		it.effect = routing.Effect{Write: write, Once: !it.key.requestID}
		if !it.key.present {
			it.answered, it.err = true, invalid(fmt.Sprintf("%s[%d].key", field, len(b.items)), "required")
		}
		b.items = append(b.items, it)
		return nil
	})
	switch {
	case err == nil && len(b.items) == 0:
		err = invalid(field, "at least one is required")
	case err == errWire: //nolint:errorlint // made in this package, never wrapped
		err = status.Error(codes.InvalidArgument, err.Error())
	}
	if err != nil {
		b.free()
		return nil, err
	}
	return b, nil
}

// free gives the message back.
func (b *batch) free() { b.base.Free() }

// part is what one shard gets of a batch.
type part struct {
	shard *shard
	items []int        // places in the batch, in order
	told  map[int]bool // those of them whose result says that they are to be repeated
}

// tenures are those for which the part's shard leads the groups of the part.
func (b *batch) tenures(p *part) []*liveness.Tenure {
	var out []*liveness.Tenure
	seen := map[*route]bool{}
	for _, i := range p.items {
		r := b.items[i].route
		if seen[r] {
			continue
		}
		seen[r] = true
		if t := r.place(p.shard).tenure; t != nil {
			out = append(out, t)
		}
	}
	return out
}

// refused notes that the shard has told of an item what is wrong: the end of the stream says no more of it.
func (p *part) refused(i int) {
	if p.told == nil {
		p.told = map[int]bool{}
	}
	p.told[i] = true
}

// split divides the items that are not answered yet by shard, in order. Those without a route stay behind, with the
// reason; those that can have none are answered.
func (g *Gateway) split(ctx context.Context, t *table, b *batch) []*part {
	var parts []*part
	failed := g.resolveMissing(ctx, t, b)
	for i := range b.items {
		it := &b.items[i]
		if it.answered {
			continue
		}
		r := t.route0(&it.key)
		if r == nil {
			if err := failed[string(it.key.group)]; err != nil {
				it.note(err, routing.Judge(status.Convert(err), false))
				continue
			}
		}
		var leader *shard
		if r != nil {
			leader = r.leader()
		}
		if leader == nil {
			err := fail(codes.Unavailable, reason.NoLeader, "no shard owns the group yet, or its shard is not registered")
			it.note(err, routing.Judge(status.Convert(err), false))
			continue
		}
		it.route, it.to = r, leader
		parts = addTo(parts, leader, i)
	}
	return parts
}

// resolveMissing asks once for each group of Named routing that the table does not have, several at a time.
func (g *Gateway) resolveMissing(ctx context.Context, t *table, b *batch) map[string]error {
	if t.hash != nil {
		return nil
	}
	failed := map[string]error{}
	var missing []*key
	for i := range b.items {
		k := &b.items[i].key
		if _, listed := failed[string(k.group)]; b.items[i].answered || listed || t.route0(k) != nil {
			continue
		}
		failed[string(k.group)] = nil
		missing = append(missing, k)
	}
	errs := make([]error, len(missing))
	parallel.Times(len(missing), fanOut, func(i int) { _, errs[i] = g.resolve(ctx, t, missing[i], b.write) })
	for i, k := range missing {
		failed[string(k.group)] = errs[i]
	}
	return failed
}

func addTo(parts []*part, s *shard, i int) []*part {
	for _, p := range parts {
		if p.shard == s {
			p.items = append(p.items, i)
			return parts
		}
	}
	return append(parts, &part{shard: s, items: []int{i}})
}

// route0 is route, nil also where the key names no group.
func (t *table) route0(k *key) *route {
	if t.hash == nil && len(k.group) == 0 {
		return nil
	}
	return t.route(k)
}

// message makes the request for a part: the bytes of its items as they came, neighbours in one piece.
func (b *batch) message(p *part) *frame {
	f := &frame{}
	for n := 0; n < len(p.items); {
		first := &b.items[p.items[n]]
		end := first.end
		for n++; n < len(p.items) && b.items[p.items[n]].begin == end; n++ {
			end = b.items[p.items[n]].end
		}
		f.bufs = append(f.bufs, b.base.Slice(first.begin, end))
	}
	return f
}

// failPart notes a failure of the whole part for the items that have no answer.
func (b *batch) failPart(p *part, err error, v routing.Verdict) {
	err = unreachable(err, p.shard.name)
	for _, i := range p.items {
		if it := &b.items[i]; !it.answered && !p.told[i] {
			it.failed(err, v)
		}
	}
}

// failed notes that an attempt at a shard failed.
func (it *item) failed(err error, v routing.Verdict) {
	if it.route != nil {
		it.route.learn(it.to, v)
	}
	it.note(err, v)
}

// note notes a failure, and decides whether the item is answered by that.
func (it *item) note(err error, v routing.Verdict) {
	it.answered = !it.effect.Failed(v, true)
	it.err = told(err, &it.effect)
}

// open lists the items that have no answer yet; v is the verdict on the first of them.
func (b *batch) open() (n int, v routing.Verdict) {
	for i := range b.items {
		if it := &b.items[i]; !it.answered {
			if n == 0 {
				v = routing.Judge(status.Convert(it.err), false)
			}
			n++
		}
	}
	return n, v
}

// resultStatus is the status in a BatchPutResult or BatchGetResult; nil: done.
func resultStatus(s scanner, field protowire.Number) (*status.Status, error) {
	var st *status.Status
	for s.left > 0 {
		number, kind, length, err := s.next()
		if err != nil {
			return nil, err
		}
		if number != field || kind != protowire.BytesType {
			if err := s.skipValue(kind, length); err != nil {
				return nil, err
			}
			continue
		}
		encoded, err := s.take(length)
		if err != nil {
			return nil, err
		}
		full := status.New(codes.OK, "").Proto()
		if err := proto.Unmarshal(encoded, full); err != nil {
			return nil, errWire
		}
		if st = status.FromProto(full); st.Code() == codes.OK {
			st = nil
		}
	}
	return st, nil
}

// putFailure is the BatchPutResult of an item that failed, with tag and length.
func putFailure(dst []byte, err error) []byte {
	return appendMessage(dst, &recordv1.BatchPutResult{Status: status.Convert(err).Proto()})
}

// getFailure is the BatchGetResult of an item that failed, with tag and length.
func getFailure(dst []byte, position int, err error) []byte {
	return appendMessage(dst, &recordv1.BatchGetResult{Position: uint32(position), Status: status.Convert(err).Proto()})
}

func appendMessage(dst []byte, m proto.Message) []byte {
	dst = protowire.AppendTag(dst, 1, protowire.BytesType)
	encoded, err := proto.Marshal(m)
	if err != nil { // only strings that are not UTF-8, which no error text of ours holds
		encoded = nil
	}
	return protowire.AppendBytes(dst, encoded)
}
