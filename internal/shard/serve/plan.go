package serve

import (
	"context"

	"google.golang.org/grpc/codes"

	"sheaf.dev/sheaf/client/recordv1"
	"sheaf.dev/sheaf/internal/call/cursor"
	"sheaf.dev/sheaf/internal/security/access"
	"sheaf.dev/sheaf/internal/shard/answer"
	"sheaf.dev/sheaf/internal/storage/group"
)

// These are the sizes of the splits that PlanScan returns, in bytes.
const (
	splitBytesDefault = 256 << 20
	splitBytesMin     = 1 << 20
	splitBytesMax     = 1 << 40
)

// PlanScan implements RecordService.
func (s *recordServer) PlanScan(ctx context.Context, in *recordv1.PlanScanRequest) (out *recordv1.PlanScanResponse,
	err error) {
	size := in.GetSplitBytes()
	if size != 0 && (size < splitBytesMin || size > splitBytesMax) {
		return nil, answer.Invalid("split_bytes", "is %d: give %d to %d, or 0 for %d", size, splitBytesMin,
			int64(splitBytesMax), splitBytesDefault)
	}
	if size == 0 {
		size = splitBytesDefault
	}
	names, err := s.groupsToScan(ctx, in.GetGroups())
	if err != nil {
		return nil, err
	}
	var snapshots []scanKey
	defer func() {
		if err != nil {
			for _, o := range snapshots {
				o.log.CloseScan(o.id)
			}
		}
	}()
	out = &recordv1.PlanScanResponse{}
	if in.GetView() != "" {
		out.Splits, err = s.planView(ctx, in, names, size)
		return out, err
	}
	for _, name := range names {
		sv, err := s.shard.Group(ctx, name, 0)
		if err != nil {
			return nil, err
		}
		if err := sv.Barrier(ctx); err != nil {
			return nil, answer.Of(err, answer.Where{Group: name})
		}
		tenant, err := enter(ctx, sv.Tenant(), answer.Where{Group: name}, 0)
		if err != nil {
			return nil, err
		}
		defer leave(tenant, 0)
		id, err := sv.Log().OpenScan(ScanTTL)
		if err != nil {
			return nil, answer.Of(err, answer.Where{Group: name})
		}
		snapshots = append(snapshots, scanKey{sv.Log(), id})
		c := cursor.Cursor{Kind: cursor.Split, Group: name, Scan: id}
		splits, err := s.splits(ctx, &c, scanKey{sv.Log(), id}, size, in.GetShared())
		if err != nil {
			return nil, answer.Of(err, answer.Where{Group: name})
		}
		out.Splits = append(out.Splits, splits...)
	}
	return out, nil
}

// splits divides a snapshot into splits. The cursor c names the snapshot as the splits do.
func (s *Server) splits(ctx context.Context, c *cursor.Cursor, of scanKey, size int64,
	shared bool) ([]*recordv1.ScanSplit, error) {
	info, err := of.log.ScanInfo(of.id)
	if err != nil {
		return nil, err
	}
	bounds, err := of.log.ScanSplits(of.id, size)
	if err != nil {
		return nil, err
	}
	n := int64(len(bounds) - 1)
	var splits []*recordv1.ScanSplit
	for i := 1; i < len(bounds); i++ {
		c.After, c.Through = bounds[i-1], bounds[i]
		split, err := access.SignSplit(ctx, c.Encode(), c.Lasts(), shared)
		if err != nil {
			return nil, err
		}
		splits = append(splits, &recordv1.ScanSplit{
			Group: c.Group, Split: split, Addresses: []string{s.shard.Address()},
			Bytes: info.Bytes / n, Records: info.Records / n,
		})
	}
	return splits, nil
}

// planView divides groups of a view into splits. Without groups in the request, it leaves out those that are not part
// of the view.
func (s *Server) planView(ctx context.Context, in *recordv1.PlanScanRequest, names []string,
	size int64) (splits []*recordv1.ScanSplit, err error) {
	var v answer.Violations
	id, valid := viewID(in.GetView(), &v)
	if !valid {
		return nil, v.Err()
	}
	for _, name := range names {
		w := answer.Where{Group: name}
		sv, err := s.shard.Group(ctx, name, 0)
		if err != nil {
			return nil, err
		}
		view, err := s.inView(ctx, sv, id)
		if len(in.GetGroups()) == 0 && answer.CodeOf(err) == codes.InvalidArgument {
			continue
		}
		if err != nil {
			return nil, err
		}
		tenant, err := enter(ctx, sv.ViewTenant(), w, 0)
		if err != nil {
			return nil, err
		}
		defer leave(tenant, 0)
		err = view.with(ctx, func(scan group.ScanID) error {
			c := cursor.Cursor{Kind: cursor.Split, View: true, Group: name, Scan: id}
			more, err := s.splits(ctx, &c, scanKey{sv.Log(), scan}, size, in.GetShared())
			splits = append(splits, more...)
			return err
		})
		if err != nil {
			return nil, view.fail(err, w)
		}
	}
	return splits, nil
}
