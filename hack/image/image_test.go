package main

import (
	"archive/tar"
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/validate"
)

// program builds a small static binary.
func program(t *testing.T, arch string) string {
	t.Helper()
	dir := t.TempDir()
	write(t, filepath.Join(dir, "main.go"), "package main\n\nfunc main() { println(\"hello\") }\n")
	out := filepath.Join(dir, "program")
	cmd := exec.Command("go", "build", "-trimpath", "-o", out, filepath.Join(dir, "main.go"))
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0", "GOOS=linux", "GOARCH="+arch, "GOFLAGS=")
	if text, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("build: %v\n%s", err, text)
	}
	return out
}

func write(t *testing.T, path, text string) {
	t.Helper()
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}

func spec(t *testing.T, archs ...string) Spec {
	t.Helper()
	s := Spec{
		Name: "localhost/sheaf:v1", Entrypoint: "/sheaf", Created: time.Unix(1700000000, 0).UTC(),
		Title: "sheaf", Version: "v1", Revision: "abc",
	}
	for _, arch := range archs {
		if err := s.addBinary("linux/" + arch + "=" + program(t, arch)); err != nil {
			t.Fatal(err)
		}
	}
	return s
}

// unpack reads an archive. It returns the names in the archive in order, and a folder with its files.
func unpack(t *testing.T, archive string) (dir string, names []string) {
	t.Helper()
	f, err := os.Open(archive)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	dir = t.TempDir()
	for r := tar.NewReader(f); ; {
		h, err := r.Next()
		if errors.Is(err, io.EOF) {
			return dir, names
		}
		if err != nil {
			t.Fatal(err)
		}
		if h.Uid != 0 || h.Gid != 0 || h.Uname != "" || !h.ModTime.Equal(time.Unix(1700000000, 0)) {
			t.Errorf("%s tells of the machine: %+v", h.Name, h)
		}
		names = append(names, h.Name)
		path := filepath.Join(dir, h.Name)
		if h.Typeflag == tar.TypeDir {
			err = os.MkdirAll(path, 0o755)
		} else {
			var data []byte
			if data, err = io.ReadAll(r); err == nil {
				err = os.WriteFile(path, data, 0o644)
			}
		}
		if err != nil {
			t.Fatal(err)
		}
	}
}

func TestArchiveHoldsTheBinaryAndItsUser(t *testing.T) {
	s := spec(t, "amd64")
	archive := filepath.Join(t.TempDir(), "deep", "sheaf.tar")
	digest, err := Write(s, archive)
	if err != nil {
		t.Fatal(err)
	}
	dir, names := unpack(t, archive)
	if !slices.IsSorted(names) {
		t.Errorf("names are not sorted: %v", names)
	}
	index, err := layout.ImageIndexFromPath(dir)
	if err != nil {
		t.Fatal(err)
	}
	if err := validate.Index(index); err != nil {
		t.Error(err)
	}
	manifest, err := index.IndexManifest()
	if err != nil {
		t.Fatal(err)
	}
	d := manifest.Manifests[0]
	if d.Digest != digest || d.Annotations["io.containerd.image.name"] != s.Name ||
		d.Annotations["org.opencontainers.image.ref.name"] != "v1" {
		t.Errorf("descriptor: %+v, want digest %s", d, digest)
	}
	img, err := index.Image(digest)
	if err != nil {
		t.Fatal(err)
	}
	config, err := img.ConfigFile()
	if err != nil {
		t.Fatal(err)
	}
	if c := config.Config; c.User != "65532:65532" || !slices.Equal(c.Entrypoint, []string{"/sheaf"}) ||
		c.Labels["org.opencontainers.image.revision"] != "abc" || config.Architecture != "amd64" || config.OS != "linux" {
		t.Errorf("config: %+v", config)
	}
	files := map[string][]byte{}
	layers, err := img.Layers()
	if err != nil {
		t.Fatal(err)
	}
	for _, layer := range layers {
		content, err := layer.Uncompressed()
		if err != nil {
			t.Fatal(err)
		}
		for r := tar.NewReader(content); ; {
			h, err := r.Next()
			if err != nil {
				break
			}
			files[h.Name], err = io.ReadAll(r)
			if err != nil {
				t.Fatal(err)
			}
			if h.Name == "sheaf" && h.Mode != 0o755 {
				t.Errorf("mode of the binary: %o", h.Mode)
			}
		}
	}
	want, err := os.ReadFile(s.Binaries[0].Path)
	if err != nil {
		t.Fatal(err)
	}
	if got := slices.Sorted(maps.Keys(files)); !slices.Equal(got,
		[]string{"etc/", "etc/group", "etc/passwd", bomName, "sheaf"}) {
		t.Errorf("files: %v", got)
	}
	if !bytes.Equal(files["sheaf"], want) || !strings.Contains(string(files["etc/passwd"]), ":65532:65532:") {
		t.Error("the binary or etc/passwd is not what was packed")
	}
	checkDockerManifest(t, dir, s.Name)
}

