package cli

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	recordv1 "sheaf.dev/sheaf/api/sheaf/record/v1"
)

// SortedKeys of a map.
func SortedKeys[K cmp.Ordered, V any](m map[K]V) []K { return slices.Sorted(maps.Keys(m)) }

// DamageJSON is a place of damage as the commands print it.
type DamageJSON struct {
	Group       string   `json:"group"`
	Shard       string   `json:"shard,omitempty"`
	File        string   `json:"file"`
	OffsetBytes int64    `json:"offset_bytes"`
	LengthBytes int64    `json:"length_bytes"`
	What        string   `json:"what"`
	IDs         []string `json:"ids"`
	IDsUnknown  bool     `json:"ids_unknown"`
}

// DamagesJSON turns damages into their printed form.
func DamagesJSON(damages []*recordv1.Damage) []DamageJSON {
	rows := make([]DamageJSON, 0, len(damages))
	for _, d := range damages {
		row := DamageJSON{
			Group: d.GetGroup(), Shard: d.GetShard(), File: d.GetFile(), OffsetBytes: d.GetOffsetBytes(), LengthBytes: d.GetLengthBytes(), What: d.GetWhat(),
			IDs: make([]string, 0, len(d.GetIds())), IDsUnknown: d.GetIdsUnknown(),
		}
		for _, id := range d.GetIds() {
			row.IDs = append(row.IDs, strconv.FormatInt(id, 10))
		}
		rows = append(rows, row)
	}
	return rows
}

// DamageWords names group, shard where that is told, file, offset, what is bad, and whose ids it hits.
func DamageWords(d *recordv1.Damage) string {
	of := ""
	if d.GetShard() != "" {
		of = " on shard " + d.GetShard()
	}
	return fmt.Sprintf("group %s%s, %s, offset %d, %d bytes: %s%s", d.GetGroup(), of, d.GetFile(), d.GetOffsetBytes(), d.GetLengthBytes(), d.GetWhat(),
		IDsWords(d.GetIds(), d.GetIdsUnknown()))
}

// IDsWords says which records damage hits, as the end of a sentence; empty where it hits none.
func IDsWords(ids []int64, unknown bool) string {
	switch {
	case unknown:
		return "; ids unknown"
	case len(ids) == 0:
		return ""
	case len(ids) == 1:
		return fmt.Sprintf("; id %d", ids[0])
	}
	return "; ids " + strings.Trim(fmt.Sprint(ids), "[]")
}

// Delete deletes a record. The request must carry a request id, as it may be repeated.
func (c *Conn) Delete(ctx context.Context, request *recordv1.DeleteRequest) (*recordv1.DeleteResponse, error) {
	var response *recordv1.DeleteResponse
	err := c.retry(ctx, func() (err error) {
		response, err = c.Records.Delete(ctx, request)
		return err
	})
	return response, err
}

// Versions lists the versions of a record, newest first, at most limit (0: all).
func (c *Conn) Versions(ctx context.Context, key *recordv1.RecordKey, limit int) ([]*recordv1.Record, error) {
	var records []*recordv1.Record
	request := &recordv1.ListVersionsRequest{Key: key}
	for {
		const page = 1000
		request.PageSize = page
		if limit > 0 {
			request.PageSize = int32(min(page, limit-len(records)))
		}
		var response *recordv1.ListVersionsResponse
		err := c.retry(ctx, func() (err error) {
			response, err = c.Records.ListVersions(ctx, request)
			return err
		})
		if err != nil {
			return nil, err
		}
		records = append(records, response.GetVersions()...)
		request.PageToken = response.GetNextPageToken()
		if request.GetPageToken() == "" || (limit > 0 && len(records) >= limit) {
			return records, nil
		}
	}
}

// Find asks all groups for an id.
func (c *Conn) Find(ctx context.Context, id int64) ([]*recordv1.Record, error) {
	var response *recordv1.FindResponse
	err := c.retry(ctx, func() (err error) {
		response, err = c.Records.Find(ctx, &recordv1.FindRequest{Id: id})
		return err
	})
	return response.GetRecords(), err
}
