// Package archivecli implements the commands of sheaf-archive that read or prune an archive, except for their flags.
// The caller of a command passes the bucket and the output. Errors have the exit codes of package cli.
package archivecli

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"strconv"
	"strings"
	"time"

	"github.com/google/uuid"

	"sheaf.dev/sheaf/internal/archive/bucket"
	"sheaf.dev/sheaf/internal/archive/object"
	"sheaf.dev/sheaf/internal/archive/reader"
	"sheaf.dev/sheaf/internal/base/units"
	"sheaf.dev/sheaf/internal/local/cli"
)

// Source specifies the archive that a command reads.
type Source struct {
	Bucket bucket.Bucket // the bucket, or the part of it below the URL
	Store  string        // UUID; if empty, the only store at the URL
	Keys   object.Keys   // keys of the archive, if it is encrypted; the first one encrypts new objects
	// NoUse makes Reading leave the archive unprotected from pruning, for callers whose account cannot create objects.
	NoUse bool
}

// store returns the UUID of the store that s selects.
func (s Source) store(ctx context.Context) (uuid.UUID, error) {
	if s.Store != "" {
		store, err := uuid.Parse(s.Store)
		if err != nil {
			return store, cli.Usagef("%q is not the UUID of a store: `sheaf-archive list` shows them", s.Store)
		}
		return store, nil
	}
	stores, err := reader.Stores(ctx, s.Bucket)
	if err != nil {
		return uuid.Nil, fmt.Errorf("listing the stores of the URL: %w", err)
	}
	switch len(stores) {
	case 0:
		return uuid.Nil, cli.NotFoundf("the URL has no archive")
	case 1:
		return stores[0], nil
	}
	return uuid.Nil, cli.Usagef("the URL has archives of %d stores: give the UUID of one, such as %s", len(stores),
		stores[0])
}

func (s Source) open(ctx context.Context) (*reader.Archive, error) {
	store, err := s.store(ctx)
	if err != nil {
		return nil, err
	}
	a, err := reader.Open(ctx, s.Bucket, store, s.Keys)
	return a, coded(err)
}

// coded adds exit code 3 to an error about a missing object. It returns other errors unchanged.
func coded(err error) error {
	if errors.Is(err, fs.ErrNotExist) {
		return cli.NotFoundf("%w", err)
	}
	return err
}

// StoreRow is a store in the form in which List prints it.
type StoreRow struct {
	Store    string     `json:"store"`
	Name     string     `json:"name"`
	Created  string     `json:"created"`
	Routing  string     `json:"routing"`
	Groups   []GroupRow `json:"groups"`
	FirstLog uint64     `json:"firstLog"`
	LastLog  uint64     `json:"lastLog"`
	// Covered is the time up to which all groups are archived. It is empty if the time is not known.
	Covered string `json:"covered,omitempty"`
	// Error says why the archive of the store cannot be read. It is empty if the archive can be read.
	Error string `json:"error,omitempty"`
}

// GroupRow is a group in the form in which List prints it.
type GroupRow struct {
	Group   string        `json:"group"`
	UUID    string        `json:"uuid"`
	Floor   uint64        `json:"floor"`
	Through uint64        `json:"through"`
	Covered string        `json:"covered,omitempty"`
	Holes   []object.Hole `json:"holes,omitempty"`
	Gone    bool          `json:"gone,omitempty"`
	Missing string        `json:"missing,omitempty"`
}

// List prints the stores at a URL and their groups. If a store cannot be read, its row contains the error, and List
// returns an error at the end.
func List(ctx context.Context, out *cli.Output, s Source) error {
	stores, err := reader.Stores(ctx, s.Bucket)
	if err != nil {
		return fmt.Errorf("listing the stores of the URL: %w", err)
	}
	rows := []StoreRow{}
	failed := 0
	for _, store := range stores {
		if s.Store != "" && s.Store != store.String() {
			continue
		}
		row, err := storeRow(ctx, s, store)
		if err != nil {
			if ctx.Err() != nil {
				return err
			}
			row.Error = err.Error()
			failed++
		}
		rows = append(rows, row)
	}
	if len(rows) == 0 {
		return cli.NotFoundf("the URL has no archive%s", ofStore(s.Store))
	}
	if err := out.WriteRows(rows, listTable(rows)); err != nil {
		return err
	}
	if failed > 0 {
		return fmt.Errorf("the archives of %s cannot be read", units.Count(int64(failed), "store", "stores"))
	}
	return nil
}

func ofStore(store string) string {
	if store == "" {
		return ""
	}
	return " of store " + store
}

func storeRow(ctx context.Context, s Source, store uuid.UUID) (StoreRow, error) {
	row := StoreRow{Store: store.String(), Groups: []GroupRow{}}
	a, err := reader.Open(ctx, s.Bucket, store, s.Keys)
	if err != nil {
		return row, err
	}
	h := a.Header()
	row.Name, row.Routing, row.Created = h.Store, h.Routing, cli.FormatTime(time.Unix(0, h.Created))
	row.FirstLog, row.LastLog = a.Logs()
	groups, err := a.Groups(ctx)
	if err != nil {
		return row, err
	}
	for _, g := range groups {
		row.Groups = append(row.Groups, groupRow(g))
	}
	row.Covered = formatTime(reader.Covered(groups))
	return row, nil
}

func groupRow(g *reader.Group) GroupRow {
	return GroupRow{
		Group: g.Name, UUID: g.UUID.String(), Floor: g.Floor, Through: g.Through, Covered: formatTime(g.Covered),
		Holes: g.Holes, Gone: g.Gone, Missing: g.Missing,
	}
}

// formatTime formats a time. It returns "" if the time is not known.
func formatTime(t time.Time) string {
	if t.IsZero() {
		return ""
	}
	return cli.FormatTime(t)
}

func listTable(rows []StoreRow) cli.Table {
	t := cli.Table{Header: []string{"STORE", "NAME", "GROUP", "FLOOR", "THROUGH", "ARCHIVED UP TO", "STATE"}}
	for _, row := range rows {
		if row.Error != "" || len(row.Groups) == 0 {
			state := cli.Text("no groups")
			if row.Error != "" {
				state = cli.Cell{Text: strings.ReplaceAll(row.Error, "\n", "; "), Colour: cli.Red}
			}
			t.Rows = append(t.Rows, []cli.Cell{cli.Text(row.Store), cli.Text(row.Name), cli.Text(""), cli.Number(""),
				cli.Number(""), cli.Text(""), state})
		}
		for i := range row.Groups {
			g := &row.Groups[i]
			t.Rows = append(t.Rows, []cli.Cell{
				cli.Text(row.Store), cli.Text(row.Name), cli.Text(g.Group), cli.Number(strconv.FormatUint(g.Floor, 10)),
				cli.Number(strconv.FormatUint(g.Through, 10)), cli.Text(g.Covered), g.state(),
			})
		}
	}
	return t
}

// state describes anything unusual about a group.
func (g *GroupRow) state() cli.Cell {
	switch {
	case g.Missing != "":
		return cli.Cell{Text: g.Missing, Colour: cli.Red}
	case g.Gone:
		return cli.Text("deleted")
	case len(g.Holes) > 0:
		words := make([]string, 0, len(g.Holes))
		for _, h := range g.Holes {
			words = append(words, fmt.Sprintf("%d to %d", h.From, h.To))
		}
		return cli.Cell{Text: "holes: " + units.Some(words, 3), Colour: cli.Yellow}
	}
	return cli.Text("")
}
