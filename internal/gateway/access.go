package gateway

import (
	"context"
	"errors"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/encoding/protowire"

	"sheaf.dev/sheaf/internal/call/reason"
	"sheaf.dev/sheaf/internal/placement"
	"sheaf.dev/sheaf/internal/security/access"
)

// may decides whether the caller may use a verb in the group of a key, before anything is looked up there.
func (g *Gateway) may(ctx context.Context, verb access.Verb, k *key) error {
	if access.CallOf(ctx) == nil {
		return nil // callers are not known here
	}
	t, err := g.router.wait(ctx)
	if err != nil {
		return err
	}
	return access.MayRecord(ctx, verb, t.groupOf(k), k.id)
}

// groupOf names the group of a key, whether there is one or not.
func (t *table) groupOf(k *key) string {
	if routing := t.view.Meta.Routing; routing.Mode == placement.Hash {
		return placement.GroupName(routing.GroupOf(k.id))
	}
	return string(k.group)
}

// sealed is how long splits and cursors of scans are taken, where callers are known. Their snapshots end sooner.
const sealed = 7 * 24 * time.Hour

// opened gives what this store has given to the caller, who hands it back.
func opened(ctx context.Context, field string, value []byte) ([]byte, error) {
	out, err := access.Open(ctx, value)
	if err != nil {
		return nil, notOpened(field, err)
	}
	return out, nil
}

// notOpened is the answer to a value that a caller has handed back, and that this store did not give to it, or too long
// ago.
func notOpened(field string, err error) error {
	if errors.Is(err, access.ErrOutdated) {
		return fail(codes.OutOfRange, reason.CursorExpired, "%s: is %v: begin again", field, err)
	}
	return invalid(field, "is %v", err)
}

// cursorField is the field of a cursor in the answers of Scan and Watch.
const cursorField = 2

// replaceBytes gives a message another value of a field of bytes or text: of a field that comes twice the last one
// counts.
func replaceBytes(message *frame, number protowire.Number, value []byte) {
	field := protowire.AppendTag(nil, number, protowire.BytesType)
	message.bufs = append(message.bufs, mem.SliceBuffer(protowire.AppendBytes(field, value)))
}

// refuseItems answers the items of a batch that the caller may not touch.
func (g *Gateway) refuseItems(ctx context.Context, verb access.Verb, b *batch) error {
	if access.CallOf(ctx) == nil {
		return nil
	}
	t, err := g.router.wait(ctx)
	if err != nil {
		return err
	}
	for i := range b.items {
		if it := &b.items[i]; !it.answered {
			if err := access.MayRecord(ctx, verb, t.groupOf(&it.key), it.key.id); err != nil {
				it.answered, it.err = true, err
			}
		}
	}
	return nil
}
