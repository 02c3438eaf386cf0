// This program shows the Go client of Sheaf against a store on 127.0.0.1:7600, or at SHEAF_ADDRESS.
package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"log"
	"os"
	"sync"
	"time"

	"sheaf.dev/sheaf/client"
)

func main() {
	if err := connectAndRun(); err != nil {
		log.Fatal(err)
	}
}

func connectAndRun() error {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	cfg, err := config()
	if err != nil {
		return err
	}
	c, err := client.Dial(ctx, cfg)
	if err != nil {
		return err
	}
	return errors.Join(run(ctx, c, os.Stdout), c.Close())
}

// config returns the address of the store and the identity of the caller. `sheaf dev --tls` prints SHEAF_CA, SHEAF_CERT
// and SHEAF_KEY. In a pod, SHEAF_TOKEN_FILE names a token of its ServiceAccount, and the caller needs no certificate.
// The client reads the files again when they change.
func config() (client.Config, error) {
	cfg := client.Config{Addresses: []string{cmp.Or(os.Getenv("SHEAF_ADDRESS"), "127.0.0.1:7600")}, FailFast: true}
	if ca := os.Getenv("SHEAF_CA"); ca != "" {
		files := client.TLSFiles{CA: ca, Cert: os.Getenv("SHEAF_CERT"), Key: os.Getenv("SHEAF_KEY")}
		credentials, err := client.TLS(files)
		if err != nil {
			return cfg, err
		}
		cfg.Credentials = credentials
	}
	if file := os.Getenv("SHEAF_TOKEN_FILE"); file != "" {
		cfg.CallCredentials = client.Token(file)
	}
	return cfg, nil
}

func run(ctx context.Context, c *client.Client, out io.Writer) error {
	key := client.Key{ID: 42}
	put, err := c.Put(ctx, key, []byte("hello"), nil)
	if err != nil {
		return err
	}
	// This put succeeds only if nobody has written the record since the put above.
	if _, err := c.Put(ctx, key, []byte("hello again"), &client.PutOptions{IfVersion: put.Version}); err != nil {
		return err
	}
	record, err := c.Get(ctx, key, nil)
	if err != nil {
		return err
	}
	fmt.Fprintf(out, "%s\n", record.Data)
	_, err = c.Put(ctx, key, []byte("too late"), &client.PutOptions{IfVersion: put.Version})
	fmt.Fprintln(out, "version mismatch:", errors.Is(err, client.ErrVersionMismatch))
	if err := many(ctx, c, out); err != nil {
		return err
	}
	return follow(ctx, c, record.Key, out)
}

// many writes 1,000 small records in few messages. Each record has its own outcome.
func many(ctx context.Context, c *client.Client, out io.Writer) error {
	items := make([]client.PutItem, 1000)
	for i := range items {
		items[i] = client.PutItem{Key: client.Key{ID: int64(1000 + i)}, Data: []byte("many")}
	}
	for i, outcome := range c.BatchPut(ctx, items) {
		if outcome.Err != nil {
			return fmt.Errorf("record %v: %w", items[i].Key, outcome.Err)
		}
	}
	fmt.Fprintln(out, len(items), "records written")
	return nil
}

// follow watches the group of a record, changes the record, and waits until the watch reports the change.
func follow(ctx context.Context, c *client.Client, key client.Key, out io.Writer) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	change := sync.OnceFunc(func() {
		if _, err := c.Put(ctx, key, []byte("changed"), nil); err != nil {
			cancel(err)
		}
	})
	// The first cursor arrives before any change. A program stores each cursor together with the results of the
	// records before it, and starts its next watch from that cursor.
	options := &client.WatchOptions{OnCursor: func([]byte) { change() }}
	for record, err := range c.Watch(ctx, key.Group, options) {
		if err != nil {
			return err
		}
		if record.Key == key {
			fmt.Fprintf(out, "record %d is now %q\n", record.Key.ID, record.Data)
			break
		}
	}
	return nil
}
