package gateway

import (
	"context"
	"fmt"
	"maps"
	"slices"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/mem"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"

	"sheaf.dev/sheaf/client/call/liveness"
	"sheaf.dev/sheaf/client/call/message"
	"sheaf.dev/sheaf/client/call/reason"
	"sheaf.dev/sheaf/client/call/routing"
	"sheaf.dev/sheaf/internal/base/parallel"
	"sheaf.dev/sheaf/internal/security/access"
)

// item is one put or get of a batch.
type item struct {
	key        key
	begin, end int // offsets in the message, including tag and length
	effect     routing.Effect
	answered   bool
	err        error // the last failure, which is returned unless a shard handles the item later
	failures   failures
	route      *route
	to         *shard // the shard of the last attempt
	told       bool   // the shard has reported err for this item, so an error of the shard's stream is ignored
}

// batch is a message with many items.
type batch struct {
	base  mem.Buffer // the whole message
	bytes int64      // size of the message as received, which the gateway has admitted
	write bool
	items []item
}

// itemFields are the fields of PutRequest and GetRequest. Field 3 of a GetRequest is the version, not a request id.
// This does no harm, because requestID is read only for writes.
var itemFields = fields{key: 1, requestID: 3}

// nextBatch receives and admits a message of a batch. It refuses the items to which the caller has no access. The
// caller must call endBatch.
func (g *Gateway) nextBatch(stream grpc.ServerStream, field string, verb access.Verb, itemsMax, bytesMax int) (*batch,
	error) {
	in := &frame{}
	if err := stream.RecvMsg(in); err != nil {
		return nil, err
	}
	bytes := int64(in.bufs.Len())
	if err := g.admit(bytes); err != nil {
		in.free()
		return nil, err
	}
	b, err := readBatch(in, field, verb == access.Put, itemsMax, bytesMax)
	if err != nil {
		g.release(bytes)
		return nil, err
	}
	b.bytes = bytes
	if err := g.refuseItems(stream.Context(), verb, b); err != nil {
		g.endBatch(b)
		return nil, err
	}
	return b, nil
}

// endBatch releases a message that nextBatch returned.
func (g *Gateway) endBatch(b *batch) {
	b.base.Free()
	g.release(b.bytes)
}

// readBatch finds the items of a message and takes ownership of its buffers.
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
		b.base.Free()
		return nil, err
	}
	return b, nil
}

// part holds those items of a batch that go to one shard.
type part struct {
	shard *shard
	items []int // indices in the batch, sorted
}

// tenures returns the tenures during which the part's shard leads the part's groups. It leaves out groups whose tenure
// is not known.
func (b *batch) tenures(p *part) []*liveness.Tenure {
	known := map[*liveness.Tenure]bool{}
	for _, i := range p.items {
		known[b.items[i].route.place(p.shard).tenure] = true
	}
	delete(known, nil)
	return slices.Collect(maps.Keys(known))
}

// split distributes the unanswered items over the shards that lead their groups, and keeps their order. For an item
// whose group has no known leader, split sets the error to the reason, and treats the item as answered if a retry
// cannot help.
func (g *Gateway) split(ctx context.Context, t *table, b *batch) []*part {
	var parts []*part
	failed := g.resolveMissing(ctx, t, b)
	for i := range b.items {
		it := &b.items[i]
		if it.answered {
			continue
		}
		r := t.route(&it.key)
		leader := it.failures.next(r)
		if leader == nil {
			err := failed[string(it.key.group)]
			if err == nil {
				err = r.noShardError()
			}
			it.note(err, routing.Judge(status.Convert(err), false))
			continue
		}
		it.route, it.to, it.told = r, leader, false
		at := slices.IndexFunc(parts, func(p *part) bool { return p.shard == leader })
		if at < 0 {
			at = len(parts)
			parts = append(parts, &part{shard: leader})
		}
		parts[at].items = append(parts[at].items, i)
	}
	return parts
}

// resolveMissing looks up each group of Named routing that the table lacks, once per group, several at a time.
func (g *Gateway) resolveMissing(ctx context.Context, t *table, b *batch) map[string]error {
	if t.hash != nil {
		return nil
	}
	failed := map[string]error{}
	var missing []*key
	for i := range b.items {
		k := &b.items[i].key
		if _, listed := failed[string(k.group)]; b.items[i].answered || listed || t.route(k) != nil {
			continue
		}
		failed[string(k.group)] = nil
		missing = append(missing, k)
	}
	errs := make([]error, len(missing))
	parallel.Times(len(missing), fanOut, func(i int) {
		r, err := g.resolve(ctx, t, missing[i], b.write)
		if err == nil && r != nil {
			err = r.noShardError() // the group is not in the table, so its shard is not known either
		}
		errs[i] = err
	})
	for i, k := range missing {
		failed[string(k.group)] = errs[i]
	}
	return failed
}

// message builds the request for a part. The request contains the bytes of the part's items unchanged. Adjacent items
// are copied as one piece.
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

// failPart records the failure of a whole part for each of the part's items that has no result.
func (b *batch) failPart(p *part, err error, v routing.Verdict) {
	err = unreachable(err, p.shard.name)
	for _, i := range p.items {
		if it := &b.items[i]; !it.answered && !it.told {
			it.failed(err, v)
		}
	}
}

// failed records a failed attempt at a shard, and changes the destination for calls to the group if necessary.
func (it *item) failed(err error, v routing.Verdict) {
	if it.route != nil && v.Reason != reason.ViewExpired { // the leader remains the best shard for other calls
		it.route.learn(it.to, v)
	}
	it.note(err, v)
}

// note records a failure. If the item must not be retried, the failure becomes its result.
func (it *item) note(err error, v routing.Verdict) {
	it.answered = !it.effect.Failed(v, true)
	it.err = told(ofEveryCopy(err, v), &it.effect)
}

// open returns the number of items that have no result yet, and the verdict v on the first of them.
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

// resultStatus returns the status in a BatchPutResult or BatchGetResult. It returns nil for a success.
func resultStatus(result scanner, field protowire.Number) (*status.Status, error) {
	value, err := result.find(field, protowire.BytesType)
	if err != nil || value.left == 0 {
		return nil, err
	}
	encoded, err := value.take(value.left)
	if err != nil {
		return nil, err
	}
	full := status.New(codes.OK, "").Proto()
	if err := proto.Unmarshal(encoded, full); err != nil {
		return nil, errWire
	}
	st := status.FromProto(full)
	if st.Code() == codes.OK {
		st = nil
	}
	return st, nil
}

// appendMessage appends m as the value of field 1, with tag and length.
func appendMessage(dst []byte, m proto.Message) []byte {
	dst = protowire.AppendTag(dst, 1, protowire.BytesType)
	encoded, err := proto.Marshal(m)
	if err != nil { // Marshal refuses only strings that are not UTF-8, and error messages are UTF-8
		encoded = nil
	}
	return protowire.AppendBytes(dst, encoded)
}
