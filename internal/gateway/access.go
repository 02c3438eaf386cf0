package gateway

import (
	"context"
	"errors"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/encoding/protowire"

	"sheaf.dev/sheaf/client/call/reason"
	"sheaf.dev/sheaf/internal/placement"
	"sheaf.dev/sheaf/internal/security/access"
)

// may returns an error if the caller has no permission to use a verb in the key's group. The gateway calls this method
// before it looks up anything in the group.
func (g *Gateway) may(ctx context.Context, verb access.Verb, k *key) error {
	if !access.Identified(ctx) {
		return nil
	}
	t, err := g.router.wait(ctx)
	if err != nil {
		return err
	}
	return access.MayRecord(ctx, verb, t.groupOf(k), k.id)
}

// groupOf returns the name of a key's group, which need not exist.
func (t *table) groupOf(k *key) string {
	if routing := t.view.Meta.Routing; routing.Mode == placement.Hash {
		return placement.GroupName(routing.GroupOf(k.id))
	}
	return string(k.group)
}

// opened verifies a signed value that the caller has sent back, and returns it without the signature.
func opened(ctx context.Context, field string, value []byte) ([]byte, error) {
	out, err := access.Open(ctx, value)
	if err != nil {
		return nil, notOpened(field, err)
	}
	return out, nil
}

// notOpened returns the error for an invalid signed value: one that was not issued to this caller by the store, or was
// issued too long ago.
func notOpened(field string, err error) error {
	if errors.Is(err, access.ErrOutdated) {
		return fail(codes.OutOfRange, reason.CursorExpired, "%s: is %v: begin again", field, err)
	}
	return invalid(field, "is %v", err)
}

// cursorField is the field number of the cursor in Scan and Watch responses.
const cursorField = 2

// replaceBytes replaces the value of a bytes or string field of a message. It appends the new value, because protobuf
// uses the last value of a field that occurs twice.
func replaceBytes(message *frame, number protowire.Number, value []byte) {
	field := protowire.AppendTag(nil, number, protowire.BytesType)
	message.bufs = append(message.bufs, mem.SliceBuffer(protowire.AppendBytes(field, value)))
}

// refuseItems sets an error for each batch item to which the caller has no access.
func (g *Gateway) refuseItems(ctx context.Context, verb access.Verb, b *batch) error {
	if !access.Identified(ctx) {
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
