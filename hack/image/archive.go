package main

import (
	"archive/tar"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"sort"
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/types"
	"github.com/google/go-containerregistry/pkg/v1/validate"
)

// Write builds the image and writes its archive. It writes to a temporary file and renames it, so that a reader never
// sees an incomplete archive. It returns the digest of the image. If there are several platforms, it returns the digest
// of their index.
func Write(s Spec, output string) (digest v1.Hash, err error) {
	tag, err := s.tag()
	if err != nil {
		return digest, err
	}
	if len(s.Binaries) == 0 {
		return digest, errors.New("want at least one --binary")
	}
	if err := os.MkdirAll(filepath.Dir(output), 0o755); err != nil {
		return digest, err
	}
	dir, err := os.MkdirTemp(filepath.Dir(output), ".image-*")
	if err != nil {
		return digest, err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	root := filepath.Join(dir, "layout")
	digest, err = s.writeLayout(root, tag)
	if err != nil {
		return digest, err
	}
	if err := check(root); err != nil {
		return digest, err
	}
	part := filepath.Join(dir, "part.tar")
	if err := archive(root, part, s.Created); err != nil {
		return digest, err
	}
	return digest, os.Rename(part, output)
}

// check reads the written files back, and checks that every blob has the digest and the size in its descriptor.
func check(root string) error {
	index, err := layout.ImageIndexFromPath(root)
	if err == nil {
		err = validate.Index(index)
	}
	if err != nil {
		return fmt.Errorf("what was written is not a valid image: %w", err)
	}
	return nil
}

// writeLayout writes the folder of an OCI image layout.
func (s *Spec) writeLayout(root string, tag string) (digest v1.Hash, err error) {
	dir, err := layout.Write(root, empty.Index)
	if err != nil {
		return digest, err
	}
	sort.Slice(s.Binaries, func(a, b int) bool {
		return s.Binaries[a].Platform.String() < s.Binaries[b].Platform.String()
	})
	index := mutate.IndexMediaType(empty.Index, types.OCIImageIndex)
	var images []v1.Image
	for _, b := range s.Binaries {
		img, err := s.image(b)
		if err != nil {
			return digest, err
		}
		images = append(images, img)
		index = mutate.AppendManifests(index, mutate.IndexAddendum{Add: img,
			Descriptor: v1.Descriptor{Platform: &b.Platform}})
	}
	// The first annotation is for containerd, which takes the image's name from it. Other tools take the tag from the
	// second one.
	named := layout.WithAnnotations(map[string]string{
		"io.containerd.image.name":          s.Name,
		"org.opencontainers.image.ref.name": tag,
	})
	if len(images) > 1 {
		if err := dir.AppendIndex(index, named); err != nil {
			return digest, err
		}
		return index.Digest()
	}
	if err := dir.AppendImage(images[0], named, layout.WithPlatform(s.Binaries[0].Platform)); err != nil {
		return digest, err
	}
	if err := writeManifest(root, images[0], s.Name); err != nil {
		return digest, err
	}
	return images[0].Digest()
}

// writeManifest writes the manifest.json that `docker load` requires. It describes only one platform.
func writeManifest(root string, img v1.Image, imageName string) error {
	type entry struct {
		Config   string
		RepoTags []string
		Layers   []string
	}
	config, err := img.ConfigName()
	if err != nil {
		return err
	}
	e := entry{Config: blob(config), RepoTags: []string{imageName}}
	layers, err := img.Layers()
	if err != nil {
		return err
	}
	for _, layer := range layers {
		digest, err := layer.Digest()
		if err != nil {
			return err
		}
		e.Layers = append(e.Layers, blob(digest))
	}
	data, err := json.Marshal([]entry{e})
	if err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(root, "manifest.json"), data, 0o644)
}

func blob(h v1.Hash) string { return "blobs/" + h.Algorithm + "/" + h.Hex }

// archive writes a folder as a tar file, with the files in the order of their names.
func archive(root, output string, modified time.Time) (err error) {
	out, err := os.Create(output)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, out.Close()) }()
	w := tar.NewWriter(out)
	err = filepath.WalkDir(root, func(path string, entry fs.DirEntry, err error) error {
		if err != nil || path == root {
			return err
		}
		relative, err := filepath.Rel(root, path)
		if err != nil {
			return err
		}
		if entry.IsDir() {
			return writeFile(w, file{name: relative + "/", mode: 0o755}, modified)
		}
		data, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		return writeFile(w, file{name: relative, mode: 0o644, data: data}, modified)
	})
	if err != nil {
		return err
	}
	return w.Close()
}
