package archivecli

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"strconv"
	"strings"
	"time"

	"github.com/google/uuid"

	"sheaf.dev/sheaf/client"
	"sheaf.dev/sheaf/client/call/routing"
	"sheaf.dev/sheaf/internal/archive/object"
	"sheaf.dev/sheaf/internal/archive/reader"
	"sheaf.dev/sheaf/internal/call/cursor"
	"sheaf.dev/sheaf/internal/local/cli"
	"sheaf.dev/sheaf/internal/storage/group/format"
)

// CatOptions specify the record and the version that Cat prints.
type CatOptions struct {
	ID    string
	Group string // name or UUID; if empty, the group that Hash routing selects, or the only group with this record
	At    string // in the syntax of ParseAt; if empty, the end of the archive
}

// At is a point in a group's history: an index, a time, a named point of the archive, or the end of the archive. At
// most one of its exported fields is set.
type At struct {
	Time  time.Time // zero if the point is not a time
	Index uint64    // 0 if the point is not an index
	Point string    // name of a point of the archive; empty if it is another kind of point

	groups map[uuid.UUID]uint64 // for each group that existed at Point, the index in its history
}

// ParseAt parses a point: a time in the format of RFC 3339, "index:" followed by an index, or "point:" followed by a
// name. The empty text is the end of the archive.
func ParseAt(text string) (at At, err error) {
	if text == "" {
		return at, nil
	}
	if name, ok := strings.CutPrefix(text, "point:"); ok {
		if err := object.CheckPointName(name); err != nil {
			return at, cli.Usagef("%q: %w", text, err)
		}
		at.Point = name
		return at, nil
	}
	if digits, ok := strings.CutPrefix(text, "index:"); ok {
		at.Index, err = strconv.ParseUint(digits, 10, 62)
		if err != nil || at.Index == 0 {
			return at, cli.Usagef("%q: give a number from 1 on behind index:", text)
		}
		return at, nil
	}
	at.Time, err = time.Parse(time.RFC3339, text)
	if err != nil || at.Time.Year() < 1970 || at.Time.Year() > 2200 {
		return at, cli.Usagef("%q is not a point in time: give one such as 2026-11-01T12:00:00Z, index:NUMBER or "+
			"point:NAME", text)
	}
	return at, nil
}

// in resolves a named point of the archive. It returns any other kind of point unchanged.
func (at At) in(ctx context.Context, a *reader.Archive) (At, error) {
	if at.Point == "" {
		return at, nil
	}
	groups, err := a.Point(ctx, at.Point)
	at.groups = groups
	return at, coded(err)
}

// has reports whether a group existed at the point. For a point that is not a named point of the archive, it always
// returns true.
func (at At) has(g *reader.Group) bool {
	_, ok := at.groups[g.UUID]
	return ok || at.Point == ""
}

// index returns the index in a group's history that corresponds to the point.
func (at At) index(ctx context.Context, g *reader.Group) (uint64, error) {
	switch {
	case !at.has(g):
		return 0, cli.NotFoundf("%s did not exist at the point %s", g, at.Point)
	case at.Point != "":
		return at.groups[g.UUID], nil
	case at.Index != 0:
		return at.Index, nil
	case !at.Time.IsZero():
		return g.At(ctx, at.Time)
	}
	return g.Through, nil
}

// Cat writes to Out the data that a record had at a point. As JSON, it writes one line with the metadata and the data,
// which is in base64. If Cat returns an error, the data that it wrote is incomplete.
func Cat(ctx context.Context, out *cli.Output, s Source, opts CatOptions) error {
	id, err := cli.ParseID(opts.ID)
	if err != nil {
		return err
	}
	at, err := ParseAt(opts.At)
	if err != nil {
		return err
	}
	a, err := s.open(ctx)
	if err != nil {
		return err
	}
	if at, err = at.in(ctx, a); err != nil {
		return err
	}
	groups, err := groupsOf(ctx, a, id, opts)
	if err != nil {
		return coded(err)
	}
	v, g, err := find(ctx, groups, id, at)
	if err != nil {
		return fmt.Errorf("cat %d: %w", id, err)
	}
	src, err := v.Open(ctx)
	if err != nil {
		return fmt.Errorf("cat %d: %w", id, err)
	}
	return errors.Join(write(out, v, g, src), src.Close())
}

// groupsOf returns the groups that may contain a record.
func groupsOf(ctx context.Context, a *reader.Archive, id int64, opts CatOptions) ([]*reader.Group, error) {
	name := opts.Group
	if h := a.Header(); name == "" && h.Routing == "hash" {
		name = strconv.Itoa(routing.Routing{Mode: routing.Hash, Groups: h.Groups}.GroupOf(id))
	}
	if name == "" {
		return a.Groups(ctx)
	}
	g, err := a.Find(ctx, name)
	return []*reader.Group{g}, err
}

// find returns the version that a record had at a point. If several groups have the record, find returns an error,
// because the caller has to choose one of them. It also returns an error if the state of one of the groups at this
// point cannot be read, because that group may have the record, too. It ignores groups that had been deleted by then.
func find(ctx context.Context, groups []*reader.Group, id int64, at At) (v reader.Version, in *reader.Group,
	err error) {
	for _, g := range groups {
		if len(groups) > 1 && (!at.has(g) || g.Gone && at.Point == "" && (at.Time.IsZero() || at.Time.After(g.Covered))) {
			continue
		}
		index, err := at.index(ctx, g)
		if err != nil {
			return v, nil, err
		}
		one, ok, err := g.Record(ctx, id, index)
		switch {
		case err != nil:
			return v, nil, err
		case ok && in != nil:
			return v, nil, cli.Usagef("the groups %s and %s have this record: give the group", in.Name, g.Name)
		case ok:
			v, in = one, g
		}
	}
	if in == nil {
		return v, nil, cli.NotFoundf("the archive has no such record as of this point")
	}
	return v, in, nil
}

func write(out *cli.Output, v reader.Version, g *reader.Group, src io.Reader) error {
	if !out.JSON {
		_, err := io.Copy(out.Out, src)
		return err
	}
	record, err := recordOf(v, g)
	if err != nil {
		return err
	}
	// A line of JSON is written only after all the data was read, so that an error does not leave half a line.
	var data bytes.Buffer
	if _, err := io.Copy(&data, src); err != nil {
		return err
	}
	return cli.WriteJSONLine(out.Out, record, &data)
}

// recordOf converts a version to the type with which the commands of sheaf print records.
func recordOf(v reader.Version, g *reader.Group) (client.Record, error) {
	e := &v.Entry
	attributes, err := format.DecodeAttributes(e.Attributes)
	if err != nil {
		return client.Record{}, fmt.Errorf("%s: index %d: %w", g, e.Index, err)
	}
	return client.Record{
		Key: client.Key{Group: g.Name, ID: e.ID}, Version: cursor.Version(e.Index), Size: v.Size,
		Timestamp: time.Unix(0, e.Timestamp).UTC(), CommitTime: time.Unix(0, e.CommitTime).UTC(), Attributes: attributes,
		Deleted: v.Deleted(),
	}, nil
}
