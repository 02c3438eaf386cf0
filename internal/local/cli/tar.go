package cli

import (
	"archive/tar"
	"bytes"
	"context"
	"fmt"
	"io"
	"io/fs"
	"path"
	"path/filepath"
	"strconv"
	"unicode/utf8"

	"sheaf.dev/sheaf/client"
)

// WriteScanJSON writes every record of a scan as a line of JSON; see WriteJSONLine.
func (c *Conn) WriteScanJSON(ctx context.Context, options *client.ScanOptions, w io.Writer) error {
	for r, err := range c.Scan(ctx, options) {
		if err != nil {
			return fmt.Errorf("scanning: %w", err)
		}
		if options.MetadataOnly {
			err = WriteJSONLine(w, r, nil)
		} else {
			err = c.withData(ctx, r, func(data io.Reader) error { return WriteJSONLine(w, r, data) })
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// WriteScanTar writes every record of a scan as a member of a tar archive: GROUP/ID, or, with names "path", the path
// that import stored. Attributes are in PAX records SHEAF.attribute.KEY, the version in SHEAF.version.
func (c *Conn) WriteScanTar(ctx context.Context, options *client.ScanOptions, names string, w io.Writer) error {
	archive := tar.NewWriter(w)
	for r, err := range c.Scan(ctx, options) {
		if err != nil {
			return fmt.Errorf("scanning: %w", err)
		}
		if err := c.withData(ctx, r, func(data io.Reader) error {
			if err := archive.WriteHeader(tarHeader(r, names)); err != nil {
				return fmt.Errorf("record %d as a tar member: %w", r.Key.ID, err)
			}
			_, err := io.Copy(archive, data)
			return err
		}); err != nil {
			return err
		}
	}
	return archive.Close()
}

func tarHeader(r client.Record, names string) *tar.Header {
	h := &tar.Header{
		Typeflag: tar.TypeReg,
		Name:     path.Join(r.Key.Group, strconv.FormatInt(r.Key.ID, 10)),
		Size:     r.Size,
		Mode:     0o644,
		ModTime:  r.Timestamp,
		Format:   tar.FormatPAX,
		PAXRecords: map[string]string{
			"SHEAF.version": r.Version,
			"SHEAF.id":      strconv.FormatInt(r.Key.ID, 10),
		},
	}
	if mode := modeOf(r); mode != 0 {
		h.Mode = int64(mode & fs.ModePerm)
	}
	for k, v := range r.Attributes {
		// PAX allows neither NUL nor "=" in a key, and no NUL in a value.
		if utf8.Valid(v) && !bytes.ContainsRune(v, 0) && !bytes.ContainsAny([]byte(k), "=\x00") {
			h.PAXRecords["SHEAF.attribute."+k] = string(v)
		}
	}
	p := string(r.Attributes[attributePath])
	if names == "path" && p != "" && filepath.IsLocal(p) {
		h.Name = path.Clean(p)
	}
	return h
}

// withData calls use with the data of a record of a scan.
func (c *Conn) withData(ctx context.Context, r client.Record, use func(io.Reader) error) error {
	data, closeData, err := c.dataOf(ctx, r)
	if err != nil {
		return fmt.Errorf("record %d: %w", r.Key.ID, err)
	}
	defer closeData()
	return use(data)
}
