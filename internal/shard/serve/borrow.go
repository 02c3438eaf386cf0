package serve

import (
	"fmt"

	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"

	"sheaf.dev/sheaf/client/call/message"
	"sheaf.dev/sheaf/client/recordv1"
)

// These are the numbers of the fields that the code in this file decodes by itself.
const (
	putsField protowire.Number = 1  // BatchPutRequest.puts
	keyField  protowire.Number = 1  // PutRequest.key
	dataField protowire.Number = 15 // PutRequest.data
)

// borrowed decodes puts without copying their data. Until free is called, the data alias the buffer in which the
// message arrived. The log copies the data once, when it accepts the put.
type borrowed struct {
	buffer mem.Buffer
}

// hold keeps the message in one buffer, and returns the message's bytes.
func (b *borrowed) hold(data mem.BufferSlice) []byte {
	b.buffer = data.MaterializeToBuffer(message.Pool)
	return b.buffer.ReadOnlyData()
}

// free releases the data. It may be called several times.
func (b *borrowed) free() {
	if b.buffer != nil {
		b.buffer.Free()
		b.buffer = nil
	}
}

// putIn is a received PutRequest.
type putIn struct {
	borrowed
	put *recordv1.PutRequest
}

// Decode implements message.Decoder.
func (p *putIn) Decode(data mem.BufferSlice) error {
	encoded := p.hold(data)
	if err := message.CheckParts(encoded, p.put); err != nil {
		return err
	}
	return decodePut(encoded, p.put, &recordv1.RecordKey{})
}

// putsIn is a received BatchPutRequest. All its puts are in one allocation.
type putsIn struct {
	borrowed
	batch *recordv1.BatchPutRequest // without puts if the message has more than BatchPutsMax
	n     int                       // number of puts in the message
}

// Decode implements message.Decoder.
func (p *putsIn) Decode(data mem.BufferSlice) error {
	encoded := p.hold(data)
	if err := message.CheckParts(encoded, p.batch); err != nil {
		return err
	}
	if err := eachPut(encoded, func([]byte) error { p.n++; return nil }); err != nil || p.n > BatchPutsMax {
		return err
	}
	puts, keys := make([]recordv1.PutRequest, p.n), make([]recordv1.RecordKey, p.n)
	p.batch.Puts = make([]*recordv1.PutRequest, 0, p.n)
	return eachPut(encoded, func(encoded []byte) error {
		i := len(p.batch.Puts)
		p.batch.Puts = append(p.batch.Puts, &puts[i])
		return decodePut(encoded, &puts[i], &keys[i])
	})
}

// eachPut calls the function use for each put in an encoded BatchPutRequest, in order. It skips other fields, as
// every protobuf decoder does.
func eachPut(encoded []byte, use func(put []byte) error) error {
	for len(encoded) > 0 {
		number, kind, n := protowire.ConsumeField(encoded)
		if n < 0 {
			return undecodable(protowire.ParseError(n))
		}
		if number == putsField && kind == protowire.BytesType {
			if err := use(bytesOf(encoded)); err != nil {
				return err
			}
		}
		encoded = encoded[n:]
	}
	return nil
}

// decodePut decodes a PutRequest. The data of the put then alias encoded, while all other fields are copied. The key
// is stored in the memory to which key points. The fields before the data and the fields after it are decoded
// separately. In the protobuf format, this has the same result as decoding them together.
func decodePut(encoded []byte, put *recordv1.PutRequest, key *recordv1.RecordKey) error {
	put.Key = key
	hasKey, from, at := false, 0, 0
	merge := func(to int) error {
		if from == to {
			return nil
		}
		return proto.UnmarshalOptions{Merge: true}.Unmarshal(encoded[from:to], put)
	}
	for at < len(encoded) {
		number, kind, n := protowire.ConsumeField(encoded[at:])
		if n < 0 {
			return undecodable(protowire.ParseError(n))
		}
		hasKey = hasKey || number == keyField && kind == protowire.BytesType
		if number == dataField && kind == protowire.BytesType {
			if err := merge(at); err != nil {
				return undecodable(err)
			}
			put.Data = bytesOf(encoded[at:])
			from = at + n
		}
		at += n
	}
	if err := merge(at); err != nil {
		return undecodable(err)
	}
	if !hasKey {
		put.Key = nil
	}
	return nil
}

// bytesOf returns the value of the bytes field at the start of encoded. The field must be complete.
func bytesOf(encoded []byte) []byte {
	_, _, tag := protowire.ConsumeTag(encoded)
	value, _ := protowire.ConsumeBytes(encoded[tag:])
	return value
}

func undecodable(err error) error { return fmt.Errorf("decoding a message: %w", err) }
