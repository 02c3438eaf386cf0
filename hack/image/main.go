// Command image packs a static binary into an OCI archive: an image from scratch, without a container engine.
//
// The archive is a tar of an OCI image layout. It contains the name that containerd looks for (`ctr images import`,
// `kind load image-archive`), and also a manifest.json for `docker load` and `podman load`. The same binary and the
// same flags always result in the same bytes, because times are from --created, files are sorted, and all files belong
// to root.
//
// Usage: image --name NAME:TAG --binary linux/amd64=PATH [--binary linux/arm64=PATH] --output FILE.tar ...
package main

import (
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"strconv"
	"time"
)

func main() {
	if err := run(os.Args[1:]); err != nil {
		if errors.Is(err, flag.ErrHelp) {
			os.Exit(2)
		}
		fmt.Fprintln(os.Stderr, "image:", err)
		os.Exit(1)
	}
}

func run(args []string) error {
	var s Spec
	var output, created string
	flags := flag.NewFlagSet("image", flag.ContinueOnError)
	flags.StringVar(&s.Name, "name", "", "name and tag of the image, such as localhost/sheaf:v1")
	flags.Func("binary", "OS/ARCH=PATH of a static binary; once for each platform", s.addBinary)
	flags.StringVar(&s.Entrypoint, "entrypoint", "", "path of the binary in the image, such as /sheaf")
	flags.StringVar(&s.Title, "title", "", "label org.opencontainers.image.title")
	flags.StringVar(&s.Description, "description", "", "label org.opencontainers.image.description")
	flags.StringVar(&s.Version, "version", "", "label org.opencontainers.image.version")
	flags.StringVar(&s.Revision, "revision", "", "label org.opencontainers.image.revision: the commit")
	flags.StringVar(&created, "created", "0", "time of everything in the image, in Unix seconds (SOURCE_DATE_EPOCH)")
	flags.StringVar(&output, "output", "", "archive to write")
	flags.SetOutput(io.Discard) // otherwise the flag package would print the whole help after every mistake
	if err := flags.Parse(args); err != nil {
		if errors.Is(err, flag.ErrHelp) {
			flags.SetOutput(os.Stderr)
			flags.PrintDefaults()
		}
		return err
	}
	if flags.NArg() > 0 || output == "" {
		return errors.New("want --output FILE and no other arguments (see --help)")
	}
	seconds, err := strconv.ParseInt(created, 10, 64)
	if err != nil || seconds < 0 {
		return fmt.Errorf("--created %q: want Unix seconds", created)
	}
	s.Created = time.Unix(seconds, 0).UTC()
	digest, err := Write(s, output)
	if err != nil {
		return fmt.Errorf("%s: %w", output, err)
	}
	fmt.Printf("%s %s %s\n", output, s.Name, digest)
	return nil
}
