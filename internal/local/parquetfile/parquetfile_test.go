package parquetfile

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"maps"
	"math"
	"slices"
	"strings"
	"testing"

	"github.com/parquet-go/parquet-go"

	"sheaf.dev/sheaf/internal/test/must"
)

// written writes records to a file in memory.
func written(t testing.TB, records ...Record) []byte {
	t.Helper()
	var b bytes.Buffer
	w := NewWriter(&b)
	for i := range records {
		must.OK(t, w.Write(&records[i]))
	}
	must.OK(t, w.Close())
	return b.Bytes()
}

// errEnough ends the reading of a damaged file, whose few bytes may be billions of nulls.
var errEnough = errors.New("enough rows")

// read opens a file, and returns its rows with copies of their data.
func read(content []byte, sel Selection) (rows []Row, err error) {
	f, err := Open(bytes.NewReader(content), int64(len(content)))
	if err != nil {
		return nil, err
	}
	err = f.Read(sel, func(row Row) error {
		row.Data = slices.Clone(row.Data)
		if rows = append(rows, row); len(rows) == 100_000 {
			return errEnough
		}
		return nil
	})
	return rows, err
}

var ours = Selection{ID: "id", Data: "data", Group: "group"}

// sample returns records with every kind of value.
func sample() []Record {
	return []Record{
		{Group: "a", ID: math.MinInt64, Version: "1", Timestamp: math.MinInt64, Size: 3, CRC32C: math.MaxUint32,
			Data: []byte("one")},
		{Group: "b", ID: 0, Version: "2", CommitTime: math.MaxInt64, Data: []byte{}, // empty, and not null
			Attributes: map[string][]byte{"k": {0, 0xff}, "": {}, "ü": []byte("v")}},
		{Group: "b", ID: math.MaxInt64, Version: "3", Size: 1 << 40, Status: "USE_DOWNLOAD"},
	}
}

// tableRow is a row as this test reads it, by the library's own structs.
type tableRow struct {
	Group      string            `parquet:"group"`
	ID         int64             `parquet:"id"`
	Version    *string           `parquet:"version"`
	Timestamp  *int64            `parquet:"timestamp,timestamp(nanosecond)"`
	CommitTime *int64            `parquet:"commit_time,timestamp(nanosecond)"`
	Attributes map[string][]byte `parquet:"attributes,optional"`
	Size       *int64            `parquet:"size"`
	CRC32C     *uint32           `parquet:"crc32c"`
	Status     *string           `parquet:"status"`
	Data       *[]byte           `parquet:"data"`
}

func TestRecordsAreRows(t *testing.T) {
	content := written(t, sample()...)
	rows, err := parquet.Read[tableRow](bytes.NewReader(content), int64(len(content)))
	must.OK(t, err)
	if len(rows) != 3 {
		t.Fatalf("%d rows", len(rows))
	}
	for i, want := range sample() {
		got := rows[i]
		if got.Group != want.Group || got.ID != want.ID || *got.Version != want.Version || *got.Timestamp != want.Timestamp ||
			*got.CommitTime != want.CommitTime || *got.Size != want.Size {
			t.Errorf("row %d: %+v, want %+v", i, got, want)
		}
		if !maps.EqualFunc(got.Attributes, want.Attributes, bytes.Equal) {
			t.Errorf("row %d: attributes %v, want %v", i, got.Attributes, want.Attributes)
		}
		complete := want.Status == ""
		if (got.Status == nil) != complete || (got.CRC32C != nil) != complete || (got.Data != nil) != complete {
			t.Errorf("row %d: status %v, crc32c %v, data %v", i, got.Status, got.CRC32C, got.Data)
		} else if complete && (*got.CRC32C != want.CRC32C || !bytes.Equal(*got.Data, want.Data)) {
			t.Errorf("row %d: crc32c %d, data %q", i, *got.CRC32C, *got.Data)
		}
	}
	back, err := read(content, ours)
	must.OK(t, err)
	if len(back) != 3 || back[0].ID != math.MinInt64 || back[1].Group != "b" || len(back[1].Data) != 0 ||
		back[1].Bad != nil || back[2].Bad == nil || back[2].Number != 2 {
		t.Errorf("%+v", back)
	}
}

