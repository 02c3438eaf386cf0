package flight

import (
	"errors"
	"fmt"
	"strings"

	"google.golang.org/protobuf/proto"

	"sheaf.dev/sheaf/client/recordv1"
)

// PutRowsMax is the largest number of rows in a batch of puts.
const PutRowsMax = 1024

// field is a column of the schema of a stream of puts.
type field struct {
	name  string
	kind  byte
	width int // of fixed_size_binary
}

// putKinds are the types that the columns of a stream of puts may have.
var putKinds = map[string][]byte{
	"id": {typeInt}, "data": {typeLargeBinary, typeBinary}, "group": {typeUtf8}, "timestamp": {typeTimestamp},
	"attributes": {typeMap}, "request_id": {typeFixedSizeBinary, typeBinary}, "if_version": {typeUtf8},
	"if_absent": {typeBool},
}

// putSchema is the schema of a stream of puts.
type putSchema []field

// readSchema reads the schema of a stream of puts.
func readSchema(b []byte) (schema putSchema, err error) {
	err = guarded(func() error {
		kind, t, err := header(b)
		if err != nil {
			return err
		}
		if kind != headerSchema {
			return errors.New("the first message of the stream must be its schema")
		}
		if t.shortOf(0) != 0 {
			return errors.New("the schema is big-endian")
		}
		fields, err := t.tables(1, fieldsMax)
		if err != nil {
			return err
		}
		seen := map[string]bool{}
		for i := range fields {
			f, err := readField(&fields[i])
			if err != nil {
				return err
			}
			if seen[f.name] {
				return fmt.Errorf("column %s comes twice", f.name)
			}
			seen[f.name] = true
			schema = append(schema, f)
		}
		if !seen["id"] || !seen["data"] {
			return errors.New("the columns id and data are required")
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	return schema, nil
}

func readField(t *table) (f field, err error) {
	f = field{name: t.textOf(0), kind: t.byteOf(2)}
	kinds, known := putKinds[f.name]
	if !known {
		return f, fmt.Errorf("column %.40q is none of id, data, group, timestamp, attributes, request_id, if_version, "+
			"if_absent", f.name)
	}
	of, err := t.child(3)
	if err != nil {
		return f, err
	}
	children, err := t.tables(5, 1)
	if err != nil {
		return f, err
	}
	ok := strings.IndexByte(string(kinds), f.kind) >= 0 && !t.has(4)
	switch f.kind {
	case typeInt:
		ok = ok && of.intOf(0) == 64 && of.byteOf(1) == 1
	case typeTimestamp:
		ok = ok && of.shortOf(0) == unitNanosecond && of.textOf(1) == "UTC"
	case typeFixedSizeBinary:
		f.width = int(of.intOf(0))
		ok = ok && f.width == 16
	case typeMap:
		ok = ok && len(children) == 1 && isPair(&children[0])
	}
	if !ok {
		return f, fmt.Errorf("column %s has another type than docs/flight.md says", f.name)
	}
	return f, nil
}

// isPair reports whether the field is the struct of a map<utf8, binary>.
func isPair(t *table) bool {
	pair, err := t.tables(5, 2)
	return err == nil && len(pair) == 2 && t.byteOf(2) == typeStruct && pair[0].byteOf(2) == typeUtf8 &&
		pair[1].byteOf(2) == typeBinary && !pair[0].has(4) && !pair[1].has(4)
}

// column takes the column of a field from a batch.
func (f *field) column(in *batchIn) (*columnIn, error) {
	n := 2
	if f.kind == typeUtf8 || f.kind == typeBinary || f.kind == typeLargeBinary {
		n = 3
	}
	c, err := in.column(n, f.kind == typeLargeBinary)
	if err != nil {
		return nil, fmt.Errorf("column %s: %w", f.name, err)
	}
	if c.rows != in.rows {
		return nil, fmt.Errorf("column %s has %d rows instead of %d", f.name, c.rows, in.rows)
	}
	most := int64(len(c.values))
	switch f.kind {
	case typeInt, typeTimestamp, typeFixedSizeBinary:
		c.width = max(f.width, 8*boolInt(f.width == 0))
		if len(c.values)/c.width < c.rows {
			return nil, fmt.Errorf("column %s has too few values", f.name)
		}
	case typeBool:
		if len(c.values) < (c.rows+7)/8 {
			return nil, fmt.Errorf("column %s has too few values", f.name)
		}
	case typeMap:
		c.offsets, c.values = append([]byte{}, c.values...), nil // not nil, even if they are empty
		if c.keys, c.mapped, err = in.pairs(); err != nil {
			return nil, fmt.Errorf("column %s: %w", f.name, err)
		}
		most = int64(c.keys.rows)
	}
	if err := c.check(most); err != nil {
		return nil, fmt.Errorf("column %s: %w", f.name, err)
	}
	return c, nil
}

func boolInt(b bool) int {
	if b {
		return 1
	}
	return 0
}

// column takes a column with n buffers: a bitmap, offsets if n is 3, and values.
func (b *batchIn) column(n int, wide bool) (*columnIn, error) {
	rows, nulls, buffers, err := b.take(n)
	if err != nil {
		return nil, err
	}
	if rows < 0 || rows > 1<<30 {
		return nil, fmt.Errorf("has %d rows", rows)
	}
	c := &columnIn{rows: int(rows), values: buffers[n-1], wide: wide}
	if nulls != 0 {
		c.valid = append([]byte{}, buffers[0]...) // not nil, even if it is empty
	}
	if n == 3 {
		c.offsets = append(make([]byte, 0, len(buffers[1])), buffers[1]...)
	}
	return c, nil
}

// pairs takes the columns below a map: its entries, keys and values.
func (b *batchIn) pairs() (keys, values *columnIn, err error) {
	entries, _, _, err := b.take(1)
	if err != nil {
		return nil, nil, err
	}
	for _, to := range []**columnIn{&keys, &values} {
		c, err := b.column(3, false)
		if err != nil {
			return nil, nil, err
		}
		if int64(c.rows) != entries {
			return nil, nil, errors.New("the keys and values have different numbers")
		}
		if err := c.check(int64(len(c.values))); err != nil {
			return nil, nil, err
		}
		*to = c
	}
	return keys, values, nil
}

// putsOf returns the puts of a batch. Their data refer to body. The group is that of the command.
func (s putSchema) putsOf(head, body []byte, group string) (*recordv1.BatchPutRequest, error) {
	in, err := readBatch(head, body, PutRowsMax)
	if err != nil {
		return nil, err
	}
	out := &recordv1.BatchPutRequest{Puts: make([]*recordv1.PutRequest, in.rows)}
	for i := range out.Puts {
		out.Puts[i] = &recordv1.PutRequest{Key: &recordv1.RecordKey{Group: group}}
	}
	for _, f := range s {
		c, err := f.column(&in)
		if err != nil {
			return nil, err
		}
		for i, put := range out.Puts {
			if c.isNull(i) {
				if f.name == "id" || f.name == "data" {
					return nil, fmt.Errorf("column %s: row %d is null", f.name, i)
				}
				continue
			}
			if err := f.fill(put, c, i); err != nil {
				return nil, fmt.Errorf("column %s: row %d: %w", f.name, i, err)
			}
		}
	}
	return out, nil
}

// fill sets the field of a put to the value of a row.
func (f *field) fill(put *recordv1.PutRequest, c *columnIn, i int) error {
	switch f.name {
	case "id":
		put.Key.Id = c.long(i)
	case "data":
		put.Data = c.bytes(i)
	case "group":
		put.Key.Group = strings.ToValidUTF8(string(c.bytes(i)), "\ufffd")
	case "timestamp":
		put.TimestampUnixNs = proto.Int64(c.long(i))
	case "request_id":
		put.RequestId = c.bytes(i)
	case "if_version":
		put.Condition = &recordv1.WriteCondition{Condition: &recordv1.WriteCondition_IfVersion{
			IfVersion: strings.ToValidUTF8(string(c.bytes(i)), "\ufffd")}}
	case "if_absent":
		if !c.bit(i) {
			return nil
		}
		if put.Condition != nil {
			return errors.New("if_version and if_absent exclude one another")
		}
		put.Condition = &recordv1.WriteCondition{Condition: &recordv1.WriteCondition_IfAbsent{IfAbsent: true}}
	case "attributes":
		from, to := c.span(i)
		for at := int(from); at < int(to); at++ {
			if c.keys.isNull(at) || c.mapped.isNull(at) {
				return errors.New("a key or value is null")
			}
			key := strings.ToValidUTF8(string(c.keys.bytes(at)), "\ufffd")
			if _, twice := put.Attributes[key]; twice {
				return fmt.Errorf("key %.40q comes twice", key)
			}
			if put.Attributes == nil {
				put.Attributes = map[string][]byte{}
			}
			put.Attributes[key] = c.mapped.bytes(at)
		}
	}
	return nil
}
