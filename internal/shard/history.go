package shard

import (
	"context"
	"errors"
	"maps"
	"slices"

	recordv1 "sheaf.dev/sheaf/api/sheaf/record/v1"
	"sheaf.dev/sheaf/internal/group"
	"sheaf.dev/sheaf/internal/placement"
	"sheaf.dev/sheaf/internal/shard/cursor"
)

// Page sizes of ListVersions.
const (
	pageSizeDefault = 100
	pageSizeMax     = 1000
)

// ListVersions implements RecordService.
func (s *recordServer) ListVersions(ctx context.Context, in *recordv1.ListVersionsRequest) (*recordv1.ListVersionsResponse, error) {
	var v violations
	g, sv, err := s.find(in.GetKey(), in.GetRoutingEpoch(), &v, "key")
	id, n := in.GetKey().GetId(), int(in.GetPageSize())
	if n < 0 || n > pageSizeMax {
		v.add("page_size", "is %d: give 1 to %d, or 0 for %d", n, pageSizeMax, pageSizeDefault)
	}
	if n == 0 {
		n = pageSizeDefault
	}
	var below uint64
	if in.GetPageToken() != "" {
		var bad error
		if below, bad = cursor.ParsePageToken(in.GetPageToken(), id); bad != nil {
			v.add("page_token", "is %v for this record", bad)
		}
	}
	if invalid := v.err(); invalid != nil {
		return nil, invalid
	}
	if err != nil {
		return nil, err
	}
	w := where{group: g.name, id: id}
	if err := s.barrier(ctx, sv); err != nil {
		return nil, answerError(err, w)
	}
	// One more than asked for tells whether there is a next page.
	records, err := sv.log.Versions(id, below, n+1)
	if err != nil {
		return nil, answerError(err, w)
	}
	out := &recordv1.ListVersionsResponse{}
	if len(records) > n {
		records = records[:n]
		out.NextPageToken = cursor.PageToken(id, records[n-1].Index)
	}
	for i := range records {
		record := &recordv1.Record{}
		if err := fillRecord(record, w, &records[i], nil); err != nil {
			return nil, err
		}
		out.Versions = append(out.Versions, record)
	}
	if len(out.Versions) == 0 && below == 0 {
		return nil, answerError(group.ErrNotFound, w)
	}
	return out, nil
}

// Find implements RecordService: it asks the groups of this shard.
func (s *recordServer) Find(ctx context.Context, in *recordv1.FindRequest) (*recordv1.FindResponse, error) {
	out := &recordv1.FindResponse{}
	r := s.routes.Load()
	var names []string
	if s.meta.Routing.Mode == placement.Hash {
		names = []string{placement.GroupName(s.meta.Routing.GroupOf(in.GetId()))}
	} else {
		if r == nil {
			return nil, loadingError("(all)", 0)
		}
		names = slices.Sorted(maps.Keys(r.byName))
	}
	for _, name := range names {
		if s.isJoining(r, name) {
			continue // it never led: whoever does is asked too
		}
		_, sv, err := s.findGroup(r, name, 0)
		if err != nil {
			return nil, err
		}
		w := where{group: name, id: in.GetId()}
		if err := sv.readHere(ctx); err != nil {
			return nil, answerError(err, w)
		}
		rec, err := sv.log.Get(in.GetId(), group.GetOptions{MetadataOnly: true})
		if errors.Is(err, group.ErrNotFound) {
			continue
		}
		if err != nil {
			return nil, answerError(err, w)
		}
		record := &recordv1.Record{}
		if err := fillRecord(record, w, &rec, nil); err != nil {
			return nil, err
		}
		out.Records = append(out.Records, record)
	}
	return out, nil
}
