package flight

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"

	"github.com/apache/arrow-go/v18/arrow/flight/gen/flight"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/encoding"
	"google.golang.org/grpc/mem"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"

	"sheaf.dev/sheaf/client/call/message"
	"sheaf.dev/sheaf/client/call/reason"
	"sheaf.dev/sheaf/client/recordv1"
)

// Puts makes a DoPut look like a BatchPut: it receives record batches as messages of puts, and sends the answers as
// PutResults. Like every stream, it may be read by one goroutine and written by another.
type Puts struct {
	grpc.ServerStream
	codec  encoding.CodecV2
	group  string
	schema putSchema
}

// dataIn is a received FlightData message. Its parts refer to the message.
type dataIn struct {
	buffer     mem.Buffer
	length     int
	descriptor []byte
	header     []byte
	body       []byte
}

// Decode implements message.Decoder.
func (d *dataIn) Decode(data mem.BufferSlice) error {
	if d.length = data.Len(); d.length > message.BytesMax {
		return nil
	}
	d.buffer = data.MaterializeToBuffer(message.Pool)
	for b := d.buffer.ReadOnlyData(); len(b) > 0; {
		number, kind, n := protowire.ConsumeField(b)
		if n < 0 {
			return fmt.Errorf("decoding a message: %w", protowire.ParseError(n))
		}
		if kind == protowire.BytesType {
			_, _, tag := protowire.ConsumeTag(b)
			value, _ := protowire.ConsumeBytes(b[tag:])
			switch number {
			case descriptorField:
				d.descriptor = value
			case dataHeaderField:
				d.header = value
			case dataBodyField:
				d.body = value
			}
		}
		b = b[n:]
	}
	return nil
}

// DecodeInto implements message.Undecoded.
func (d *dataIn) DecodeInto(m proto.Message) error {
	if d.buffer == nil {
		return errMessage // the message was too long
	}
	return proto.Unmarshal(d.buffer.ReadOnlyData(), m)
}

func (d *dataIn) free() {
	if d.buffer != nil {
		d.buffer.Free()
		d.buffer = nil
	}
}

// receive receives the next message.
func receive(stream grpc.ServerStream) (*dataIn, error) {
	in := &dataIn{}
	if err := stream.RecvMsg(in); err != nil {
		in.free()
		return nil, err
	}
	if in.length > message.BytesMax {
		return nil, bad("the message has %d bytes, at most %d are allowed: send smaller batches", in.length,
			message.BytesMax)
	}
	return in, nil
}

func bad(format string, args ...any) error {
	return status.Errorf(codes.InvalidArgument, format, args...)
}

// NewPuts begins a stream of puts: it receives the command and the schema. The codec is that of the messages that the
// caller receives and sends.
func NewPuts(stream grpc.ServerStream, codec encoding.CodecV2) (*Puts, error) {
	in, err := receive(stream)
	if err != nil {
		if errors.Is(err, io.EOF) {
			err = bad("the stream ended before its first message")
		}
		return nil, err
	}
	defer in.free()
	var descriptor flight.FlightDescriptor
	if err := proto.Unmarshal(in.descriptor, &descriptor); err != nil ||
		descriptor.GetType() != flight.FlightDescriptor_CMD {
		return nil, bad("the first message needs a descriptor with a command")
	}
	command, err := ParsePut(descriptor.GetCmd())
	if err != nil {
		return nil, bad("%v", err)
	}
	schema, err := readSchema(in.header)
	if err != nil {
		return nil, bad("schema: %v", err)
	}
	return &Puts{ServerStream: stream, codec: codec, group: command.Group, schema: schema}, nil
}

// Recv implements recordv1.RecordService_BatchPutServer.
func (p *Puts) Recv() (*recordv1.BatchPutRequest, error) {
	in := &recordv1.BatchPutRequest{}
	return in, p.RecvMsg(in)
}

// RecvMsg implements grpc.ServerStream.
func (p *Puts) RecvMsg(m any) error {
	in, err := receive(p.ServerStream)
	if err != nil {
		return err
	}
	defer in.free()
	puts, err := p.schema.putsOf(in.header, in.body, p.group)
	if err != nil {
		return bad("%v", err)
	}
	encoded, err := message.Codec{}.Marshal(puts)
	if err != nil {
		return bad("%v", err)
	}
	defer encoded.Free()
	return p.codec.Unmarshal(encoded, m)
}

// Send implements recordv1.RecordService_BatchPutServer.
func (p *Puts) Send(m *recordv1.BatchPutResponse) error { return p.answer(m) }

// SendMsg implements grpc.ServerStream.
func (p *Puts) SendMsg(m any) error {
	encoded, err := p.codec.Marshal(m)
	if err != nil {
		return err
	}
	defer encoded.Free()
	out := &recordv1.BatchPutResponse{}
	if err := (message.Codec{}).Unmarshal(encoded, out); err != nil {
		return err
	}
	return p.answer(out)
}

// putStatuses is the app_metadata of a PutResult. Each list has one entry for each row.
type putStatuses struct {
	Status     []*string `json:"status"`
	Message    []*string `json:"message"`
	Version    []string  `json:"version"`
	CommitTime []*int64  `json:"commit_time"`
	Repeated   []bool    `json:"repeated"`
}

func (p *Puts) answer(m *recordv1.BatchPutResponse) error {
	var out putStatuses
	for _, result := range m.GetResults() {
		var word, text *string
		var version string
		var committed *int64
		if result.GetStatus() != nil {
			err := status.ErrorProto(result.GetStatus())
			word, text, version = new(reason.Of(err)), new(result.GetStatus().GetMessage()), reason.Version(err)
		} else {
			version, committed = result.GetPut().GetVersion(), new(result.GetPut().GetCommitTimeUnixNs())
		}
		out.Status, out.Message = append(out.Status, word), append(out.Message, text)
		out.Version, out.CommitTime = append(out.Version, version), append(out.CommitTime, committed)
		out.Repeated = append(out.Repeated, result.GetPut().GetRepeated())
	}
	encoded, err := json.Marshal(&out)
	if err != nil {
		return status.Error(codes.Internal, err.Error())
	}
	return p.ServerStream.SendMsg(&flight.PutResult{AppMetadata: encoded})
}
