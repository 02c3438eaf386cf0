package flight

import (
	"encoding/binary"

	flatbuffers "github.com/google/flatbuffers/go"
	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/encoding/protowire"

	"sheaf.dev/sheaf/client/call/message"
)

// These are the limits of a batch. A batch with one row may have more bytes.
const (
	BatchBytesMax = 1 << 20
	BatchRowsMax  = 4096
)

// rowBytes is an upper bound on what a row adds to a batch, without its group, its attributes and its data.
const rowBytes = 192

// Row is one row of a batch. A column of Filled that the command does not ask for becomes null. So does every other
// column that is not in Filled.
type Row struct {
	Group      string
	ID         int64
	Version    string
	Timestamp  int64
	CommitTime int64
	Attributes []Attribute
	Size       int64
	CRC32C     uint32
	Status     string // empty: the row is complete
	Data       []byte
	Filled     Columns // Group, ID and Status need not be set
}

// Attribute is one attribute of a record. A row's attributes are sorted by their keys.
type Attribute struct {
	Key   string
	Value []byte
}

// Batch collects the rows of one record batch. It is reused for the next batch after Take. The zero Batch is not
// valid, see NewBatch.
type Batch struct {
	columns  Columns
	rows     int
	bytes    int64 // upper bound on the encoded size
	parts    [columnCount]part
	pairs    int  // attributes of all rows
	keys     part // keys of attributes
	values   part // values of attributes
	data     *[]byte
	capacity int // of the next buffer for data
	builder  *flatbuffers.Builder
}

// part is the content of one column: the bitmap of the rows that are not null, and offsets or values.
type part struct {
	valid   []byte
	nulls   int
	offsets []byte
	values  []byte
}

// NewBatch returns a batch for a command that asks for columns. The buffer for the data of each batch has at least
// dataBytes.
func NewBatch(columns Columns, dataBytes int) *Batch {
	b := &Batch{columns: columns | alwaysFilled, capacity: dataBytes, builder: flatbuffers.NewBuilder(1 << 10)}
	b.reset()
	return b
}

// Rows returns the number of rows.
func (b *Batch) Rows() int { return b.rows }

// Bytes returns an upper bound on the encoded size of the rows.
func (b *Batch) Bytes() int64 { return b.bytes }

// Bound returns an upper bound on what a row adds to a batch.
func Bound(group string, attributes []Attribute, dataBytes int) int64 {
	n := int64(rowBytes + len(group) + dataBytes)
	for _, a := range attributes {
		n += int64(len(a.Key)+len(a.Value)) + 16
	}
	return n
}

// IsFull reports whether a further row of the given size does not fit.
func (b *Batch) IsFull(bound int64) bool {
	return b.rows > 0 && (b.rows >= BatchRowsMax || b.bytes+bound > BatchBytesMax)
}

// Expect says how many bytes of data the rows of the next batch have, if NewBatch was not told. The batch must be
// empty.
func (b *Batch) Expect(dataBytes int) { b.capacity = dataBytes }

// Adopt makes a buffer of message.Pool the buffer for the data of the next batch. The batch must be empty. The data of
// rows may lie in this buffer, in the order of the rows. Data without gaps between them are not copied.
func (b *Batch) Adopt(buffer *[]byte) {
	*buffer = (*buffer)[:0]
	b.data = buffer
}

// Tail returns the unused part of the buffer for data. A record that was read into it needs no second buffer: Add moves
// its data to where they belong.
func (b *Batch) Tail() []byte {
	if b.data == nil {
		b.data = message.Pool.Get(b.capacity)
		*b.data = (*b.data)[:0]
	}
	return (*b.data)[len(*b.data):cap(*b.data)]
}

// Add appends a row. The row's data may be in Tail; then its attributes must not be.
func (b *Batch) Add(r *Row) {
	filled := r.Filled | alwaysFilled
	if r.Status == "" {
		filled &^= 1 << Status
	}
	filled &= b.columns
	b.bytes += Bound(r.Group, r.Attributes, len(r.Data))
	for c := range columnCount {
		b.parts[c].mark(b.rows, filled.Has(c))
	}
	b.text(Group, r.Group)
	b.number(ID, r.ID)
	b.text(Version, when(filled.Has(Version), r.Version))
	b.number(Timestamp, r.Timestamp)
	b.number(CommitTime, r.CommitTime)
	b.attributes(filled.Has(Attributes), r.Attributes)
	b.number(Size, r.Size)
	crc := &b.parts[CRC32C]
	crc.values = binary.LittleEndian.AppendUint32(crc.values, r.CRC32C)
	b.text(Status, r.Status)
	if filled.Has(Data) {
		b.appendData(r.Data)
	}
	end := 0
	if b.data != nil {
		end = len(*b.data)
	}
	data := &b.parts[Data]
	data.offsets = binary.LittleEndian.AppendUint64(data.offsets, uint64(end))
	b.rows++
}

