package cli

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"

	"sheaf.dev/sheaf/client"
)

// Store stores the content of data as one record. It uses Put for up to 1 MiB, and Upload for more. It needs 1 MiB of
// memory. Data that can be read again from the start (a ReadSeeker at its start) are sent again when that is safe.
func (c *Conn) Store(ctx context.Context, key client.Key, data io.Reader, options *client.PutOptions) (client.PutResult,
	error) {
	head, err := io.ReadAll(io.LimitReader(data, dataBytesMax+1))
	if err != nil {
		return client.PutResult{}, fmt.Errorf("reading the data: %w", err)
	}
	if len(head) <= dataBytesMax {
		return c.Put(ctx, key, head, options)
	}
	from, ok := data.(io.ReadSeeker)
	if !ok {
		return c.Upload(ctx, key, io.MultiReader(bytes.NewReader(head), data), options)
	}
	if _, err := from.Seek(0, io.SeekStart); err != nil {
		return client.PutResult{}, fmt.Errorf("reading the data: %w", err)
	}
	return c.Upload(ctx, key, from, options)
}

// Fetch reads a version of a record of any size into w. The default is the newest version. Fetch writes the data in
// pieces, each after its CRC32C was checked.
func (c *Conn) Fetch(ctx context.Context, key client.Key, version string, w io.Writer) (client.Record, error) {
	record, err := c.Get(ctx, key, &client.GetOptions{Version: version, BytesMax: dataBytesMax})
	if errors.Is(err, client.ErrTooLarge) {
		return c.Download(ctx, key, w, &client.DownloadOptions{Version: version})
	}
	if err != nil {
		return record, err
	}
	if _, err := w.Write(record.Data); err != nil {
		return record, fmt.Errorf("writing the data: %w", err)
	}
	return record, nil
}

// dataOf returns the data of a record that a scan has returned. A scan leaves large data out. dataOf reads such data by
// another call, which closeData() ends.
func (c *Conn) dataOf(ctx context.Context, r client.Record) (data io.Reader, closeData func(), err error) {
	if r.HasData {
		return bytes.NewReader(r.Data), func() {}, nil
	}
	from, err := c.Open(ctx, r.Key, &client.DownloadOptions{Version: r.Version})
	if err != nil {
		return nil, nil, err
	}
	return from, func() { _ = from.Close() }, nil // never fails
}
