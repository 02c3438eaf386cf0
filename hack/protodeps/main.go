// Command protodeps writes the .proto files of google.rpc that Sheaf's .proto files import. It generates them from
// the descriptors in the published Go module, so that code generation needs only the Go module proxy.
//
// Usage: protodeps DIR
package main

import (
	"fmt"
	"os"
	"path/filepath"

	"github.com/jhump/protoreflect/desc"
	"github.com/jhump/protoreflect/desc/protoprint"
	"google.golang.org/genproto/googleapis/rpc/status"
)

func main() {
	if len(os.Args) != 2 {
		fmt.Fprintln(os.Stderr, "usage: protodeps DIR")
		os.Exit(2)
	}
	if err := write(os.Args[1]); err != nil {
		fmt.Fprintln(os.Stderr, "protodeps:", err)
		os.Exit(1)
	}
}

func write(dir string) error {
	file, err := desc.WrapFile(status.File_google_rpc_status_proto)
	if err != nil {
		return fmt.Errorf("wrap descriptor: %w", err)
	}
	text, err := new(protoprint.Printer).PrintProtoToString(file)
	if err != nil {
		return fmt.Errorf("print %s: %w", file.GetName(), err)
	}
	path := filepath.Join(dir, filepath.FromSlash(file.GetName()))
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return err
	}
	return os.WriteFile(path, []byte(text), 0o644)
}
