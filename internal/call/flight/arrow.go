package flight

import (
	"encoding/binary"
	"errors"
	"fmt"

	flatbuffers "github.com/google/flatbuffers/go"
)

// The code in this file reads Arrow's messages of a stream of puts. A message may be hostile: every length is checked
// against the bytes that came, and what the flatbuffers library does with wrong offsets is caught in guarded.

// errMessage is the error for bytes that are no Arrow message.
var errMessage = errors.New("the message is no valid Arrow message")

// guarded calls read, and returns errMessage if read panics, which the flatbuffers library does at offsets outside of
// the message.
func guarded(read func() error) (err error) {
	defer func() {
		if recover() != nil {
			err = errMessage
		}
	}()
	return read()
}

// table is a table of flatbuffers. The numbers of fields are those of Arrow's .fbs files.
type table struct{ flatbuffers.Table }

func (t *table) at(field int) flatbuffers.UOffsetT {
	o := t.Offset(flatbuffers.VOffsetT(4 + 2*field))
	if o == 0 {
		return 0
	}
	return t.Pos + flatbuffers.UOffsetT(o)
}

func (t *table) has(field int) bool { return t.at(field) != 0 }

func (t *table) byteOf(field int) byte {
	if at := t.at(field); at != 0 {
		return t.GetByte(at)
	}
	return 0
}

func (t *table) shortOf(field int) int16 {
	if at := t.at(field); at != 0 {
		return t.GetInt16(at)
	}
	return 0
}

func (t *table) intOf(field int) int32 {
	if at := t.at(field); at != 0 {
		return t.GetInt32(at)
	}
	return 0
}

func (t *table) longOf(field int) int64 {
	if at := t.at(field); at != 0 {
		return t.GetInt64(at)
	}
	return 0
}

func (t *table) textOf(field int) string {
	if at := t.at(field); at != 0 {
		return string(t.ByteVector(at))
	}
	return ""
}

func (t *table) child(field int) (c table, err error) {
	at := t.at(field)
	if at == 0 {
		return c, errMessage
	}
	return table{flatbuffers.Table{Bytes: t.Bytes, Pos: t.Indirect(at)}}, nil
}

// vector returns the position and the length of a vector of at most most items.
func (t *table) vector(field, most int) (at flatbuffers.UOffsetT, n int, err error) {
	o := t.Offset(flatbuffers.VOffsetT(4 + 2*field))
	if o == 0 {
		return 0, 0, nil
	}
	at, n = t.Vector(flatbuffers.UOffsetT(o)), t.VectorLen(flatbuffers.UOffsetT(o))
	if n < 0 || n > most {
		return 0, 0, fmt.Errorf("the message has %d items where at most %d are possible", n, most)
	}
	return at, n, nil
}

// tables returns the tables in a vector.
func (t *table) tables(field, most int) ([]table, error) {
	at, n, err := t.vector(field, most)
	if err != nil {
		return nil, err
	}
	out := make([]table, n)
	for i := range out {
		out[i] = table{flatbuffers.Table{Bytes: t.Bytes, Pos: t.Indirect(at + flatbuffers.UOffsetT(4*i))}}
	}
	return out, nil
}

// header returns the header of an Arrow message and its kind.
func header(b []byte) (kind byte, of table, err error) {
	if len(b) < 8 {
		return 0, of, errMessage
	}
	m := table{flatbuffers.Table{Bytes: b, Pos: flatbuffers.GetUOffsetT(b)}}
	if v := m.shortOf(0); v != metadataV5 {
		return 0, of, fmt.Errorf("the message has the metadata version V%d of Arrow: V5 is taken", v+1)
	}
	of, err = m.child(2)
	return m.byteOf(1), of, err
}

// batchIn is a record batch of a stream of puts.
type batchIn struct {
	rows    int
	nodes   [][2]int64
	buffers [][]byte
}

// take returns the number of rows and nulls of the next column, and n buffers.
func (b *batchIn) take(n int) (rows, nulls int64, buffers [][]byte, err error) {
	if len(b.nodes) == 0 || len(b.buffers) < n {
		return 0, 0, nil, errors.New("the batch has fewer buffers than its schema")
	}
	rows, nulls, buffers = b.nodes[0][0], b.nodes[0][1], b.buffers[:n]
	b.nodes, b.buffers = b.nodes[1:], b.buffers[n:]
	return rows, nulls, buffers, nil
}

