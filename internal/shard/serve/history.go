package serve

import (
	"context"
	"errors"

	"sheaf.dev/sheaf/client/recordv1"
	"sheaf.dev/sheaf/internal/call/cursor"
	"sheaf.dev/sheaf/internal/placement"
	"sheaf.dev/sheaf/internal/security/access"
	"sheaf.dev/sheaf/internal/shard/answer"
	"sheaf.dev/sheaf/internal/storage/group"
)

// These are the page sizes of ListVersions.
const (
	pageSizeDefault = 100
	pageSizeMax     = 1000
)

// ListVersions implements RecordService.
func (s *recordServer) ListVersions(ctx context.Context, in *recordv1.ListVersionsRequest) (
	*recordv1.ListVersionsResponse, error) {
	var v answer.Violations
	sv, err := s.find(ctx, access.Get, in.GetKey(), in.GetRoutingEpoch(), &v, "key")
	id, n := in.GetKey().GetId(), min(int(in.GetPageSize()), pageSizeMax)
	if n < 0 {
		v.Add("page_size", "is %d: give 1 to %d, or 0 for %d", n, pageSizeMax, pageSizeDefault)
	}
	if n == 0 {
		n = pageSizeDefault
	}
	if err := v.Or(err); err != nil {
		return nil, err
	}
	below, err := pageBelow(ctx, sv.Name(), in)
	if err != nil {
		return nil, err
	}
	w := answer.Where{Group: sv.Name(), ID: id}
	tenant, err := enter(ctx, sv.Tenant(), w, 0)
	if err != nil {
		return nil, err
	}
	defer leave(tenant, 0)
	if err := sv.Barrier(ctx); err != nil {
		return nil, answer.Of(err, w)
	}
	// One version more than requested is read, to learn whether another page follows.
	records, err := sv.Log().Versions(id, below, n+1)
	if err != nil {
		return nil, answer.Of(err, w)
	}
	out := &recordv1.ListVersionsResponse{}
	if len(records) > n {
		records = records[:n]
		token := cursor.PageToken(id, records[n-1].Index)
		if out.NextPageToken, err = access.SignPage(ctx, sv.Name(), token); err != nil {
			return nil, err
		}
	}
	for i := range records {
		record := &recordv1.Record{}
		if err := fillRecord(record, w, &records[i], nil); err != nil {
			return nil, err
		}
		out.Versions = append(out.Versions, record)
	}
	if len(out.Versions) == 0 && below == 0 {
		return nil, answer.Of(group.ErrNotFound, w)
	}
	return out, nil
}

// pageBelow returns the index below which the page of a request begins. 0 means that the page begins with the newest
// version.
func pageBelow(ctx context.Context, group string, in *recordv1.ListVersionsRequest) (below uint64, err error) {
	token, err := access.OpenPage(ctx, group, in.GetPageToken())
	if err != nil {
		return 0, notOpened("page_token", err)
	}
	if token == "" {
		return 0, nil
	}
	if below, err = cursor.ParsePageToken(token, in.GetKey().GetId()); err != nil {
		return 0, answer.Invalid("page_token", "is %v for this record", err)
	}
	return below, nil
}

// Find implements RecordService. It searches this shard's groups.
func (s *recordServer) Find(ctx context.Context, in *recordv1.FindRequest) (*recordv1.FindResponse, error) {
	out := &recordv1.FindResponse{}
	var names []string
	if routing := s.shard.Routing(); routing.Mode == placement.Hash {
		names = []string{placement.GroupName(routing.GroupOf(in.GetId()))}
		if err := access.May(ctx, access.Get, names[0]); err != nil {
			return nil, err
		}
	} else {
		if err := access.May(ctx, access.Get, ""); err != nil {
			return nil, err
		}
		var known bool
		if names, known = s.shard.Groups(); !known {
			return nil, answer.Loading("(all)", 0)
		}
	}
	for _, name := range names {
		if s.shard.IsJoining(name) {
			continue // a joining replica has never led the group, and the caller asks the leader as well
		}
		sv, err := s.shard.Group(ctx, name, 0)
		if err != nil {
			return nil, err
		}
		w := answer.Where{Group: name, ID: in.GetId()}
		if err := sv.ReadHere(ctx); err != nil {
			return nil, answer.Of(err, w)
		}
		rec, err := sv.Log().Get(in.GetId(), group.GetOptions{MetadataOnly: true})
		if errors.Is(err, group.ErrNotFound) {
			continue
		}
		if err != nil {
			return nil, answer.Of(err, w)
		}
		record := &recordv1.Record{}
		if err := fillRecord(record, w, &rec, nil); err != nil {
			return nil, err
		}
		out.Records = append(out.Records, record)
	}
	return out, nil
}
