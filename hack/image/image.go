package main

import (
	"archive/tar"
	"bytes"
	"debug/elf"
	"errors"
	"fmt"
	"io"
	"os"
	"path"
	"regexp"
	"strings"
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
	"github.com/google/go-containerregistry/pkg/v1/types"
)

// The process in the image runs as this user. The user is given as a number, so that Kubernetes can check that it is
// not root.
const (
	uid    = 65532
	passwd = "nonroot:x:65532:65532:nonroot:/:/sbin/nologin\n"
	group  = "nonroot:x:65532:\n"
)

// Spec describes an image.
type Spec struct {
	Name       string // name of the image with a tag
	Binaries   []Binary
	Entrypoint string // absolute path
	Created    time.Time
	// These fields become the labels org.opencontainers.image.*. An empty field is omitted.
	Title, Description, Version, Revision string
}

// Binary is a static binary for one platform.
type Binary struct {
	Platform v1.Platform
	Path     string
}

// machines maps the supported architectures to their names in ELF.
var machines = map[string]elf.Machine{"amd64": elf.EM_X86_64, "arm64": elf.EM_AARCH64}

// addBinary parses OS/ARCH=PATH.
func (s *Spec) addBinary(arg string) error {
	platform, file, ok := strings.Cut(arg, "=")
	system, arch, ok2 := strings.Cut(platform, "/")
	if _, known := machines[arch]; !ok || !ok2 || file == "" || system != "linux" || !known {
		return fmt.Errorf("want linux/amd64=PATH or linux/arm64=PATH, not %q", arg)
	}
	for _, b := range s.Binaries {
		if b.Platform.Architecture == arch {
			return fmt.Errorf("two binaries for %s", platform)
		}
	}
	s.Binaries = append(s.Binaries, Binary{Platform: v1.Platform{OS: system, Architecture: arch}, Path: file})
	return nil
}

// nameForm matches a registry (or localhost), a path, and a tag. The tag is required, because "latest" would hide
// which version runs.
var nameForm = regexp.MustCompile(`^(localhost|[A-Za-z0-9-]+(?:\.[A-Za-z0-9-]+)+|[A-Za-z0-9.-]+:[0-9]+)` +
	`((?:/[a-z0-9]+(?:(?:\.|_|__|-+)[a-z0-9]+)*)+):([A-Za-z0-9_][A-Za-z0-9_.-]{0,127})$`)

// tag checks the name and returns its tag.
func (s *Spec) tag() (string, error) {
	parts := nameForm.FindStringSubmatch(s.Name)
	if parts == nil {
		return "", fmt.Errorf("--name %q: want a registry or localhost, a path, and a tag, such as localhost/sheaf:v1",
			s.Name)
	}
	return parts[3], nil
}

// labels returns the labels of the image. They are also its manifest's annotations, because registries look for them
// there.
func (s *Spec) labels() map[string]string {
	const prefix = "org.opencontainers.image."
	all := map[string]string{
		"title": s.Title, "description": s.Description, "version": s.Version, "revision": s.Revision,
		"licenses": "Apache-2.0", "created": s.Created.Format(time.RFC3339),
	}
	labels := map[string]string{}
	for key, value := range all {
		if value != "" {
			labels[prefix+key] = value
		}
	}
	return labels
}

