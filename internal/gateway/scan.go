package gateway

import (
	"cmp"
	"context"
	"maps"
	"slices"

	"github.com/google/uuid"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/mem"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"sheaf.dev/sheaf/client/call/reason"
	"sheaf.dev/sheaf/client/call/routing"
	"sheaf.dev/sheaf/client/recordv1"
	"sheaf.dev/sheaf/internal/base/parallel"
	"sheaf.dev/sheaf/internal/call/cursor"
	"sheaf.dev/sheaf/internal/placement"
	"sheaf.dev/sheaf/internal/security/access"
)

// decode decodes a frame into a message.
func decode(in *frame, m proto.Message) error {
	buf := in.bufs.MaterializeToBuffer(mem.DefaultBufferPool())
	defer buf.Free()
	if err := proto.Unmarshal(buf.ReadOnlyData(), m); err != nil {
		return status.Error(codes.InvalidArgument, errWire.Error())
	}
	return nil
}

// receive receives the request of a stream, and decodes it.
func receive(stream grpc.ServerStream, request proto.Message) error {
	in := &frame{}
	if err := stream.RecvMsg(in); err != nil {
		return err
	}
	defer in.free()
	return decode(in, request)
}

// scan streams the records of one group, of one split, of the remainder after a cursor, or of all groups one after
// another in the order of their names. In a scan of all groups, the gateway adds a mark to the shard's cursor. A scan
// that resumes at a marked cursor continues with the groups that follow the cursor's group. Records are forwarded
// without being decoded.
func (g *Gateway) scan(stream grpc.ServerStream) error {
	request := &recordv1.ScanRequest{}
	if err := receive(stream, request); err != nil {
		return err
	}
	mayScan := func(group string) error { return access.May(stream.Context(), access.Scan, group) }
	group, split, resumed := request.GetGroup(), len(request.GetSplit()) > 0, len(request.GetCursor()) > 0
	switch {
	case request.GetView() != "" && (split || resumed):
		return invalid("view", "excludes split and cursor, which name their view")
	case group != "" && (split || resumed), split && resumed:
		return invalid("cursor", "give only one of group, split and cursor")
	case group != "":
		if err := placement.ValidateGroupName(group); err != nil {
			return invalid("group", "%v", err)
		}
		if err := mayScan(group); err != nil {
			return err
		}
		return g.scanGroup(stream, request, group, false)
	case split:
		var err error
		if request.Split, err = opened(stream.Context(), "split", request.GetSplit()); err != nil {
			return err
		}
		c, err := cursor.Decode(request.GetSplit())
		if err != nil || c.Kind != cursor.Split {
			return invalid("split", "not a split that PlanScan gave out")
		}
		if err := mayScan(c.Group); err != nil {
			return err
		}
		return g.scanGroup(stream, request, c.Group, false)
	case resumed:
		plain, err := opened(stream.Context(), "cursor", request.GetCursor())
		if err != nil {
			return err
		}
		c, err := cursor.Decode(plain)
		if err != nil || c.Kind != cursor.Resume {
			return invalid("cursor", "not a cursor that Scan gave out")
		}
		all, groups := c.All, c.Group
		if all {
			groups = ""
		}
		if err := mayScan(groups); err != nil {
			return err
		}
		if c.All && c.View {
			request.View = uuid.UUID(c.Scan).String()
		}
		c.All = false
		request.Cursor = c.Encode()
		view := request.GetView()
		request.View = ""
		err = g.scanGroup(stream, request, c.Group, all)
		if !all || err != nil && status.Code(err) != codes.DataLoss {
			return err
		}
		request.View = view
		return g.scanBehind(stream, request, c.Group, err)
	default:
		if err := mayScan(""); err != nil {
			return err
		}
		return g.scanBehind(stream, request, "", nil)
	}
}

