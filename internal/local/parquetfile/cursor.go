package parquetfile

import (
	"errors"
	"fmt"
	"io"

	"github.com/parquet-go/parquet-go"
)

// cursor reads the values of one column of a row group, one for each row, page by page.
type cursor struct {
	name   string
	kind   parquet.Kind
	pages  parquet.Pages
	page   parquet.Page
	values parquet.ValueReader
	buffer [64]parquet.Value
	have   []parquet.Value // values in buffer that were not returned yet
}

func newCursor(group parquet.RowGroup, column *parquet.Column) (*cursor, error) {
	c := &cursor{name: column.Name(), kind: column.Type().Kind()}
	return c, guarded(func() error {
		chunks := group.ColumnChunks()
		if i := column.Index(); i >= 0 && i < len(chunks) {
			c.pages = chunks[i].Pages()
			return nil
		}
		return fmt.Errorf("column %q is missing", c.name)
	})
}

// next returns the next value. Its bytes are valid until the following call.
func (c *cursor) next() (parquet.Value, error) {
	if len(c.have) == 0 {
		if err := guarded(c.fill); err != nil {
			return parquet.Value{}, err
		}
	}
	v := c.have[0]
	c.have = c.have[1:]
	if !v.IsNull() && v.Kind() != c.kind {
		return v, fmt.Errorf("a value of type %v where %v is expected", v.Kind(), c.kind)
	}
	return v, nil
}

// fill reads values until there is at least one.
func (c *cursor) fill() error {
	for {
		if c.values != nil {
			n, err := c.values.ReadValues(c.buffer[:])
			if n < 0 || n > len(c.buffer) {
				return errors.New("a page is damaged")
			}
			if c.have = c.buffer[:n]; n > 0 {
				return nil // an error is returned again by the next call
			}
			if err == nil {
				err = io.ErrNoProgress
			}
			if !errors.Is(err, io.EOF) {
				return err
			}
			c.release()
		}
		page, err := c.pages.ReadPage()
		if errors.Is(err, io.EOF) {
			return errors.New("the column ends before the row group")
		}
		if err != nil {
			return err
		}
		c.page, c.values = page, page.Values()
	}
}

func (c *cursor) release() {
	if c.page != nil {
		parquet.Release(c.page)
	}
	c.page, c.values = nil, nil
}

// close frees the pages. An error does not matter, because the pages were only read.
func (c *cursor) close() {
	_ = guarded(func() error {
		c.release()
		if c.pages == nil {
			return nil
		}
		return c.pages.Close()
	})
}