// Row groups end at 10,000 rows and at 64 MiB, pages end at 1 MiB, and each column has a page index.
func TestRowGroupsAreBounded(t *testing.T) {
	var b bytes.Buffer
	w := NewWriter(&b)
	for i := range RowGroupRows + 1 {
		must.OK(t, w.Write(&Record{ID: int64(i), Data: []byte("x")}))
	}
	big := make([]byte, DataBytesMax)
	for i := range 3 {
		must.OK(t, w.Write(&Record{ID: int64(i), Data: big}))
	}
	must.OK(t, w.Close())
	f, err := parquet.OpenFile(bytes.NewReader(b.Bytes()), int64(b.Len()))
	must.OK(t, err)
	var rows []int64
	for _, g := range f.RowGroups() {
		rows = append(rows, g.NumRows())
		for _, c := range g.ColumnChunks() {
			if _, err := c.ColumnIndex(); err != nil {
				t.Error(err)
			}
			if _, err := c.OffsetIndex(); err != nil {
				t.Error(err)
			}
		}
	}
	if got := fmt.Sprint(rows); got != "[10000 2 1 1]" {
		t.Errorf("row groups of %s", got)
	}
	for _, g := range f.Metadata().RowGroups {
		if g.TotalByteSize > RowGroupBytes {
			t.Errorf("a row group of %d bytes", g.TotalByteSize)
		}
		for _, c := range g.Columns { // bounds of data would be as large as the data
			if s := c.MetaData.Statistics; len(s.MaxValue)+len(s.Max) > 100 {
				t.Errorf("%v: bounds of %d bytes", c.MetaData.PathInSchema, len(s.MaxValue))
			}
		}
	}
	if err := w.Write(&Record{Data: make([]byte, RowGroupBytes)}); err == nil {
		t.Error("a row larger than a row group was written")
	}
}

// table writes a file of another program: rows of a struct, with an encoding and a compression.
func table[T any](t testing.TB, rows []T, options ...parquet.WriterOption) []byte {
	t.Helper()
	var b bytes.Buffer
	w := parquet.NewGenericWriter[T](&b, options...)
	_, err := w.Write(rows)
	must.OK(t, errors.Join(err, w.Close()))
	return b.Bytes()
}

// ids returns the ids of rows, or why a row is bad.
func ids(rows []Row) (out []string) {
	for _, r := range rows {
		if r.Bad != nil {
			out = append(out, r.Bad.Error())
		} else {
			out = append(out, fmt.Sprint(r.ID))
		}
	}
	return out
}

func idsOf[T int8 | uint8 | int16 | uint16 | int32 | uint32 | int64 | uint64](t *testing.T, tag string, want string,
	values ...T) {
	t.Helper()
	type row struct {
		K T `parquet:"k"`
		V string
	}
	var rows []row
	for _, v := range values {
		rows = append(rows, row{v, "x"})
	}
	got, err := read(table(t, rows), Selection{ID: "k", Data: "V"})
	must.OK(t, err)
	if s := strings.Join(ids(got), " "); s != want {
		t.Errorf("%s: %s, want %s", tag, s, want)
	}
}

// All integer types are ids. An id above the largest int64 is a bad row.
func TestIdsOfEachIntegerType(t *testing.T) {
	idsOf[int8](t, "int8", "-128 127", math.MinInt8, math.MaxInt8)
	idsOf[uint8](t, "uint8", "0 255", 0, math.MaxUint8)
	idsOf[int16](t, "int16", "-32768 32767", math.MinInt16, math.MaxInt16)
	idsOf[uint16](t, "uint16", "0 65535", 0, math.MaxUint16)
	idsOf[int32](t, "int32", "-2147483648 2147483647", math.MinInt32, math.MaxInt32)
	idsOf[uint32](t, "uint32", "0 4294967295", 0, math.MaxUint32)
	idsOf[int64](t, "int64", "-9223372036854775808 9223372036854775807", math.MinInt64, math.MaxInt64)
	idsOf[uint64](t, "uint64", "9223372036854775807 the id is 9223372036854775808, above the largest int64", math.MaxInt64,
		math.MaxInt64+1)
}

type foreign struct {
	K      *int32   `parquet:"k,dict"`
	V      *string  `parquet:"v,dict"`
	Fixed  [4]byte  `parquet:"fixed"`
	Nested struct { // is passed over
		List []string `parquet:"list,list"`
	} `parquet:"nested"`
	Many []int64 `parquet:"many"`
	Time int64   `parquet:"time,timestamp"`
	F    float64 `parquet:"f"`
}

// foreignRows returns rows with nulls, several pages and several row groups.
func foreignRows() (rows []foreign) {
	for i := range int32(500) {
		v := fmt.Sprint("v", i%7)
		r := foreign{K: &i, V: &v, Fixed: [4]byte{byte(i)}, Many: make([]int64, i%3)}
		r.Nested.List = make([]string, i%4)
		switch i {
		case 300:
			r.K = nil
		case 301:
			r.V = nil
		}
		rows = append(rows, r)
	}
	return rows
}