// scanBehind scans all groups whose names sort after behind. It continues after a damaged group, and at the end
// returns the error about the last damage. The argument damage is such an error from an earlier part of the scan, or
// nil.
func (g *Gateway) scanBehind(stream grpc.ServerStream, request *recordv1.ScanRequest, behind string,
	damage error) error {
	t, err := g.router.wait(stream.Context())
	if err != nil {
		return err
	}
	if err := t.listed(); err != nil {
		return err
	}
	if request.GetView() != "" {
		return g.scanViewBehind(stream, request, behind, damage)
	}
	for _, r := range t.groups() {
		if r.group <= behind || !r.holds && t.view.Meta.Routing.Mode == placement.Named {
			continue // a group that no shard has created yet is empty
		}
		one := &recordv1.ScanRequest{Group: r.group, MetadataOnly: request.GetMetadataOnly(),
			RoutingEpoch: request.GetRoutingEpoch()}
		switch err := g.scanGroup(stream, one, r.group, true); {
		case status.Code(err) == codes.DataLoss:
			damage = err
		case err != nil:
			return err
		}
	}
	return damage
}

// scanGroup streams one shard's responses. If all is true, the caller scans all groups, and scanGroup marks the cursors
// in the responses accordingly.
func (g *Gateway) scanGroup(stream grpc.ServerStream, request *recordv1.ScanRequest, group string, all bool) error {
	change := func(out *frame) error { return changeCursor(stream.Context(), out, all) }
	if !all && !access.Identified(stream.Context()) {
		change = nil
	}
	return g.pumpGroup(stream.Context(), stream, group, recordv1.RecordService_Scan_FullMethodName, request, change)
}

// changeCursor replaces the cursor in a ScanResponse. It signs the shard's cursor for the caller. If all is true, it
// also marks the cursor as one that continues with the following groups.
func changeCursor(ctx context.Context, out *frame, all bool) error {
	encoded, err := bytesOf(out, cursorField)
	if err != nil {
		return err
	}
	if len(encoded) == 0 {
		return nil
	}
	c, err := cursor.Decode(encoded)
	if err != nil {
		return status.Error(codes.Internal, "the shard's cursor cannot be read: "+err.Error())
	}
	if all {
		c.All = true
		encoded = c.Encode()
	}
	if encoded, err = access.Sign(ctx, encoded, c.Lasts()); err != nil {
		return err
	}
	replaceBytes(out, cursorField, encoded)
	return nil
}

// planScan asks the shards of the requested groups and combines their splits by group.
func (g *Gateway) planScan(ctx context.Context, _ *method, in *frame) (any, error) {
	request := &recordv1.PlanScanRequest{}
	if err := decode(in, request); err != nil {
		return nil, err
	}
	out, err := g.plan(ctx, request)
	if err != nil {
		return nil, err
	}
	return out, nil
}

func (g *Gateway) plan(ctx context.Context, request *recordv1.PlanScanRequest) (*recordv1.PlanScanResponse, error) {
	groups := request.GetGroups()
	asked := groups
	if len(groups) == 0 && request.GetView() == "" {
		asked = []string{""} // the empty name stands for all groups
	}
	for _, group := range asked {
		if err := access.May(ctx, access.Scan, group); err != nil {
			return nil, err
		}
	}
	ctx, cancel := g.bounded(ctx)
	defer cancel()
	t, err := g.router.wait(ctx)
	if err != nil {
		return nil, err
	}
	if len(groups) == 0 && request.GetView() != "" {
		if groups, err = g.groupsOfView(ctx, request.GetView()); err != nil {
			return nil, err
		}
	} else if len(groups) == 0 {
		if err := t.listed(); err != nil {
			return nil, err
		}
		for _, r := range t.groups() {
			if r.holds || t.view.Meta.Routing.Mode == placement.Hash {
				groups = append(groups, r.group)
			}
		}
	}
	answers := make([]*recordv1.PlanScanResponse, len(groups))
	errs := make([]error, len(groups))
	parallel.Times(len(groups), fanOut, func(i int) {
		one := &recordv1.PlanScanRequest{Groups: groups[i : i+1], SplitBytes: request.GetSplitBytes(),
			View: request.GetView(), Shared: request.GetShared()}
		answers[i] = &recordv1.PlanScanResponse{}
		call := g.repeated(routing.Effect{})
		errs[i] = call.named(ctx, groups[i], func(ctx context.Context, s place) (bool, error) {
			defer s.tenure.End(s.tenure.Begin())
			return true, s.conn().Invoke(ctx, recordv1.RecordService_PlanScan_FullMethodName, one, answers[i])
		})
	})
	out := &recordv1.PlanScanResponse{}
	for i, err := range errs {
		if err != nil {
			return nil, err
		}
		for _, split := range answers[i].GetSplits() {
			t.locate(split, request.GetView() != "")
			c, err := cursor.Decode(split.GetSplit())
			if err != nil {
				return nil, status.Error(codes.Internal, "the shard's split cannot be read: "+err.Error())
			}
			if split.Split, err = access.SignSplit(ctx, split.GetSplit(), c.Lasts(), request.GetShared()); err != nil {
				return nil, err
			}
			out.Splits = append(out.Splits, split)
		}
	}
	return out, nil
}

