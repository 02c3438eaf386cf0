package parquetfile

import (
	"fmt"
	"io"

	"github.com/parquet-go/parquet-go"
	"github.com/parquet-go/parquet-go/compress/zstd"
)

// pageBytes is the size at which a page of a column ends, uncompressed. The page index has a place for each page.
const pageBytes = 1 << 20

// Writer writes the records of one file. Its memory is about that of one row group. A Writer must not be used
// concurrently.
type Writer struct {
	file  *parquet.GenericWriter[columns]
	row   parquet.Row
	rows  int   // of the current row group
	bytes int64 // of the current row group
}

// NewWriter creates a Writer. The file is complete only after Close.
func NewWriter(to io.Writer) *Writer {
	return &Writer{file: parquet.NewGenericWriter[columns](to, schema,
		// These encodings are the oldest ones, which every reader knows.
		parquet.DefaultEncodingFor(parquet.ByteArray, &parquet.Plain),
		parquet.Compression(&zstd.Codec{Level: zstd.SpeedFastest}),
		parquet.PageBufferSize(pageBytes),
		// The page index has the bounds of pages. Those in the headers of pages would repeat them, at full length.
		parquet.DataPageStatistics(false), parquet.DeprecatedDataPageStatistics(false),
		// Bounds of data would help no reader, and would make the footer as large as the data.
		parquet.SkipPageBounds("data"), parquet.SkipPageBounds("attributes", "key_value", "value"),
		parquet.CreatedBy("sheaf", "1", ""))}
}

// Write adds a row. It returns an error if the row is larger than a row group, or if the file cannot be written.
func (w *Writer) Write(r *Record) error {
	size := r.bytes()
	if size > RowGroupBytes {
		return fmt.Errorf("record %d of group %s has %d bytes, above %d: give it a status and no data", r.ID, r.Group, size,
			RowGroupBytes)
	}
	if w.rows > 0 && (w.rows == RowGroupRows || w.bytes+size > RowGroupBytes) {
		w.rows, w.bytes = 0, 0
		if err := guarded(w.file.Flush); err != nil {
			return err
		}
	}
	w.rows++
	w.bytes += size
	w.row = r.appendValues(w.row[:0])
	err := guarded(func() error {
		_, err := w.file.WriteRows([]parquet.Row{w.row})
		return err
	})
	clear(w.row) // it must not hold the data of the record
	return err
}

// Close writes the last row group and the footer. It does not close the destination.
func (w *Writer) Close() error { return guarded(w.file.Close) }
