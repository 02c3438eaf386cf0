package parquetcli

import (
	"bufio"
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"hash"

	"sheaf.dev/sheaf/client"
	"sheaf.dev/sheaf/client/call/reason"
	"sheaf.dev/sheaf/internal/base/crc32c"
	"sheaf.dev/sheaf/internal/local/cli"
	"sheaf.dev/sheaf/internal/local/parquetfile"
	"sheaf.dev/sheaf/internal/storage/vfs"
)

// file writes one file under another name, makes it durable, gives it its name, and adds it to the journal. So a file
// that has its name is complete, and the journal never names another one.
func (e *exporter) file(ctx context.Context, f fileInfo) error {
	temp := e.at(tempName(f.Name))
	to, err := vfs.CreateReplacing(e.fsys, temp)
	if err != nil {
		return fmt.Errorf("writing %s: %w", e.at(f.Name), err)
	}
	r, err := e.fill(ctx, to, f)
	if err == nil {
		err = to.Sync()
	}
	if err = errors.Join(err, to.Close()); err == nil {
		err = e.fsys.Rename(temp, e.at(f.Name))
	} else {
		_ = e.fsys.Remove(temp) // the next run replaces a file that stays
	}
	if err == nil {
		err = e.fsys.SyncDir(e.dir)
	}
	if err != nil {
		return fmt.Errorf("writing %s: %w", e.at(f.Name), err)
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	if err := e.journal.add(f.Name, r); err != nil {
		return err
	}
	e.done[f.Name] = r
	return nil
}

// fill writes the records of a split to a file.
func (e *exporter) fill(ctx context.Context, to vfs.File, f fileInfo) (result, error) {
	sink := &sink{file: to, sum: sha256.New()}
	buffered := bufio.NewWriterSize(sink, 1<<20)
	writer := parquetfile.NewWriter(buffered)
	var r result
	for record, err := range e.source.Scan(ctx, &client.ScanOptions{Split: &client.Split{Token: f.Split}}) {
		if errors.Is(err, client.ErrDataLoss) { // all other records have come
			r.Damaged = cli.Describe(err, "")
			break
		}
		if err != nil {
			return r, err
		}
		row, err := e.row(ctx, record, f.Name)
		if err != nil {
			return r, err
		}
		if err := writer.Write(&row); err != nil {
			return r, err
		}
		if row.Status != "" {
			r.NoData++
		}
		r.Records++
		r.Bytes += int64(len(row.Data))
		e.records.Add(1)
		e.bytes.Add(int64(len(row.Data)))
	}
	if err := errors.Join(writer.Close(), buffered.Flush()); err != nil {
		return r, err
	}
	if r.Damaged != "" {
		e.failed.Add(failDamaged, f.Name, errors.New(r.Damaged))
	}
	r.FileBytes, r.SHA256 = sink.size, hex.EncodeToString(sink.sum.Sum(nil))
	return r, nil
}

// row turns a record into a row. Data that a scan leaves out are downloaded, up to what a row may have.
func (e *exporter) row(ctx context.Context, r client.Record, file string) (parquetfile.Record, error) {
	row := parquetfile.Record{Group: r.Key.Group, ID: r.Key.ID, Version: r.Version, Timestamp: r.Timestamp.UnixNano(),
		CommitTime: r.CommitTime.UnixNano(), Attributes: r.Attributes, Size: r.Size, Data: r.Data}
	var why error
	switch {
	case r.HasData:
	case r.Size > parquetfile.DataBytesMax:
		row.Status = reason.UseDownload
		why = fmt.Errorf("%s are above the %s of a row", cli.FormatBytes(r.Size), cli.FormatBytes(parquetfile.DataBytesMax))
	default:
		data := bytes.NewBuffer(make([]byte, 0, r.Size))
		_, err := e.source.Download(ctx, r.Key, data, &client.DownloadOptions{Version: r.Version})
		if err == nil && int64(data.Len()) != r.Size {
			err = fmt.Errorf("reading record %s: %d bytes came of %d", r.Key, data.Len(), r.Size)
		}
		if row.Data = data.Bytes(); err != nil {
			if row.Status = statusOf(err); row.Status == "" || ctx.Err() != nil {
				return row, err
			}
			why = err
		}
	}
	if row.Status != "" {
		row.Data = nil
		e.failed.Add(failNoData, fmt.Sprintf("%s: record %s", file, r.Key), why)
		return row, nil
	}
	row.CRC32C = crc32c.Of(row.Data)
	return row, nil
}

// statusOf returns the status of a row whose data cannot be read for a reason that concerns only this record, and ""
// for all other errors.
func statusOf(err error) string {
	for _, one := range []error{client.ErrDataLoss, client.ErrPermissionDenied, client.ErrVersionNotFound} {
		if errors.Is(err, one) {
			return reason.Of(err)
		}
	}
	return ""
}

// sink appends to a file, and computes its digest.
type sink struct {
	file vfs.File
	sum  hash.Hash
	size int64
}

// Write implements io.Writer.
func (s *sink) Write(p []byte) (int, error) {
	n, err := s.file.WriteAt(p, s.size)
	s.sum.Write(p[:n])
	s.size += int64(n)
	return n, err
}

// report returns the numbers of the files that are complete.
func (e *exporter) report() ExportReport {
	if e.manifest == nil {
		return ExportReport{}
	}
	r := ExportReport{View: e.manifest.View, Complete: e.manifest.Complete, Earlier: e.earlier,
		Files: int64(len(e.done)), Failed: e.failed.Counts()}
	for _, one := range e.done {
		r.Records += one.Records
		r.Bytes += one.Bytes
		r.FileBytes += one.FileBytes
		r.NoData += one.NoData
		if one.Damaged != "" {
			r.Damaged++
		}
	}
	return r
}
