// Package parquetfile writes records as Parquet files, and reads ids and data of records from Parquet files that any
// program has written. It is the only package that imports a library for Parquet (ADR 71). It never panics: what the
// library does not expect in a damaged file becomes an error.
package parquetfile

import (
	"fmt"
	"slices"

	"github.com/parquet-go/parquet-go"
)

// These constants limit a row group of a file that Writer writes, so that readers need little memory for one.
const (
	RowGroupBytes = 64 << 20 // uncompressed bytes
	RowGroupRows  = 10_000
	// DataBytesMax is the size of the largest data in a row. Data, attributes and names fit into a row group.
	DataBytesMax = 32 << 20
)

// columns is the schema, in the order of the columns of Arrow Flight (docs/flight.md). Only its tags are used.
type columns struct {
	Group      string            `parquet:"group"`
	ID         int64             `parquet:"id"`
	Version    string            `parquet:"version,optional"`
	Timestamp  int64             `parquet:"timestamp,optional,timestamp(nanosecond)"`
	CommitTime int64             `parquet:"commit_time,optional,timestamp(nanosecond)"`
	Attributes map[string][]byte `parquet:"attributes,optional"`
	Size       int64             `parquet:"size,optional"`
	CRC32C     uint32            `parquet:"crc32c,optional"`
	Status     string            `parquet:"status,optional"`
	Data       []byte            `parquet:"data,optional"`
}

// These are the leaves of the schema. The map is two leaves, so positions differ from those of Flight's columns.
const (
	leafGroup = iota
	leafID
	leafVersion
	leafTimestamp
	leafCommitTime
	leafKey
	leafValue
	leafSize
	leafCRC32C
	leafStatus
	leafData
)

var schema = parquet.SchemaOf(new(columns))

// Record is a row of an export.
type Record struct {
	Group      string
	ID         int64
	Version    string
	Timestamp  int64 // Unix time in nanoseconds
	CommitTime int64 // Unix time in nanoseconds
	Attributes map[string][]byte
	Size       int64  // bytes of the data in the store
	Status     string // empty: the row is complete; otherwise the reason why it has no data
	CRC32C     uint32 // CRC32C of the data; only if Status is empty
	Data       []byte // only if Status is empty
}

// rowBytes is added to the size of a row for the columns of fixed size and the lengths.
const rowBytes = 64

func (r *Record) bytes() int64 {
	n := rowBytes + len(r.Group) + len(r.Version) + len(r.Status) + len(r.Data)
	for key, value := range r.Attributes {
		n += 8 + len(key) + len(value)
	}
	return int64(n)
}

// appendValues appends the values of a row. The levels say whether a value is there: an optional value has definition
// level 1, and a key or value of a map 2. A further entry of a map has repetition level 1.
func (r *Record) appendValues(row parquet.Row) parquet.Row {
	row = append(row,
		parquet.ByteArrayValue([]byte(r.Group)).Level(0, 0, leafGroup),
		parquet.Int64Value(r.ID).Level(0, 0, leafID),
		parquet.ByteArrayValue([]byte(r.Version)).Level(0, 1, leafVersion),
		parquet.Int64Value(r.Timestamp).Level(0, 1, leafTimestamp),
		parquet.Int64Value(r.CommitTime).Level(0, 1, leafCommitTime))
	row = r.appendAttributes(row)
	row = append(row, parquet.Int64Value(r.Size).Level(0, 1, leafSize))
	if r.Status != "" {
		return append(row, parquet.NullValue().Level(0, 0, leafCRC32C),
			parquet.ByteArrayValue([]byte(r.Status)).Level(0, 1, leafStatus), parquet.NullValue().Level(0, 0, leafData))
	}
	return append(row, parquet.Int32Value(int32(r.CRC32C)).Level(0, 1, leafCRC32C),
		parquet.NullValue().Level(0, 0, leafStatus), parquet.ByteArrayValue(r.Data).Level(0, 1, leafData))
}

func (r *Record) appendAttributes(row parquet.Row) parquet.Row {
	if len(r.Attributes) == 0 { // an empty map, and not a null
		return append(row, parquet.NullValue().Level(0, 1, leafKey), parquet.NullValue().Level(0, 1, leafValue))
	}
	keys := make([]string, 0, len(r.Attributes))
	for key := range r.Attributes {
		keys = append(keys, key)
	}
	slices.Sort(keys)
	for i, key := range keys {
		row = append(row, parquet.ByteArrayValue([]byte(key)).Level(min(i, 1), 2, leafKey))
	}
	for i, key := range keys {
		row = append(row, parquet.ByteArrayValue(r.Attributes[key]).Level(min(i, 1), 2, leafValue))
	}
	return row
}

// guarded calls a function of the library. A panic, which damaged bytes may cause, becomes an error.
func guarded(do func() error) (err error) {
	defer func() {
		if p := recover(); p != nil {
			err = fmt.Errorf("the file is damaged: %v", p)
		}
	}()
	return do()
}