func when(filled bool, text string) string {
	if filled {
		return text
	}
	return ""
}

// mark sets the bit of a row.
func (p *part) mark(row int, filled bool) {
	if row%8 == 0 {
		p.valid = append(p.valid, 0)
	}
	if filled {
		p.valid[row/8] |= 1 << (row % 8)
	} else {
		p.nulls++
	}
}

func (b *Batch) text(c Column, text string) {
	b.parts[c].append(text)
}

// append appends a value of variable length with its end.
func (p *part) append(value string) {
	p.values = append(p.values, value...)
	p.end()
}

func (p *part) end() {
	p.offsets = binary.LittleEndian.AppendUint32(p.offsets, uint32(len(p.values)))
}

func (b *Batch) number(c Column, value int64) {
	p := &b.parts[c]
	p.values = binary.LittleEndian.AppendUint64(p.values, uint64(value))
}

func (b *Batch) attributes(filled bool, attributes []Attribute) {
	if filled {
		for _, a := range attributes {
			b.keys.append(a.Key)
			b.values.values = append(b.values.values, a.Value...)
			b.values.end()
			b.pairs++
		}
	}
	p := &b.parts[Attributes]
	p.offsets = binary.LittleEndian.AppendUint32(p.offsets, uint32(b.pairs))
}

// appendData appends the data of a record, which may already be in the same buffer.
func (b *Batch) appendData(data []byte) {
	tail := b.Tail()
	if len(data) <= len(tail) {
		used := len(*b.data)
		if len(data) > 0 && &data[0] != &tail[0] {
			copy(tail[:len(data)], data)
		}
		*b.data = (*b.data)[:used+len(data)]
		return
	}
	larger := message.Pool.Get(len(*b.data) + len(data)) // only for a record that is larger than the whole buffer
	*larger = append(append((*larger)[:0], *b.data...), data...)
	message.Pool.Put(b.data)
	b.data = larger
}

// reset empties the batch, which begins with the offset 0 in each column of variable length.
func (b *Batch) reset() {
	b.rows, b.bytes, b.pairs, b.data = 0, 0, 0, nil
	for c := range columnCount {
		b.parts[c].reset()
	}
	b.keys.reset()
	b.values.reset()
	for _, p := range []*part{&b.parts[Group], &b.parts[Version], &b.parts[Attributes], &b.parts[Status], &b.keys,
		&b.values} {
		p.offsets = append(p.offsets, 0, 0, 0, 0)
	}
	data := &b.parts[Data]
	data.offsets = append(data.offsets, 0, 0, 0, 0, 0, 0, 0, 0)
}

func (p *part) reset() {
	p.valid, p.offsets, p.values, p.nulls = p.valid[:0], p.offsets[:0], p.values[:0], 0
}

// TakeBefore does the same as Take, before a row for which the batch has no room. If the data of the row are in Tail,
// it moves them into the buffer of the next batch.
func (b *Batch) TakeBefore(row *Row, appMetadata []byte) *Message {
	next := message.Pool.Get(b.capacity)
	*next = (*next)[:0]
	if len(row.Data) <= cap(*next) { // otherwise the data have memory of their own
		copy((*next)[:len(row.Data)], row.Data)
		row.Data = (*next)[:len(row.Data)]
	}
	m := b.Take(appMetadata)
	b.data = next
	return m
}

// Drop releases the buffer for data. It is called instead of Take if the rows are not sent.
func (b *Batch) Drop() {
	if b.data != nil {
		message.Pool.Put(b.data)
	}
	b.reset()
}

// Message is an encoded FlightData message. It implements message.Encoder.
type Message struct{ bufs mem.BufferSlice }

// Encode implements message.Encoder. It must be called once.
func (m *Message) Encode() (mem.BufferSlice, error) { return m.bufs, nil }

// These are the fields of FlightData.
const (
	descriptorField  protowire.Number = 1
	dataHeaderField  protowire.Number = 2
	appMetadataField protowire.Number = 3
	dataBodyField    protowire.Number = 1000
)

// Schema returns the message that begins each stream.
func Schema() *Message {
	encoded := protowire.AppendTag(nil, dataHeaderField, protowire.BytesType)
	return &Message{mem.BufferSlice{mem.SliceBuffer(protowire.AppendBytes(encoded, schemaMessage))}}
}

// zeros is the padding behind the data.
var zeros [8]byte