// columnIn is a column of a batch of puts. Values of variable length have offsets.
type columnIn struct {
	rows    int
	valid   []byte // nil: no row is null
	offsets []byte
	wide    bool // the offsets have 64 bits
	width   int  // bytes of a value of fixed length
	values  []byte
	keys    *columnIn // of a map
	mapped  *columnIn // the values of a map
}

// isNull reports whether a row is null.
func (c *columnIn) isNull(i int) bool { return c.valid != nil && c.valid[i/8]>>(i%8)&1 == 0 }

// span returns where the value of a row begins and ends.
func (c *columnIn) span(i int) (from, to int64) {
	if c.wide {
		return int64(binary.LittleEndian.Uint64(c.offsets[8*i:])), int64(binary.LittleEndian.Uint64(c.offsets[8*i+8:]))
	}
	return int64(int32(binary.LittleEndian.Uint32(c.offsets[4*i:]))),
		int64(int32(binary.LittleEndian.Uint32(c.offsets[4*i+4:])))
}

// bytes returns the value of a row. The spans and lengths of all rows were checked.
func (c *columnIn) bytes(i int) []byte {
	if c.width > 0 {
		return c.values[i*c.width : (i+1)*c.width : (i+1)*c.width]
	}
	from, to := c.span(i)
	return c.values[from:to:to]
}

func (c *columnIn) long(i int) int64 { return int64(binary.LittleEndian.Uint64(c.values[8*i:])) }

func (c *columnIn) bit(i int) bool { return c.values[i/8]>>(i%8)&1 == 1 }

// check checks the lengths and the spans of a column.
func (c *columnIn) check(most int64) error {
	if c.valid != nil && len(c.valid) < (c.rows+7)/8 {
		return errors.New("a column has a bitmap that is too short")
	}
	if c.offsets == nil {
		return nil
	}
	size := 4
	if c.wide {
		size = 8
	}
	if c.rows > 0 && len(c.offsets)/size < c.rows+1 {
		return errors.New("a column has too few offsets")
	}
	last := int64(0)
	for i := range c.rows {
		from, to := c.span(i)
		if from < last || to < from || to > most {
			return errors.New("a column has offsets outside of its values")
		}
		last = to
	}
	return nil
}

// readBatch reads the header of a record batch, and finds its buffers in the body.
func readBatch(b, body []byte, rowsMax int) (in batchIn, err error) {
	err = guarded(func() error {
		kind, t, err := header(b)
		if err != nil {
			return err
		}
		if kind != headerRecordBatch {
			return fmt.Errorf("the message is of kind %d of Arrow, and must be a record batch without dictionaries", kind)
		}
		if t.has(3) {
			return errors.New("the batch is compressed: send it without compression")
		}
		rows := t.longOf(0)
		if rows < 1 || rows > int64(rowsMax) {
			return fmt.Errorf("the batch has %d rows: send 1 to %d", rows, rowsMax)
		}
		in.rows = int(rows)
		at, n, err := t.vector(1, fieldsMax*4)
		if err != nil {
			return err
		}
		for i := range n {
			at := at + flatbuffers.UOffsetT(16*i)
			in.nodes = append(in.nodes, [2]int64{t.GetInt64(at), t.GetInt64(at + 8)})
		}
		at, n, err = t.vector(2, fieldsMax*9)
		if err != nil {
			return err
		}
		for i := range n {
			at := at + flatbuffers.UOffsetT(16*i)
			offset, length := t.GetInt64(at), t.GetInt64(at+8)
			if offset < 0 || length < 0 || offset > int64(len(body)) || length > int64(len(body))-offset {
				return errors.New("a buffer of the batch is outside of its body")
			}
			in.buffers = append(in.buffers, body[offset:offset+length:offset+length])
		}
		return nil
	})
	return in, err
}

// fieldsMax is the largest number of columns in a stream of puts. A map has four nodes and nine buffers.
const fieldsMax = 16
