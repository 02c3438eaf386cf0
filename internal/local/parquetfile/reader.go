package parquetfile

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math"

	"github.com/parquet-go/parquet-go"
	"github.com/parquet-go/parquet-go/deprecated"
	"github.com/parquet-go/parquet-go/format"
)

// footerBytesMax is the size of the largest footer that is read. A footer describes the columns of each row group.
const footerBytesMax = 256 << 20

// trailerBytes is the size of what follows the footer: its length, and "PAR1".
const trailerBytes = 8

// File is an open Parquet file. A File must not be used concurrently.
type File struct{ file *parquet.File }

// Open reads the footer of a file. The reader must stay open as long as the File is used. An error does not name the
// file.
func Open(r io.ReaderAt, size int64) (*File, error) {
	if err := checkFooter(r, size); err != nil {
		return nil, err
	}
	f := &File{}
	err := guarded(func() (err error) {
		f.file, err = parquet.OpenFile(r, size, parquet.SkipPageIndex(true), parquet.SkipBloomFilters(true),
			parquet.ReadBufferSize(64<<10))
		return err
	})
	if err != nil {
		return nil, err
	}
	return f, nil
}

// checkFooter makes sure that a file has the shape of a Parquet file, so that a wrong length takes no memory.
func checkFooter(r io.ReaderAt, size int64) error {
	const magic = "PAR1"
	if size < int64(len(magic)+trailerBytes) {
		return fmt.Errorf("it is no Parquet file: it has %d bytes", size)
	}
	var head [4]byte
	var tail [trailerBytes]byte
	if _, err := r.ReadAt(head[:], 0); err != nil {
		return err
	}
	if _, err := r.ReadAt(tail[:], size-trailerBytes); err != nil && !errors.Is(err, io.EOF) {
		return err
	}
	switch {
	case string(head[:]) == "PARE" || string(tail[4:]) == "PARE":
		return errors.New("it is encrypted, and only plain Parquet files can be read")
	case string(head[:]) != magic:
		return errors.New("it is no Parquet file: it does not begin with PAR1")
	case string(tail[4:]) != magic:
		return errors.New("it is cut short: it does not end with PAR1")
	}
	if n := int64(binary.LittleEndian.Uint32(tail[:4])); n > size-int64(len(magic)+trailerBytes) || n > footerBytesMax {
		return fmt.Errorf("its footer is damaged: it says that it has %d bytes", n)
	}
	return nil
}

// Rows returns the number of rows that the footer names.
func (f *File) Rows() int64 { return f.file.NumRows() }

// Selection names the columns to read. Group may be empty.
type Selection struct{ ID, Data, Group string }

// Row is a row of a file.
type Row struct {
	Number int64 // from 0
	ID     int64
	Data   []byte // valid until the function to which the row was passed returns
	Group  string // empty unless a column of groups was selected
	// Bad says why the row cannot be stored: a null or an id that is no int64. Then the other fields, except for Number,
	// have no meaning.
	Bad error
}

// Check returns an error if a selected column does not exist, or has a type that cannot be read.
func (f *File) Check(sel Selection) error {
	_, _, err := f.choose(sel)
	return err
}

// Read passes each row to the function take, in the order of the file, and returns the first error of take. Other
// errors say where the file cannot be read; all rows before that place have been passed.
func (f *File) Read(sel Selection, take func(Row) error) error {
	chosen, unsigned, err := f.choose(sel)
	if err != nil {
		return err
	}
	var first int64
	for _, group := range f.file.RowGroups() {
		if err := readGroup(group, chosen, unsigned, first, take); err != nil {
			return err
		}
		first += group.NumRows()
	}
	return nil
}

// choose finds the columns of a selection: id, data, and the group if there is one.
func (f *File) choose(sel Selection) (chosen []*parquet.Column, unsigned bool, err error) {
	err = guarded(func() error { // a damaged schema has leaves whose types panic
		chosen, unsigned, err = f.find(sel)
		return err
	})
	return chosen, unsigned, err
}

