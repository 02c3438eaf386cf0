package sheaftest_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log"
	"os"
	"strings"
	"time"

	"sheaf.dev/sheaf/client"
	"sheaf.dev/sheaf/sheaftest"
)

// connect runs a store for an example; a real program gives the address of its gateway instead.
func connect(cfg sheaftest.Config) (c *client.Client, done func()) {
	server, err := sheaftest.New(cfg)
	if err != nil {
		log.Fatal(err)
	}
	c, err = client.New(client.Config{Addresses: []string{server.Addr()}})
	if err != nil {
		log.Fatal(err)
	}
	return c, func() {
		if err := errors.Join(c.Close(), server.Close()); err != nil {
			log.Fatal(err)
		}
	}
}

func Example_putAndGet() {
	c, done := connect(sheaftest.Config{})
	defer done()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()

	put, err := c.Put(ctx, client.Key{ID: 42}, []byte("EURUSD 1.0834"), nil)
	if err != nil {
		fmt.Println(err)
		return
	}
	record, err := c.Get(ctx, client.Key{ID: 42}, nil)
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Printf("%s, version as put: %v\n", record.Data, record.Version == put.Version)

	_, err = c.Get(ctx, client.Key{ID: 43}, nil)
	fmt.Println("43 is not there:", errors.Is(err, client.ErrNotFound))
	// Output:
	// EURUSD 1.0834, version as put: true
	// 43 is not there: true
}

// A write can depend on the version that was read: it succeeds only if nobody has written the record in between.
func Example_putCondition() {
	c, done := connect(sheaftest.Config{})
	defer done()
	ctx := context.Background()
	key := client.Key{ID: 7}

	first, err := c.Put(ctx, key, []byte("1"), &client.PutOptions{IfAbsent: true})
	if err != nil {
		fmt.Println(err)
		return
	}
	if _, err = c.Put(ctx, key, []byte("2"), &client.PutOptions{IfVersion: first.Version}); err != nil {
		fmt.Println(err)
		return
	}
	_, err = c.Put(ctx, key, []byte("3"), &client.PutOptions{IfVersion: first.Version})
	var e *client.Error
	fmt.Println(errors.Is(err, client.ErrVersionMismatch), errors.As(err, &e) && e.Version != first.Version)
	// Output: true true
}

// Records of any size are streamed, with bounded memory.
func Example_upload() {
	c, done := connect(sheaftest.Config{})
	defer done()
	ctx := context.Background()
	key := client.Key{ID: 1}

	if _, err := c.Upload(ctx, key, strings.NewReader(strings.Repeat("sheaf ", 1_000_000)), nil); err != nil {
		fmt.Println(err)
		return
	}
	var slice bytes.Buffer
	record, err := c.Download(ctx, key, &slice, &client.DownloadOptions{Offset: 5_999_988, Length: 11})
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Printf("%d bytes, ending in %q\n", record.Size, slice.String())
	// Output: 6000000 bytes, ending in "sheaf sheaf"
}

// A batcher collects many small puts into few messages.
func Example_batcher() {
	c, done := connect(sheaftest.Config{})
	defer done()
	ctx := context.Background()

	batcher, err := c.NewBatcher(client.BatcherConfig{})
	if err != nil {
		fmt.Println(err)
		return
	}
	for id := range int64(1000) {
		item := client.PutItem{Key: client.Key{ID: id}, Data: []byte("tick")}
		err := batcher.Put(ctx, item, func(_ client.PutResult, err error) {
			if err != nil {
				fmt.Fprintf(os.Stderr, "record %d: %v\n", id, err)
			}
		})
		if err != nil {
			fmt.Println(err)
			return
		}
	}
	if err := batcher.Close(ctx); err != nil {
		fmt.Println(err)
		return
	}
	outcomes := c.BatchGet(ctx, []client.GetItem{{Key: client.Key{ID: 0}}, {Key: client.Key{ID: 999}}})
	for _, outcome := range outcomes {
		fmt.Printf("%d: %s\n", outcome.Record.Key.ID, outcome.Record.Data)
	}
	// Output:
	// 0: tick
	// 999: tick
}

// Scan reads the whole store, several splits at a time.
func Example_scan() {
	c, done := connect(sheaftest.Config{Groups: 8})
	defer done()
	ctx := context.Background()
	for id := range int64(20) {
		if _, err := c.Put(ctx, client.Key{ID: id}, []byte("x"), nil); err != nil {
			fmt.Println(err)
			return
		}
	}

	records, bytes := 0, int64(0)
	for record, err := range c.Scan(ctx, &client.ScanOptions{Parallel: 4}) {
		if err != nil {
			fmt.Println(err)
			return
		}
		records++
		bytes += record.Size
	}
	fmt.Println(records, "records,", bytes, "bytes")
	// Output: 20 records, 20 bytes
}

// In Named routing, the caller names the group, and several groups may have a record with the same id.
func Example_find() {
	c, done := connect(sheaftest.Config{Named: true})
	defer done()
	ctx := context.Background()
	for _, day := range []string{"2026-11-19", "2026-11-20"} {
		if _, err := c.Put(ctx, client.Key{ID: 42, Group: day}, []byte("closing price"), nil); err != nil {
			fmt.Println(err)
			return
		}
	}

	found, err := c.Find(ctx, 42)
	if err != nil {
		fmt.Println(err)
		return
	}
	for _, record := range found {
		fmt.Println(record.Key)
	}
	// Output:
	// 2026-11-19/42
	// 2026-11-20/42
}

func Example_groups() {
	c, done := connect(sheaftest.Config{Named: true})
	defer done()
	ctx := context.Background()
	for id, day := range []string{"2026-11-19", "2026-11-20", "2026-11-20"} {
		if _, err := c.Put(ctx, client.Key{ID: int64(id), Group: day}, []byte("closing price"), nil); err != nil {
			fmt.Println(err)
			return
		}
	}

	for group, err := range c.Groups(ctx) {
		if err != nil {
			fmt.Println(err)
			return
		}
		fmt.Println(group.Name, group.Records)
	}
	// Output:
	// 2026-11-19 1
	// 2026-11-20 2
}

func Example_versions() {
	c, done := connect(sheaftest.Config{})
	defer done()
	ctx := context.Background()
	key := client.Key{ID: 5}
	for _, data := range []string{"one", "three"} {
		if _, err := c.Put(ctx, key, []byte(data), nil); err != nil {
			fmt.Println(err)
			return
		}
	}

	for record, err := range c.Versions(ctx, key) {
		if err != nil {
			fmt.Println(err)
			return
		}
		fmt.Println(record.Size, "bytes")
	}
	// Output:
	// 5 bytes
	// 3 bytes
}
