package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strconv"
	"time"

	"github.com/spf13/cobra"

	"sheaf.dev/sheaf/client"
	"sheaf.dev/sheaf/internal/local/cli"
)

func putCommand(a *app) *cobra.Command {
	var key keyFlags
	var opts client.PutOptions
	var attributes []string
	var timestamp string
	cmd := &cobra.Command{
		Use:     "put ID [FILE|-]",
		Short:   "Store a record",
		GroupID: groupRecords,
		Long: `Stores the bytes of a file, or of standard input, as a new version of a record, and prints the
version. Data of any size: above 1 MiB it is uploaded as a stream.`,
		Example: `  echo hello | sheaf put 42
  sheaf put 0x2a picture.png --attr type=image/png
  sheaf put 42 new.txt --if-version 17`,
		Args: cobra.RangeArgs(1, 2),
		RunE: a.call(true, func(ctx context.Context, conn *cli.Conn, args []string) error {
			k, err := key.key(args[0])
			if err != nil {
				return err
			}
			if opts.Attributes, err = cli.ParseAttributes(attributes); err != nil {
				return err
			}
			if timestamp != "" {
				ns, err := cli.ParseTimestamp(timestamp)
				if err != nil {
					return err
				}
				opts.Timestamp = time.Unix(0, ns)
			}
			source, err := openSource(args)
			if err != nil {
				return fmt.Errorf("put %d: %w", k.ID, err)
			}
			defer source.Close() //nolint:errcheck // the file was only read
			var result client.PutResult
			err = orInterrupted(ctx, func() (err error) {
				result, err = conn.Store(ctx, k, source, &opts)
				return err
			})
			if err != nil {
				return fmt.Errorf("put %d: %w", k.ID, err)
			}
			return a.Out.Print(map[string]any{
				"id": strconv.FormatInt(k.ID, 10), "version": result.Version, "sizeBytes": result.Size,
				"commitTime": cli.FormatTime(result.CommitTime), "crc32c": cli.FormatCRC(result.CRC32C),
			}, "%s\n", result.Version)
		}),
	}
	key.add(cmd)
	cmd.Flags().StringArrayVar(&attributes, "attr", nil, "attribute key=value; may be given many times")
	cmd.Flags().StringVar(&timestamp, "timestamp", "",
		"the record's time: RFC 3339 or Unix nanoseconds (default: when it is stored)")
	cmd.Flags().StringVar(&opts.IfVersion, "if-version", "", "only if the newest version is this one")
	cmd.Flags().BoolVar(&opts.IfAbsent, "if-absent", false, "only if there is no such record")
	cmd.MarkFlagsMutuallyExclusive("if-version", "if-absent")
	return cmd
}

// openSource opens the file named by the second argument, or standard input. The result is an io.Seeker only if it
// can be rewound and read again.
func openSource(args []string) (io.ReadCloser, error) {
	if len(args) < 2 || args[1] == "-" {
		return io.NopCloser(os.Stdin), nil
	}
	f, err := os.Open(args[1])
	if err != nil {
		return nil, err
	}
	info, err := f.Stat()
	if err == nil && info.IsDir() {
		err = fmt.Errorf("%s is a folder (sheaf import stores a tree)", args[1])
	}
	if err != nil {
		return nil, errors.Join(err, f.Close())
	}
	if !info.Mode().IsRegular() {
		return struct{ io.ReadCloser }{f}, nil
	}
	return f, nil
}

// orInterrupted returns when do() returns or when ctx ends. It may return while do() still runs, because a read of
// standard input cannot be interrupted.
func orInterrupted(ctx context.Context, do func() error) error {
	done := make(chan error, 1)
	go func() { done <- do() }()
	select {
	case err := <-done:
		return err
	case <-ctx.Done():
		select {
		case err := <-done:
			return err
		case <-time.After(time.Second): // gives the call time to return its error
			return context.Cause(ctx)
		}
	}
}

func rmCommand(a *app) *cobra.Command {
	var key keyFlags
	var opts client.DeleteOptions
	var ignore bool
	cmd := &cobra.Command{
		Use:     "rm ID",
		Short:   "Delete a record",
		GroupID: groupRecords,
		Long:    "Writes a delete version of a record. A record that is not there is exit code 3, unless --ignore-not-found.",
		Args:    cobra.ExactArgs(1),
		RunE: a.call(false, func(ctx context.Context, conn *cli.Conn, args []string) error {
			k, err := key.key(args[0])
			if err != nil {
				return err
			}
			result, err := conn.Delete(ctx, k, &opts)
			if err != nil {
				return fmt.Errorf("rm %d: %w", k.ID, err)
			}
			if a.Out.JSON {
				err = a.Out.WriteJSON(map[string]any{
					"id": strconv.FormatInt(k.ID, 10), "existed": result.Existed, "version": result.Version,
				})
			}
			if err == nil && !result.Existed && !ignore {
				return cli.NotFoundf("rm %d: there is no such record", k.ID)
			}
			return err
		}),
	}
	key.add(cmd)
	cmd.Flags().StringVar(&opts.IfVersion, "if-version", "", "only if the newest version is this one")
	cmd.Flags().BoolVar(&ignore, "ignore-not-found", false, "succeed where there is no such record")
	return cmd
}
