package archivecli

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"strconv"
	"strings"
	"time"

	"sheaf.dev/sheaf/client"
	"sheaf.dev/sheaf/internal/archive/object"
	"sheaf.dev/sheaf/internal/archive/reader"
	"sheaf.dev/sheaf/internal/base/units"
	"sheaf.dev/sheaf/internal/local/cli"
)

// ShowOptions specify what Show prints: an object, the objects of a group, or the versions of a record.
type ShowOptions struct {
	Object string // name in the store's folder, such as log/00/0000000000000000001
	Group  string // name or UUID
	ID     string // id of a record of Group; if empty, Show prints the group's objects
}

// Show prints an object, a group or a record of an archive.
func Show(ctx context.Context, out *cli.Output, s Source, opts ShowOptions) error {
	if (opts.Object == "") == (opts.Group == "") {
		return cli.Usagef("give the name of an object, or --group")
	}
	if opts.ID != "" && opts.Group == "" {
		return cli.Usagef("give --group beside the id of a record")
	}
	a, err := s.open(ctx)
	if err != nil {
		return err
	}
	if opts.Object != "" {
		return showObject(ctx, out, a, opts.Object)
	}
	g, err := a.Find(ctx, opts.Group)
	if err != nil {
		return coded(err)
	}
	if opts.ID != "" {
		return showRecord(ctx, out, g, opts.ID)
	}
	return showGroup(ctx, out, g)
}

// objectJSON is an object in the form in which Show prints it.
type objectJSON struct {
	Object       string        `json:"object"`
	Kind         string        `json:"kind"`
	ID           string        `json:"id"`
	Bytes        int64         `json:"bytes"`
	ContentBytes int64         `json:"contentBytes"`
	Encrypted    bool          `json:"encrypted,omitempty"`
	KeyID        string        `json:"keyId,omitempty"`
	Header       object.Header `json:"header"`
}

func showObject(ctx context.Context, out *cli.Output, a *reader.Archive, name string) error {
	o, err := a.Object(ctx, name)
	if errors.Is(err, fs.ErrInvalid) {
		return cli.Usagef("%w", err)
	}
	if err != nil {
		return coded(err)
	}
	shown := objectJSON{
		Object: name, Kind: o.Envelope.Kind.String(), ID: o.Envelope.ID.String(), Bytes: o.Envelope.ObjectBytes(),
		ContentBytes: o.Envelope.ContentBytes, Encrypted: o.Envelope.Cipher != object.CipherNone, Header: o.Header,
	}
	if shown.Encrypted {
		shown.KeyID = fmt.Sprintf("%x", o.Envelope.KeyID)
	}
	if l, ok := o.Header.(*object.Log); ok && !out.JSON {
		return out.WriteTable(piecesTable(l))
	}
	if p, ok := o.Header.(*object.Point); ok && !out.JSON {
		return showPoint(out, p)
	}
	return out.WriteJSON(shown) // the object also stores its header as JSON
}

// showPoint prints a point with the Kubernetes objects that described the store, as YAML that kubectl can read.
func showPoint(out *cli.Output, p *object.Point) error {
	row := pointRow(p, false)
	if err := out.Print(row, "# point %s: %s, in %s\n", row.Name, row.Time,
		units.Count(int64(row.Groups), "group", "groups")); err != nil {
		return err
	}
	for _, f := range p.Facts {
		if err := out.Print(f, "---\n# %s\n%s\n", strings.ReplaceAll(f.Name, "\n", " "),
			strings.TrimRight(f.YAML, "\n")); err != nil {
			return err
		}
	}
	return nil
}

func piecesTable(l *object.Log) cli.Table {
	t := cli.Table{Header: []string{"GROUP", "AFTER", "FIRST", "LAST", "THROUGH", "RECORDS", "BYTES", "READ AT", "STATE"}}
	for i := range l.Pieces {
		p := &l.Pieces[i]
		row := GroupRow{Holes: p.Holes, Gone: p.Gone}
		t.Rows = append(t.Rows, []cli.Cell{
			cli.Text(p.Name), number(p.After), number(p.First), number(p.Last), number(p.Through),
			cli.Number(cli.FormatCount(p.Records)), cli.Number(cli.FormatBytes(p.Bytes)), cli.Text(unixTime(p.ReadAt)),
			row.state(),
		})
	}
	return t
}

func number(n uint64) cli.Cell { return cli.Number(strconv.FormatUint(n, 10)) }

// unixTime formats a time in Unix nanoseconds. It returns "" for 0.
func unixTime(nanos int64) string {
	if nanos == 0 {
		return ""
	}
	return cli.FormatTime(time.Unix(0, nanos))
}

// groupJSON is a group with its objects, in the form in which Show prints it.
type groupJSON struct {
	GroupRow
	Sources []sourceJSON `json:"sources"`
}

// sourceJSON is a segment, or a piece of a log object.
type sourceJSON struct {
	Object      string `json:"object"`
	Bytes       int64  `json:"bytes"`
	First       uint64 `json:"first"`
	Last        uint64 `json:"last"`
	Records     int64  `json:"records"`
	FirstCommit string `json:"firstCommit,omitempty"`
	LastCommit  string `json:"lastCommit,omitempty"`
}

func showGroup(ctx context.Context, out *cli.Output, g *reader.Group) error {
	shown := groupJSON{GroupRow: groupRow(g), Sources: []sourceJSON{}}
	t := cli.Table{Header: []string{"OBJECT", "FIRST", "LAST", "RECORDS", "BYTES", "FROM", "TO"}}
	for s, err := range g.Sources(ctx) {
		if err != nil {
			return err
		}
		row := sourceJSON{
			Object: s.Object, Bytes: s.Bytes, First: s.First, Last: s.Last, Records: s.Records,
			FirstCommit: unixTime(s.FirstCommit), LastCommit: unixTime(s.LastCommit),
		}
		shown.Sources = append(shown.Sources, row)
		t.Rows = append(t.Rows, []cli.Cell{
			cli.Text(row.Object), number(row.First), number(row.Last), cli.Number(cli.FormatCount(row.Records)),
			cli.Number(cli.FormatBytes(row.Bytes)), cli.Text(row.FirstCommit), cli.Text(row.LastCommit),
		})
	}
	if err := out.WriteRows(shown, t); err != nil {
		return err
	}
	if state := shown.state(); state.Text != "" {
		out.Sayf("%s: %s", g, state.Text)
	}
	out.Sayf("%s: it can be read as of index %d to %d, and is archived up to %s", g, g.Floor, g.Through,
		words(shown.Covered, "a time that is not known"))
	return nil
}

func words(text, otherwise string) string {
	if text == "" {
		return otherwise
	}
	return text
}

func showRecord(ctx context.Context, out *cli.Output, g *reader.Group, text string) error {
	id, err := cli.ParseID(text)
	if err != nil {
		return err
	}
	versions, err := g.Versions(ctx, id)
	if err != nil {
		return err
	}
	if len(versions) == 0 {
		return cli.NotFoundf("show %d: %s has no version of it", id, g)
	}
	var records []client.Record
	rows := make([]cli.RecordJSON, 0, len(versions))
	for i := len(versions) - 1; i >= 0; i-- { // the newest first, as in the output of sheaf versions
		r, err := recordOf(versions[i], g)
		if err != nil {
			return err
		}
		records, rows = append(records, r), append(rows, cli.JSONOf(r))
	}
	return out.WriteRows(rows, cli.RecordTable(records))
}