// Take returns the message with the rows and with app_metadata, and empties the batch. The data of the records are not
// copied: gRPC frees their buffer when it has sent them.
func (b *Batch) Take(appMetadata []byte) *Message {
	layout := b.layout()
	dataBytes := 0
	if b.data != nil {
		dataBytes = len(*b.data)
	}
	bodyBytes := layout.end + int64(dataBytes+padding(dataBytes))
	header := b.header(&layout, int64(dataBytes), bodyBytes)

	front := message.Pool.Get(len(header) + len(appMetadata) + int(layout.end) + 64)
	out := (*front)[:0]
	out = protowire.AppendTag(out, dataHeaderField, protowire.BytesType)
	out = protowire.AppendBytes(out, header)
	if len(appMetadata) > 0 {
		out = protowire.AppendTag(out, appMetadataField, protowire.BytesType)
		out = protowire.AppendBytes(out, appMetadata)
	}
	out = protowire.AppendTag(out, dataBodyField, protowire.BytesType)
	out = protowire.AppendVarint(out, uint64(bodyBytes))
	for _, buffer := range layout.buffers[:layout.n-1] {
		out = append(out, buffer...)
		out = append(out, zeros[:padding(len(buffer))]...)
	}
	bufs := message.Appended(front, out)
	if dataBytes > 0 {
		bufs = append(bufs, mem.NewBuffer(b.data, message.Pool))
		if pad := padding(dataBytes); pad > 0 {
			bufs = append(bufs, mem.SliceBuffer(zeros[:pad]))
		}
	} else if b.data != nil {
		message.Pool.Put(b.data)
	}
	b.reset()
	return &Message{bufs}
}

// buffersMax is the number of buffers of the schema.
const buffersMax = 31

// layout lists the buffers of a batch in the order of the body. The last one is the data, which is not in the list.
type layout struct {
	buffers [buffersMax][]byte
	n       int
	nodes   [columnCount + 3][2]int64 // rows and nulls; the map has three more: entries, keys and values
	node    int
	end     int64 // bytes of all buffers except for the data
}

func (l *layout) add(buffers ...[]byte) {
	for _, buffer := range buffers {
		l.buffers[l.n] = buffer
		l.n++
		l.end += int64(len(buffer) + padding(len(buffer)))
	}
}

func (l *layout) column(rows, nulls int, valid []byte, buffers ...[]byte) {
	l.nodes[l.node] = [2]int64{int64(rows), int64(nulls)}
	l.node++
	if nulls == 0 {
		valid = nil // without nulls, the bitmap may be left out
	}
	l.add(valid)
	l.add(buffers...)
}

func (b *Batch) layout() (l layout) {
	for c := range columnCount {
		p := &b.parts[c]
		switch c {
		case Group, Version, Status:
			l.column(b.rows, p.nulls, p.valid, p.offsets, p.values)
		case Attributes:
			l.column(b.rows, p.nulls, p.valid, p.offsets)
			l.column(b.pairs, 0, nil)
			l.column(b.pairs, 0, nil, b.keys.offsets, b.keys.values)
			l.column(b.pairs, 0, nil, b.values.offsets, b.values.values)
		case Data:
			l.column(b.rows, p.nulls, p.valid, p.offsets, nil)
		default:
			l.column(b.rows, p.nulls, p.valid, p.values)
		}
	}
	return l
}

// header returns the Arrow message of a record batch. The fields of a table are numbered as in Message.fbs.
func (b *Batch) header(l *layout, dataBytes, bodyBytes int64) []byte {
	f := b.builder
	f.Reset()
	f.StartVector(16, l.node, 8)
	for i := l.node - 1; i >= 0; i-- {
		f.Prep(8, 16)
		f.PrependInt64(l.nodes[i][1])
		f.PrependInt64(l.nodes[i][0])
	}
	nodes := f.EndVector(l.node)
	f.StartVector(16, l.n, 8)
	end := l.end
	for i := l.n - 1; i >= 0; i-- {
		bytes := int64(len(l.buffers[i]))
		offset := end - bytes - int64(padding(int(bytes)))
		if i == l.n-1 {
			bytes, offset = dataBytes, end
		} else {
			end = offset
		}
		f.Prep(8, 16)
		f.PrependInt64(bytes)
		f.PrependInt64(offset)
	}
	buffers := f.EndVector(l.n)
	f.StartObject(5)
	f.PrependInt64Slot(0, int64(b.rows), 0)
	f.PrependUOffsetTSlot(1, nodes, 0)
	f.PrependUOffsetTSlot(2, buffers, 0)
	return schemaBuilder{f}.message(headerRecordBatch, f.EndObject(), bodyBytes)
}
