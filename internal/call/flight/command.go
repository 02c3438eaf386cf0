package flight

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
)

// These are the limits of commands.
const (
	IDsMax          = 65536
	commandBytesMax = 1 << 20
)

// GetCommand reads the ids of a ticket in their order.
type GetCommand struct {
	Group   string
	View    string // empty: the newest versions
	Columns Columns
	ids     []byte
}

// Len returns the number of ids.
func (g *GetCommand) Len() int { return len(g.ids) / 8 }

// ID returns an id by its position.
func (g *GetCommand) ID(i int) int64 { return int64(binary.LittleEndian.Uint64(g.ids[8*i:])) }

// NewGet returns a command that reads all columns of ids. It has no limit on their number.
func NewGet(group string, ids []int64) *GetCommand {
	out := &GetCommand{Group: group, Columns: AllColumns, ids: make([]byte, 0, 8*len(ids))}
	for _, id := range ids {
		out.ids = binary.LittleEndian.AppendUint64(out.ids, uint64(id))
	}
	return out
}

// ScanCommand plans a scan.
type ScanCommand struct {
	Groups     []string
	Columns    Columns
	SplitBytes int64
	View       string // empty: new snapshots
	Shared     bool   // whether any caller may read the endpoints who may scan their groups
}

// PutCommand says to which group the rows of a stream of puts belong. An empty group means that the rows, or their ids,
// name it.
type PutCommand struct{ Group string }

// TooManyError is the error for a ticket with too many ids.
type TooManyError struct{ IDs int }

// Error implements error.
func (e *TooManyError) Error() string {
	return fmt.Sprintf("get: has %d ids: give 1 to %d", e.IDs, IDsMax)
}

// command is the JSON of all commands.
type command struct {
	Get *struct {
		Group   string    `json:"group"`
		View    *string   `json:"view"`
		Columns *[]string `json:"columns"`
	} `json:"get"`
	Scan *struct {
		Groups     []string  `json:"groups"`
		View       *string   `json:"view"`
		Columns    *[]string `json:"columns"`
		SplitBytes int64     `json:"split_bytes"`
		Shared     bool      `json:"shared"`
	} `json:"scan"`
	Put *struct {
		Group string `json:"group"`
	} `json:"put"`
}

// decode decodes the JSON at the start of b, and returns the bytes behind it.
func decode(b []byte) (c command, rest []byte, err error) {
	d := json.NewDecoder(bytes.NewReader(b[:min(len(b), commandBytesMax)]))
	d.DisallowUnknownFields()
	if err := d.Decode(&c); err != nil {
		return c, nil, fmt.Errorf("the command is not one of docs/flight.md: %.200s", err.Error())
	}
	return c, b[d.InputOffset():], nil
}

// viewOf returns the view that a command names. A name that is given is not empty: whoever has lost the name of a view
// must not read something else.
func viewOf(view *string) (string, error) {
	switch {
	case view == nil:
		return "", nil
	case *view == "":
		return "", errors.New("view: is empty: give the id of a view, or leave it out")
	}
	return *view, nil
}

// columnsOf returns the set of the columns with the given names.
func columnsOf(names *[]string) (set Columns, err error) {
	if names == nil {
		return AllColumns, nil
	}
	for _, name := range *names {
		i := slices.Index(columnNames[:], name)
		if i < 0 {
			return 0, fmt.Errorf("columns: %.40q is none of %s", name, strings.Join(columnNames[:], ", "))
		}
		set |= 1 << i
	}
	return set | alwaysFilled, nil
}

// only returns an error unless want is the only command in c.
func (c *command) only(want string) error {
	has := map[string]bool{"get": c.Get != nil, "scan": c.Scan != nil, "put": c.Put != nil}
	for name, given := range has {
		if given != (name == want) {
			return fmt.Errorf("the command of this call is {%q: {...}}, and nothing else", want)
		}
	}
	return nil
}

// ParseGet parses the command and the ids of a ticket of DoGet. The result refers to the ticket.
func ParseGet(ticket []byte) (*GetCommand, error) {
	c, ids, err := decode(ticket)
	if err == nil {
		err = c.only("get")
	}
	if err != nil {
		return nil, err
	}
	view, err := viewOf(c.Get.View)
	if err != nil {
		return nil, err
	}
	out := &GetCommand{Group: c.Get.Group, View: view, ids: ids}
	if out.Columns, err = columnsOf(c.Get.Columns); err != nil {
		return nil, err
	}
	if len(ids)%8 != 0 {
		return nil, fmt.Errorf("get: %d bytes follow the command, which is no multiple of 8: give each id as 8 bytes, "+
			"little-endian, and nothing between the command and the ids", len(ids))
	}
	if n := out.Len(); n < 1 || n > IDsMax {
		return nil, &TooManyError{n}
	}
	return out, nil
}

// parseAlone parses a command behind which nothing follows.
func parseAlone(b []byte, want string) (command, error) {
	c, rest, err := decode(b)
	if err == nil {
		err = c.only(want)
	}
	if err == nil && len(bytes.TrimSpace(rest)) > 0 {
		err = fmt.Errorf("%d bytes follow the command", len(rest))
	}
	return c, err
}

// ParseScan parses the command of GetFlightInfo.
func ParseScan(b []byte) (*ScanCommand, error) {
	c, err := parseAlone(b, "scan")
	if err != nil {
		return nil, err
	}
	view, err := viewOf(c.Scan.View)
	if err != nil {
		return nil, err
	}
	columns, err := columnsOf(c.Scan.Columns)
	if err != nil {
		return nil, err
	}
	return &ScanCommand{Groups: c.Scan.Groups, Columns: columns, SplitBytes: c.Scan.SplitBytes, View: view,
		Shared: c.Scan.Shared}, nil
}

// ParsePut parses the command of DoPut.
func ParsePut(b []byte) (*PutCommand, error) {
	c, err := parseAlone(b, "put")
	if err != nil {
		return nil, err
	}
	return &PutCommand{Group: c.Put.Group}, nil
}
