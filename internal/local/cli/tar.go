package cli

import (
	"archive/tar"
	"context"
	"fmt"
	"io"
	"path"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"sheaf.dev/sheaf/client"
)

// WriteScanJSON writes every record of a scan as a line of JSON (see WriteJSONLine).
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

// TarOptions are the options of WriteScanTar.
type TarOptions struct {
	Paths  bool // name each member by the path that import stored for it, and keep symbolic links
	Setuid bool // the same as in ExportOptions
}

// TarReport is the result of WriteScanTar.
type TarReport struct {
	Privileged int64  // members whose setuid, setgid or sticky bit was left out
	Failed     Failed // records that are not in the archive
}

// paxPrefix is the prefix of the PAX keywords with a record's properties. GNU tar treats keywords with this prefix as
// extended attributes, and warns about unknown keywords.
const paxPrefix = "SCHILY.xattr.user.sheaf."

// paxKeys escapes the characters that a keyword must not contain, in the same way as GNU tar and star.
var paxKeys = strings.NewReplacer("%", "%25", "=", "%3D", "\x00", "%00")

// WriteScanTar writes every record of a scan as a member of a tar archive. The member's name is GROUP/ID.bin. With
// Paths, it is the path that export would give the record. Every member has the record's version, id, group and
// attributes in PAX records SCHILY.xattr.user.sheaf.version, .id, .group and .attribute.KEY. If a record cannot be a
// member of the archive, the report counts it, and the list of failures names it. An example is a record whose path
// conflicts with that of another record.
func (c *Conn) WriteScanTar(ctx context.Context, out *Output, options *client.ScanOptions, opts TarOptions,
	w io.Writer) (TarReport, error) {
	t := &tarWriter{opts: opts, archive: tar.NewWriter(w)}
	report := TarReport{Failed: Failed{}}
	failed := failures{n: report.Failed}
	for r, err := range c.Scan(ctx, options) {
		if err != nil {
			return report, fmt.Errorf("scanning: %w", err)
		}
		h, left, problem := t.header(r)
		if problem == nil {
			err = c.withData(ctx, r, func(data io.Reader) (err error) {
				problem, err = t.write(h, data)
				return err
			})
		}
		switch {
		case err != nil:
			return report, err
		case problem != nil:
			failed.add(*problem, out)
		case left:
			report.Privileged++
		}
	}
	return report, t.archive.Close()
}

// tarWriter writes one tar archive.
type tarWriter struct {
	opts    TarOptions
	archive *tar.Writer
	names   treeNames // used with TarOptions.Paths
}

// header returns the header of a record's member, and whether mode bits were left out of the header. A failure means
// that the record has no place in the archive.
func (t *tarWriter) header(r client.Record) (h *tar.Header, left bool, failed *failure) {
	id, at := strconv.FormatInt(r.Key.ID, 10), mtimeOf(r)
	h = &tar.Header{
		Typeflag: tar.TypeReg,
		// WebDataset skips names without an extension.
		Name:    path.Join(r.Key.Group, id+".bin"),
		Size:    r.Size,
		Mode:    0o644,
		ModTime: time.Unix(at.Sec, at.Nsec),
		Format:  tar.FormatPAX,
		PAXRecords: map[string]string{
			paxPrefix + "version": r.Version, paxPrefix + "id": id, paxPrefix + "group": r.Key.Group,
		},
	}
	for k, v := range r.Attributes {
		h.PAXRecords[paxPrefix+"attribute."+paxKeys.Replace(k)] = string(v)
	}
	if !isSymlink(r) {
		var mode uint32
		mode, left = modeOf(r, t.opts.Setuid)
		h.Mode = int64(mode)
	}
	if !t.opts.Paths {
		return h, left, nil
	}
	h.Name, failed, _ = t.names.take(r)
	if isSymlink(r) {
		h.Typeflag, h.Size, h.Mode = tar.TypeSymlink, 0, 0o777
	}
	if failed == nil && strings.ContainsRune(h.Name, 0) {
		failed = &failure{failWrite, h.Name, "a name in an archive has no NUL byte"}
	}
	return h, left, failed
}

// write writes a member. A failure means that the member is not in the archive, and that the archive continues without
// it.
func (t *tarWriter) write(h *tar.Header, data io.Reader) (*failure, error) {
	if h.Typeflag == tar.TypeSymlink {
		target, err := io.ReadAll(io.LimitReader(data, unix.PathMax))
		if err != nil {
			return nil, err
		}
		h.Linkname = string(target)
		if h.Linkname == "" || strings.ContainsRune(h.Linkname, 0) {
			return &failure{failWrite, h.Name, "the target of a symbolic link is not empty and has no NUL byte"}, nil
		}
	}
	if err := t.archive.WriteHeader(h); err != nil {
		return nil, fmt.Errorf("%s as a tar member: %w", displayName(h.Name), err)
	}
	if h.Typeflag == tar.TypeSymlink {
		return nil, nil
	}
	_, err := io.Copy(t.archive, data)
	return nil, err
}

// withData calls use() with the data of a record of a scan.
func (c *Conn) withData(ctx context.Context, r client.Record, use func(io.Reader) error) error {
	data, closeData, err := c.dataOf(ctx, r)
	if err != nil {
		return fmt.Errorf("record %d: %w", r.Key.ID, err)
	}
	defer closeData()
	return use(data)
}