// Files with dictionaries, any compression, nulls and nested columns are read.
func TestForeignFilesAreRead(t *testing.T) {
	for _, codec := range []parquet.WriterOption{parquet.Compression(&parquet.Uncompressed),
		parquet.Compression(&parquet.Snappy), parquet.Compression(&parquet.Gzip), parquet.Compression(&parquet.Zstd),
		parquet.DataPageVersion(1)} {
		content := table(t, foreignRows(), codec, parquet.PageBufferSize(300), parquet.MaxRowsPerRowGroup(128))
		rows, err := read(content, Selection{ID: "k", Data: "v"})
		must.OK(t, err)
		if len(rows) != 500 {
			t.Fatalf("%d rows", len(rows))
		}
		for i, r := range rows {
			switch {
			case r.Number != int64(i):
				t.Fatalf("row %d has the number %d", i, r.Number)
			case i == 300 || i == 301:
				if r.Bad == nil {
					t.Errorf("row %d with a null is good", i)
				}
			case r.Bad != nil || r.ID != int64(i) || string(r.Data) != fmt.Sprint("v", i%7):
				t.Fatalf("row %d: %+v", i, r)
			}
		}
		rows, err = read(content, Selection{ID: "k", Data: "fixed"})
		must.OK(t, err)
		if string(rows[7].Data) != "\x07\x00\x00\x00" {
			t.Errorf("%q", rows[7].Data)
		}
	}
}

func TestWrongColumns(t *testing.T) {
	content := table(t, foreignRows())
	for sel, want := range map[Selection]string{
		{ID: "no", Data: "v"}:               `no column "no"`,
		{ID: "k", Data: "no"}:               `no column "no"`,
		{ID: "v", Data: "v"}:                `column "v" is STRING, and ids are integers`,
		{ID: "time", Data: "v"}:             "ids are integers",
		{ID: "f", Data: "v"}:                "ids are integers",
		{ID: "k", Data: "k"}:                "data are binary or utf8",
		{ID: "nested", Data: "v"}:           "is nested",
		{ID: "many", Data: "v"}:             "is nested",
		{ID: "k", Data: "v", Group: "k"}:    "groups are utf8",
		{ID: "k", Data: "v", Group: "no"}:   `no column "no"`,
		{ID: "k", Data: "nested.list"}:      "no column",
		{ID: "k", Data: "v", Group: "many"}: "is nested",
	} {
		f, err := Open(bytes.NewReader(content), int64(len(content)))
		must.OK(t, err)
		if err := f.Check(sel); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%+v: %v, want %q", sel, err, want)
		}
	}
}

// A file that is cut short at any place is an error, and never a panic.
func TestCutFiles(t *testing.T) {
	content := written(t, sample()...)
	for n := range len(content) {
		if _, err := read(content[:n], ours); err == nil {
			t.Errorf("%d of %d bytes were read as a file", n, len(content))
		}
	}
	if _, err := Open(broken{}, 100); !errors.Is(err, io.ErrUnexpectedEOF) {
		t.Errorf("%v", err)
	}
}

type broken struct{}

func (broken) ReadAt([]byte, int64) (int, error) { return 0, io.ErrUnexpectedEOF }

// A wrong byte at any place makes no panic.
func TestDamagedFiles(t *testing.T) {
	for _, content := range [][]byte{written(t, sample()...),
		table(t, foreignRows()[295:305], parquet.Compression(&parquet.Snappy))} {
		for i := range content {
			bad := slices.Clone(content)
			bad[i] ^= []byte{1, 0x80, 0xff}[i%3]
			_, _ = read(bad, ours) // what is read does not matter
			_, _ = read(bad, Selection{ID: "k", Data: "v"})
		}
	}
}

// A panic of the library is an error.
func TestPanicsAreErrors(t *testing.T) {
	if err := guarded(func() error { panic("index out of range") }); err == nil ||
		!strings.Contains(err.Error(), "index out of range") {
		t.Error(err)
	}
}

func FuzzRead(f *testing.F) {
	f.Add(written(f, sample()...))
	f.Add(table(f, foreignRows()[290:310]))
	f.Fuzz(func(_ *testing.T, content []byte) {
		_, _ = read(content, ours)
		_, _ = read(content, Selection{ID: "k", Data: "v"})
	})
}