func (f *File) find(sel Selection) (chosen []*parquet.Column, unsigned bool, err error) {
	id, err := f.leaf(sel.ID)
	if err != nil {
		return nil, false, err
	}
	integer, unsigned := integerOf(id.Type())
	if !integer {
		return nil, false, fmt.Errorf("column %q is %v, and ids are integers", sel.ID, id.Type())
	}
	data, err := f.leaf(sel.Data)
	if err != nil {
		return nil, false, err
	}
	if !isBytes(data.Type()) {
		return nil, false, fmt.Errorf("column %q is %v, and data are binary or utf8", sel.Data, data.Type())
	}
	chosen = append(make([]*parquet.Column, 0, 3), id, data)
	if sel.Group == "" {
		return chosen, unsigned, nil
	}
	group, err := f.leaf(sel.Group)
	if err != nil {
		return nil, false, err
	}
	if !isBytes(group.Type()) || group.Type().Kind() != parquet.ByteArray {
		return nil, false, fmt.Errorf("column %q is %v, and groups are utf8", sel.Group, group.Type())
	}
	return append(chosen, group), unsigned, nil
}

// leaf finds a column that is not nested.
func (f *File) leaf(name string) (*parquet.Column, error) {
	column := f.file.Root().Column(name)
	switch {
	case column == nil:
		return nil, fmt.Errorf("it has no column %q", name)
	case !column.Leaf() || column.Repeated():
		return nil, fmt.Errorf("column %q is nested", name)
	}
	return column, nil
}

// logical returns the logical type of a column, or nil.
func logical(t parquet.Type) format.LogicalTypeValue {
	if l := t.LogicalType(); l != nil {
		return l.Value
	}
	return nil
}

// integerOf reports whether a column holds integers, and whether they are unsigned.
func integerOf(t parquet.Type) (integer, unsigned bool) {
	if t.Kind() != parquet.Int32 && t.Kind() != parquet.Int64 {
		return false, false
	}
	switch l := logical(t).(type) {
	case *format.IntType:
		return true, !l.IsSigned
	case nil:
	default:
		return false, false // a date, a time or a decimal
	}
	converted := t.ConvertedType()
	switch {
	case converted == nil:
		return true, false
	case *converted >= deprecated.Uint8 && *converted <= deprecated.Uint64:
		return true, true
	case *converted >= deprecated.Int8 && *converted <= deprecated.Int64:
		return true, false
	}
	return false, false
}

// isBytes reports whether a column holds bytes or text.
func isBytes(t parquet.Type) bool {
	if t.Kind() != parquet.ByteArray && t.Kind() != parquet.FixedLenByteArray {
		return false
	}
	switch logical(t).(type) {
	case *format.DecimalType, *format.Float16Type:
		return false
	}
	converted := t.ConvertedType()
	return converted == nil || *converted != deprecated.Decimal && *converted != deprecated.Interval
}

// readGroup reads the rows of one row group, whose first row has the number first.
func readGroup(group parquet.RowGroup, chosen []*parquet.Column, unsigned bool, first int64,
	take func(Row) error) error {
	var cursors []*cursor
	defer func() {
		for _, c := range cursors {
			c.close()
		}
	}()
	for _, column := range chosen {
		c, err := newCursor(group, column)
		if err != nil {
			return fmt.Errorf("from row %d on: %w", first, err)
		}
		cursors = append(cursors, c)
	}
	values := make([]parquet.Value, len(cursors))
	for i := range group.NumRows() {
		for n, c := range cursors {
			var err error
			if values[n], err = c.next(); err != nil {
				return fmt.Errorf("from row %d on, column %q: %w", first+i, c.name, err)
			}
		}
		if err := take(rowOf(first+i, values, unsigned)); err != nil {
			return err
		}
	}
	return nil
}

// rowOf makes a row of the values of the id, the data, and perhaps the group.
func rowOf(number int64, values []parquet.Value, unsigned bool) Row {
	row := Row{Number: number}
	id, data := values[0], values[1]
	switch {
	case id.IsNull():
		row.Bad = errors.New("the id is null")
	case data.IsNull():
		row.Bad = errors.New("the data are null")
	case unsigned && id.Kind() == parquet.Int64 && id.Uint64() > math.MaxInt64:
		row.Bad = fmt.Errorf("the id is %d, above the largest int64", id.Uint64())
	case len(values) > 2 && values[2].IsNull():
		row.Bad = errors.New("the group is null")
	}
	if row.Bad != nil {
		return row
	}
	switch {
	case id.Kind() == parquet.Int64:
		row.ID = id.Int64()
	case unsigned:
		row.ID = int64(id.Uint32())
	default:
		row.ID = int64(id.Int32())
	}
	row.Data = data.ByteArray()
	if len(values) > 2 {
		row.Group = string(values[2].ByteArray())
	}
	return row
}
