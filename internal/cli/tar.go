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
	"time"
	"unicode/utf8"

	recordv1 "sheaf.dev/sheaf/api/sheaf/record/v1"
)

// WriteScanJSON writes every record of a scan as a line of JSON; see WriteJSONLine.
func (c *Conn) WriteScanJSON(ctx context.Context, request *recordv1.ScanRequest, w io.Writer) error {
	return c.Scan(ctx, request, func(r *recordv1.Record) error {
		if request.GetMetadataOnly() {
			return WriteJSONLine(w, r, nil)
		}
		return c.withData(ctx, r, func(data io.Reader) error { return WriteJSONLine(w, r, data) })
	})
}

// WriteScanTar writes every record of a scan as a member of a tar archive: GROUP/ID, or, with names "path", the path that
// import kept. Attributes stand in PAX records SHEAF.attribute.KEY, the version in SHEAF.version.
func (c *Conn) WriteScanTar(ctx context.Context, request *recordv1.ScanRequest, names string, w io.Writer) error {
	archive := tar.NewWriter(w)
	err := c.Scan(ctx, request, func(r *recordv1.Record) error {
		return c.withData(ctx, r, func(data io.Reader) error {
			if err := archive.WriteHeader(tarHeader(r, names)); err != nil {
				return fmt.Errorf("record %d as a tar member: %w", r.GetKey().GetId(), err)
			}
			_, err := io.Copy(archive, data)
			return err
		})
	})
	if err != nil {
		return err
	}
	return archive.Close()
}

func tarHeader(r *recordv1.Record, names string) *tar.Header {
	h := &tar.Header{
		Typeflag: tar.TypeReg,
		Name:     path.Join(r.GetKey().GetGroup(), strconv.FormatInt(r.GetKey().GetId(), 10)),
		Size:     r.GetSizeBytes(),
		Mode:     0o644,
		ModTime:  time.Unix(0, r.GetTimestampUnixNs()),
		Format:   tar.FormatPAX,
		PAXRecords: map[string]string{
			"SHEAF.version": r.GetVersion(),
			"SHEAF.id":      strconv.FormatInt(r.GetKey().GetId(), 10),
		},
	}
	if mode := modeOf(r); mode != 0 {
		h.Mode = int64(mode & fs.ModePerm)
	}
	for k, v := range r.GetAttributes() {
		// PAX allows neither NUL nor "=" in a key, and no NUL in a value.
		if utf8.Valid(v) && !bytes.ContainsRune(v, 0) && !bytes.ContainsAny([]byte(k), "=\x00") {
			h.PAXRecords["SHEAF.attribute."+k] = string(v)
		}
	}
	p := string(r.GetAttributes()[AttributePath])
	if names == "path" && p != "" && filepath.IsLocal(p) {
		h.Name = path.Clean(p)
	}
	return h
}

// withData calls use with the data of a record of a scan, downloaded where the scan left it out because of its size.
func (c *Conn) withData(ctx context.Context, r *recordv1.Record, use func(io.Reader) error) error {
	if r.GetSizeBytes() <= dataBytesMax {
		if err := CheckData(r); err != nil {
			return err
		}
		return use(bytes.NewReader(r.GetData()))
	}
	d, err := c.OpenDownload(ctx, &recordv1.DownloadRequest{Key: r.GetKey(), Version: r.GetVersion()})
	if err != nil {
		return fmt.Errorf("record %d: %w", r.GetKey().GetId(), err)
	}
	defer d.Close()
	return use(d)
}
