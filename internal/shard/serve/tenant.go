package serve

import (
	"cmp"
	"context"
	"slices"

	"sheaf.dev/sheaf/internal/shard/answer"
	"sheaf.dev/sheaf/internal/shard/quota"
	"sheaf.dev/sheaf/internal/storage/group"
	"sheaf.dev/sheaf/internal/storage/group/format"
)

// Each call is charged to the quotas of the tenant that owns the group. A unary call is refused if it would exceed a
// rate. If the tenant's callers do not slow down, their calls are delayed. A message of a stream waits instead, because
// a refusal would abort the stream, and its caller would have to start it again. Such a message is refused only if the
// waiting messages hold too much of the shared memory.

// tenantOf returns the tenant that a read of the group charges, or nil. Only the leader charges calls, except for reads
// of a view: other copies answer these too, and would otherwise be a way around the quotas.
func tenantOf(sv Group, ofView bool) *quota.Tenant {
	if ofView {
		return sv.ViewTenant()
	}
	return sv.Tenant()
}

// enter begins a call in a group of this tenant, which may be nil. The argument `holds` is the memory in bytes that the
// call occupies while it waits. If the returned tenant is not nil, the caller must call leave.
func enter(ctx context.Context, t *quota.Tenant, w answer.Where, holds int64) (*quota.Tenant, error) {
	if t == nil {
		return nil, nil
	}
	if err := t.Begin(ctx, holds); err != nil {
		return nil, answer.Of(err, w)
	}
	return t, nil
}

// leave ends a call that enter began, and counts the bytes of data and attributes that the call moved.
func leave(t *quota.Tenant, bytes int64) {
	if t != nil {
		t.Moved(bytes)
		t.End()
	}
}

// movedOf returns the number of bytes that reading a record charges to the quotas.
func movedOf(rec *group.Record) int64 { return int64(len(rec.Data) + len(rec.Attributes)) }

// pass waits until a stream message may move bytes, and counts them. The argument `holds` is the memory in bytes that
// the stream occupies while it waits. If the tenant is nil, nothing is counted.
func pass(ctx context.Context, t *quota.Tenant, bytes, holds int64) error {
	if t == nil {
		return nil
	}
	return answer.Of(t.Move(ctx, bytes, holds), answer.Where{})
}

// reserve charges the data of a write to the quotas of its tenant. It returns an error if a quota is used up. Deletes
// are never refused.
func (w *write) reserve(ctx context.Context) error {
	t := w.served.Tenant()
	if t == nil || w.replica.Delete || w.reserved != (quota.Reserved{}) {
		return nil
	}
	n := quota.Amount{Bytes: format.FrameBytes(len(w.replica.Attributes), len(w.replica.Data))}
	if w.replica.Blob != nil {
		n.Bytes += w.replica.Blob.Size
	}
	if !w.served.Log().Has(w.where.ID) {
		n.Records = 1
	}
	var err error
	w.reserved, err = t.Store(ctx, n, w.hurry)
	return answer.Of(err, w.where)
}

// batchTenants lists the tenants of a message's items, without duplicates. They are sorted by name, so that two
// messages never wait for each other.
type batchTenants []*quota.Tenant

func (b *batchTenants) add(t *quota.Tenant) {
	if t != nil && !slices.Contains(*b, t) {
		*b = append(*b, t)
	}
}

// enter waits until the message may be processed. The argument `holds` is the memory in bytes that the message occupies
// while it waits. The caller must call leave even after an error.
func (b *batchTenants) enter(ctx context.Context, holds int64) error {
	all := *b
	slices.SortFunc(all, func(x, y *quota.Tenant) int { return cmp.Compare(x.Name(), y.Name()) })
	for i, t := range all {
		if err := t.Await(ctx, holds); err != nil {
			*b = all[:i]
			return answer.Of(err, answer.Where{})
		}
	}
	return nil
}

func (b *batchTenants) leave() {
	for _, t := range *b {
		t.End()
	}
	*b = nil
}