// fanOut limits how many shards the gateway calls at the same time for one call.
const fanOut = 16

// find looks for an id. With Hash routing, it asks only for the group that can hold the id; with Named routing, it asks
// all shards. If a shard that holds a group does not respond, find returns UNAVAILABLE, because that shard may hold the
// id.
func (g *Gateway) find(ctx context.Context, m *method, in *frame) (any, error) {
	t, err := g.router.wait(ctx)
	if err != nil {
		return nil, err
	}
	if t.view.Meta.Routing.Mode == placement.Hash {
		var k key
		if err := m.fields.readKey(scan(in.bufs), &k); err != nil {
			return nil, status.Error(codes.InvalidArgument, err.Error())
		}
		if err := g.may(ctx, access.Get, &k); err != nil {
			return nil, err
		}
		out := &frame{}
		return out, g.again(ctx, m, &k, in, out, g.repeated(routing.Effect{}), nil)
	}
	if err := access.May(ctx, access.Get, ""); err != nil {
		return nil, err
	}
	ctx, cancel := g.bounded(ctx)
	defer cancel()
	call := g.repeated(routing.Effect{})
	for {
		out, err := g.findAll(ctx, t, m, in)
		if err == nil {
			return out, nil
		}
		v := routing.Judge(status.Convert(err), true)
		if r := t.named[v.Info["group"]]; v.Reason == reason.GroupFailed && r != nil && r.votes > 1 {
			// The next call tries another copy, which may be the leader.
			r.learn(r.leader(), routing.Verdict{Fate: routing.Refused})
			v.Fate = routing.Refused
		}
		if v.Fate == routing.Final || !call.pause(ctx, t.changed, v) {
			return nil, err
		}
		t = g.router.table.Load()
	}
}

func (g *Gateway) findAll(ctx context.Context, t *table, m *method, in *frame) (*recordv1.FindResponse, error) {
	if err := t.listed(); err != nil {
		return nil, err
	}
	ask := map[*shard]bool{}
	for _, r := range t.named {
		if s := r.leader(); s != nil {
			ask[s] = true
		} else if r.waits != "" {
			return nil, r.noShardError()
		} else if r.holds {
			return nil, fail(codes.Unavailable, reason.ShardUnreachable,
				"the shard of group %q is not registered: the id could be there", r.group)
		}
	}
	shards := slices.Collect(maps.Keys(ask))
	answers := make([]recordv1.FindResponse, len(shards))
	errs := make([]error, len(shards))
	parallel.Times(len(shards), fanOut, func(i int) {
		if err := shards[i].conn().Invoke(ctx, m.full, in, &answers[i]); err != nil {
			errs[i] = unreachable(err, shards[i].name)
		}
	})
	out := &recordv1.FindResponse{}
	for i, err := range errs {
		if err != nil {
			return nil, err
		}
		out.Records = append(out.Records, answers[i].GetRecords()...)
	}
	slices.SortFunc(out.Records, func(a, b *recordv1.Record) int {
		return cmp.Compare(a.GetKey().GetGroup(), b.GetKey().GetGroup())
	})
	// Every queried shard with a copy of a group returns the group's records, so a record can occur several times.
	out.Records = slices.CompactFunc(out.Records, func(a, b *recordv1.Record) bool {
		return a.GetKey().GetGroup() == b.GetKey().GetGroup() && a.GetKey().GetId() == b.GetKey().GetId()
	})
	return out, nil
}