// image builds the image for one platform. The image has a layer with the user, a layer with the binary, and a layer
// with the list of the binary's modules.
func (s *Spec) image(b Binary) (v1.Image, error) {
	if s.Entrypoint != path.Clean("/"+s.Entrypoint) || path.Dir(s.Entrypoint) != "/" {
		return nil, fmt.Errorf("--entrypoint %q: want a path such as /sheaf", s.Entrypoint)
	}
	binary, err := os.ReadFile(b.Path)
	if err != nil {
		return nil, err
	}
	if err := checkStatic(binary, b.Platform.Architecture); err != nil {
		return nil, fmt.Errorf("%s: %w", b.Path, err)
	}
	users, err := s.layer([]file{
		{name: "etc/", mode: 0o755},
		{name: "etc/group", mode: 0o644, data: []byte(group)},
		{name: "etc/passwd", mode: 0o644, data: []byte(passwd)},
	})
	if err != nil {
		return nil, err
	}
	program, err := s.layer([]file{{name: strings.TrimPrefix(s.Entrypoint, "/"), mode: 0o755, data: binary}})
	if err != nil {
		return nil, err
	}
	list, err := bom(binary, s.Title, s.Version, s.Created)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", b.Path, err)
	}
	parts, err := s.layer([]file{{name: bomName, mode: 0o644, data: list}})
	if err != nil {
		return nil, err
	}
	created := v1.Time{Time: s.Created}
	img := mutate.MediaType(empty.Image, types.OCIManifestSchema1)
	img = mutate.ConfigMediaType(img, types.OCIConfigJSON)
	img, err = mutate.Append(img,
		mutate.Addendum{Layer: users, History: v1.History{Created: created, CreatedBy: "hack/image: user nonroot"}},
		mutate.Addendum{Layer: program, History: v1.History{Created: created, CreatedBy: "hack/image: " + s.Entrypoint}},
		mutate.Addendum{Layer: parts, History: v1.History{Created: created, CreatedBy: "hack/image: /" + bomName}})
	if err != nil {
		return nil, err
	}
	img, err = mutate.ConfigFile(img, s.config(img, b.Platform))
	if err != nil {
		return nil, err
	}
	return mutate.Annotations(img, s.labels()).(v1.Image), nil
}

// config returns the image's configuration. It keeps the history and the layers unchanged.
func (s *Spec) config(img v1.Image, platform v1.Platform) *v1.ConfigFile {
	config, err := img.ConfigFile()
	if err != nil {
		config = &v1.ConfigFile{} // cannot happen for an image in memory; if it did, the check of the archive would fail
	}
	config = config.DeepCopy()
	config.OS, config.Architecture = platform.OS, platform.Architecture
	config.Created = v1.Time{Time: s.Created}
	config.Config = v1.Config{
		User:       fmt.Sprintf("%d:%d", uid, uid),
		Entrypoint: []string{s.Entrypoint},
		WorkingDir: "/",
		Labels:     s.labels(),
	}
	return config
}

type file struct {
	name string // ends with / if it is a folder
	mode int64
	data []byte
}

// layer creates a gzipped layer of files that belong to root.
func (s *Spec) layer(files []file) (v1.Layer, error) {
	var buffer bytes.Buffer
	w := tar.NewWriter(&buffer)
	for _, f := range files {
		if err := writeFile(w, f, s.Created); err != nil {
			return nil, err
		}
	}
	if err := w.Close(); err != nil {
		return nil, err
	}
	open := func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(buffer.Bytes())), nil }
	return tarball.LayerFromOpener(open, tarball.WithMediaType(types.OCILayer))
}

// writeFile writes a tar entry that contains nothing specific to this machine.
func writeFile(w *tar.Writer, f file, modified time.Time) error {
	header := &tar.Header{
		Name: f.name, Mode: f.mode, Size: int64(len(f.data)), ModTime: modified, Typeflag: tar.TypeReg,
		Format: tar.FormatUSTAR,
	}
	if strings.HasSuffix(f.name, "/") {
		header.Typeflag = tar.TypeDir
	}
	if err := w.WriteHeader(header); err != nil {
		return err
	}
	_, err := w.Write(f.data)
	return err
}

// checkStatic returns an error if the binary could not start in an image that contains nothing else.
func checkStatic(binary []byte, arch string) error {
	f, err := elf.NewFile(bytes.NewReader(binary))
	if err != nil {
		return fmt.Errorf("not a Linux binary: %w", err)
	}
	if f.Machine != machines[arch] {
		return fmt.Errorf("built for %v, wanted %s", f.Machine, arch)
	}
	for _, p := range f.Progs {
		if p.Type == elf.PT_INTERP {
			return errors.New("not static: it asks for a dynamic loader; build it with CGO_ENABLED=0")
		}
	}
	return nil
}