// checkDockerManifest checks manifest.json in the same way as docker load.
func checkDockerManifest(t *testing.T, dir, image string) {
	t.Helper()
	data, err := os.ReadFile(filepath.Join(dir, "manifest.json"))
	if err != nil {
		t.Fatal(err)
	}
	var manifest []struct {
		Config           string
		RepoTags, Layers []string
	}
	if err := json.Unmarshal(data, &manifest); err != nil {
		t.Fatal(err)
	}
	if len(manifest) != 1 || !slices.Equal(manifest[0].RepoTags, []string{image}) || len(manifest[0].Layers) != 3 {
		t.Fatalf("manifest.json: %s", data)
	}
	for _, path := range append(manifest[0].Layers, manifest[0].Config) {
		if _, err := os.Stat(filepath.Join(dir, path)); err != nil {
			t.Error(err)
		}
	}
}

// The same input results in the same bytes, no matter where and when it is packed.
func TestArchiveIsReproducible(t *testing.T) {
	s := spec(t, "amd64")
	first, second := filepath.Join(t.TempDir(), "a.tar"), filepath.Join(t.TempDir(), "b.tar")
	if _, err := Write(s, first); err != nil {
		t.Fatal(err)
	}
	if err := os.Chtimes(s.Binaries[0].Path, time.Time{}, time.Now().Add(time.Hour)); err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(s.Binaries[0].Path, 0o700); err != nil {
		t.Fatal(err)
	}
	if _, err := Write(s, second); err != nil {
		t.Fatal(err)
	}
	a, errA := os.ReadFile(first)
	b, errB := os.ReadFile(second)
	if err := errors.Join(errA, errB); err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(a, b) {
		t.Error("two archives of the same binary differ")
	}
}

func TestArchiveOfSeveralPlatforms(t *testing.T) {
	s := spec(t, "arm64", "amd64")
	archive := filepath.Join(t.TempDir(), "sheaf.tar")
	digest, err := Write(s, archive)
	if err != nil {
		t.Fatal(err)
	}
	dir, _ := unpack(t, archive)
	index, err := layout.ImageIndexFromPath(dir)
	if err != nil {
		t.Fatal(err)
	}
	if err := validate.Index(index); err != nil {
		t.Error(err)
	}
	inner, err := index.ImageIndex(digest)
	if err != nil {
		t.Fatal(err)
	}
	manifest, err := inner.IndexManifest()
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, d := range manifest.Manifests {
		got = append(got, d.Platform.String())
	}
	if !slices.Equal(got, []string{"linux/amd64", "linux/arm64"}) {
		t.Errorf("platforms: %v", got)
	}
}

func TestBadInputIsRefused(t *testing.T) {
	text := filepath.Join(t.TempDir(), "script")
	write(t, text, "#!/bin/sh\n")
	binary := program(t, "amd64")
	for name, c := range map[string]struct {
		args []string
		want string
	}{
		"no tag":         {[]string{"--name", "localhost/sheaf"}, "want a registry or localhost"},
		"no registry":    {[]string{"--name", "sheaf:v1"}, "want a registry or localhost"},
		"upper case":     {[]string{"--name", "localhost/Sheaf:v1"}, "want a registry or localhost"},
		"tag":            {[]string{"--name", "localhost/sheaf:v1+2"}, "want a registry or localhost"},
		"no binary":      {nil, "at least one --binary"},
		"platform":       {[]string{"--binary", "linux/riscv64=x"}, "want linux/amd64=PATH"},
		"twice":          {[]string{"--binary", "linux/amd64=x", "--binary", "linux/amd64=x"}, "two binaries"},
		"no such file":   {[]string{"--binary", "linux/amd64=" + text + "x"}, "no such file"},
		"a script":       {[]string{"--binary", "linux/amd64=" + text}, "not a Linux binary"},
		"wrong machine":  {[]string{"--binary", "linux/arm64=" + binary}, "wanted arm64"},
		"dynamic":        {[]string{"--binary", "linux/" + runtime.GOARCH + "=/bin/sh"}, "not static"},
		"entrypoint":     {[]string{"--binary", "linux/amd64=" + binary, "--entrypoint", "sheaf"}, "--entrypoint"},
		"deep":           {[]string{"--binary", "linux/amd64=" + binary, "--entrypoint", "/usr/../sheaf"}, "--entrypoint"},
		"created":        {[]string{"--created", "yesterday"}, "want Unix seconds"},
		"more arguments": {[]string{"more"}, "no other arguments"},
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			args := append([]string{"--name", "localhost/sheaf:v1", "--entrypoint", "/sheaf", "--output",
				filepath.Join(dir, "x.tar")}, c.args...)
			if err := run(args); err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("got %v, want %q", err, c.want)
			}
			left, err := filepath.Glob(filepath.Join(dir, "*"))
			if err != nil || len(left) > 0 {
				t.Errorf("left behind: %v %v", left, err)
			}
			if hidden, err := filepath.Glob(filepath.Join(dir, ".*")); err != nil || len(hidden) > 0 {
				t.Errorf("left behind: %v %v", hidden, err)
			}
		})
	}
}
