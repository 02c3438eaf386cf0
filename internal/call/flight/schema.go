// Package flight encodes records as Arrow Flight messages, and decodes commands, tickets and batches of puts. Gateways
// and shards share it. It has no state, and never panics. docs/flight.md is its contract.
package flight

import (
	flatbuffers "github.com/google/flatbuffers/go"
)

// Column is a column of the schema. Its value is its position.
type Column uint8

// These are the columns, in the order of the schema.
const (
	Group Column = iota
	ID
	Version
	Timestamp
	CommitTime
	Attributes
	Size
	CRC32C
	Status
	Data
	columnCount
)

var columnNames = [columnCount]string{"group", "id", "version", "timestamp", "commit_time", "attributes", "size",
	"crc32c", "status", "data"}

// Columns is a set of columns.
type Columns uint16

// AllColumns contains every column.
const AllColumns Columns = 1<<columnCount - 1

// alwaysFilled are the columns that are filled in for every command.
const alwaysFilled Columns = 1<<Group | 1<<ID | 1<<Status

// Has reports whether the set contains a column.
func (c Columns) Has(column Column) bool { return c&(1<<column) != 0 }

// NeedsData reports whether the data of records must be read.
func (c Columns) NeedsData() bool { return c.Has(Data) || c.Has(CRC32C) }

// These are the values of the Arrow format (Schema.fbs and Message.fbs) that this package uses.
const (
	metadataV5 = 4

	headerSchema      = 1
	headerRecordBatch = 3

	typeInt             = 2
	typeBinary          = 4
	typeUtf8            = 5
	typeBool            = 6
	typeTimestamp       = 10
	typeStruct          = 13
	typeFixedSizeBinary = 15
	typeMap             = 17
	typeLargeBinary     = 19

	unitNanosecond = 3
)

// schemaMessage is the encoded Arrow message with the schema.
var schemaMessage = buildSchema()

// SchemaBytes returns the schema as FlightInfo holds it: an encapsulated message of the IPC format.
func SchemaBytes() []byte {
	out := make([]byte, 8, 8+len(schemaMessage))
	copy(out, []byte{0xff, 0xff, 0xff, 0xff})
	flatbuffers.WriteUOffsetT(out[4:], flatbuffers.UOffsetT(len(schemaMessage)))
	return append(out, schemaMessage...)
}

// schemaBuilder builds the message with the schema. The fields of a table are numbered as in Schema.fbs.
type schemaBuilder struct{ *flatbuffers.Builder }

func buildSchema() []byte {
	b := schemaBuilder{flatbuffers.NewBuilder(2 << 10)}
	plain := func() flatbuffers.UOffsetT { b.StartObject(0); return b.EndObject() }
	timestamp := func() flatbuffers.UOffsetT {
		zone := b.CreateString("UTC")
		b.StartObject(2)
		b.PrependInt16Slot(0, unitNanosecond, 0)
		b.PrependUOffsetTSlot(1, zone, 0)
		return b.EndObject()
	}
	entries := func() flatbuffers.UOffsetT {
		pairs := b.vector(b.field("key", false, typeUtf8, plain(), 0), b.field("value", true, typeBinary, plain(), 0))
		return b.vector(b.field("entries", false, typeStruct, plain(), pairs))
	}
	keysUnsorted := func() flatbuffers.UOffsetT { b.StartObject(1); return b.EndObject() }
	fields := b.vector(
		b.field("group", false, typeUtf8, plain(), 0),
		b.field("id", false, typeInt, b.integer(64, true), 0),
		b.field("version", true, typeUtf8, plain(), 0),
		b.field("timestamp", true, typeTimestamp, timestamp(), 0),
		b.field("commit_time", true, typeTimestamp, timestamp(), 0),
		b.field("attributes", true, typeMap, keysUnsorted(), entries()),
		b.field("size", true, typeInt, b.integer(64, true), 0),
		b.field("crc32c", true, typeInt, b.integer(32, false), 0),
		b.field("status", true, typeUtf8, plain(), 0),
		b.field("data", true, typeLargeBinary, plain(), 0),
	)
	b.StartObject(4)
	b.PrependUOffsetTSlot(1, fields, 0)
	return b.message(headerSchema, b.EndObject(), 0)
}

func (b schemaBuilder) integer(bits int32, signed bool) flatbuffers.UOffsetT {
	b.StartObject(2)
	b.PrependInt32Slot(0, bits, 0)
	b.PrependBoolSlot(1, signed, false)
	return b.EndObject()
}

func (b schemaBuilder) field(name string, nullable bool, kind byte, of, children flatbuffers.UOffsetT,
) flatbuffers.UOffsetT {
	text := b.CreateString(name)
	if children == 0 {
		children = b.vector()
	}
	b.StartObject(7)
	b.PrependUOffsetTSlot(0, text, 0)
	b.PrependBoolSlot(1, nullable, false)
	b.PrependByteSlot(2, kind, 0)
	b.PrependUOffsetTSlot(3, of, 0)
	b.PrependUOffsetTSlot(5, children, 0)
	return b.EndObject()
}

func (b schemaBuilder) vector(of ...flatbuffers.UOffsetT) flatbuffers.UOffsetT {
	return b.CreateVectorOfTables(of)
}

// message finishes an Arrow message, and returns its bytes.
func (b schemaBuilder) message(kind byte, header flatbuffers.UOffsetT, bodyBytes int64) []byte {
	b.StartObject(5)
	b.PrependInt64Slot(3, bodyBytes, 0)
	b.PrependUOffsetTSlot(2, header, 0)
	b.PrependByteSlot(1, kind, 0)
	b.PrependInt16Slot(0, metadataV5, 0)
	b.Finish(b.EndObject())
	return padded(b.FinishedBytes())
}

// padded appends zeros until the length is a multiple of 8.
func padded(b []byte) []byte {
	return append(b, make([]byte, padding(len(b)))...)
}

func padding(n int) int { return -n & 7 }
