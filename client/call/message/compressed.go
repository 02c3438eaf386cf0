package message

import (
	"errors"
	"io"

	"google.golang.org/grpc"
)

// RefuseCompressed returns the option that makes a server refuse compressed messages. Without this option, a library
// that registers an encoding for its own calls makes each gRPC server of the process accept that encoding. The exporter
// of traces does this with gzip. 24 KiB of compressed zeros would then take 24 MiB of memory before the caller is
// authenticated. gRPC refuses encodings that no library registers.
func RefuseCompressed() grpc.ServerOption {
	//nolint:staticcheck // RegisterCompressor would change the encoding for the exporter of traces, too
	return grpc.RPCDecompressor(refused{})
}

// refused decompresses nothing.
type refused struct{}

// Type implements grpc.Decompressor.
func (refused) Type() string { return "gzip" }

// Do implements grpc.Decompressor.
func (refused) Do(io.Reader) ([]byte, error) {
	return nil, errors.New("compressed messages are not taken: send them without grpc-encoding")
}
