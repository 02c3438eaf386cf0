package main

import (
	"context"
	"fmt"
	"io"
	"os"
	"strconv"
	"time"

	"github.com/spf13/cobra"

	recordv1 "sheaf.dev/sheaf/api/sheaf/record/v1"
	"sheaf.dev/sheaf/internal/cli"
)

func (a *app) putCommand() *cobra.Command {
	var key keyFlags
	var condition conditionFlags
	var attributes []string
	var timestamp string
	cmd := &cobra.Command{
		Use:     "put ID [FILE|-]",
		Short:   "Store a record",
		GroupID: groupRecords,
		Long: `Stores the bytes of a file, or of standard input, as a new version of a record, and prints the version. Data of any
size: above 1 MiB it is uploaded as a stream.`,
		Example: `  echo hello | sheaf put 42
  sheaf put 0x2a picture.png --attr type=image/png
  sheaf put 42 new.txt --if-version 17`,
		Args: cobra.RangeArgs(1, 2),
		RunE: a.call(true, func(ctx context.Context, conn *cli.Conn, args []string) (err error) {
			opts := cli.PutOptions{Condition: condition.condition()}
			if opts.Key, err = key.key(args[0]); err != nil {
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
				opts.Timestamp = &ns
			}
			source, size, err := openSource(args)
			if err != nil {
				return fmt.Errorf("put %d: %w", opts.Key.GetId(), err)
			}
			defer source.Close() //nolint:errcheck // only read from
			opts.SizeBytes = size
			var response *recordv1.PutResponse
			var n int64
			err = orInterrupted(ctx, func() (err error) {
				response, n, err = conn.Put(ctx, opts, source)
				return err
			})
			if err != nil {
				return fmt.Errorf("put %d: %w", opts.Key.GetId(), err)
			}
			if !a.out.JSON {
				_, err = fmt.Fprintln(a.out.Out, response.GetVersion())
				return err
			}
			return a.out.WriteJSON(map[string]any{
				"id": strconv.FormatInt(opts.Key.GetId(), 10), "version": response.GetVersion(), "size_bytes": n,
				"commit_time": cli.FormatTime(response.GetCommitTimeUnixNs()), "crc32c": cli.FormatCRC(response.GetDataCrc32C()),
			})
		}),
	}
	key.add(cmd)
	cmd.Flags().StringArrayVar(&attributes, "attr", nil, "attribute key=value; may be given many times")
	cmd.Flags().StringVar(&timestamp, "timestamp", "", "the record's time: RFC 3339 or Unix nanoseconds (default: when it is stored)")
	cmd.Flags().StringVar(&condition.ifVersion, "if-version", "", "only if the newest version is this one")
	cmd.Flags().BoolVar(&condition.ifAbsent, "if-absent", false, "only if there is no such record")
	cmd.MarkFlagsMutuallyExclusive("if-version", "if-absent")
	return cmd
}

// openSource opens the file named second, or standard input. The size is nil where it is not known.
func openSource(args []string) (io.ReadCloser, *int64, error) {
	if len(args) < 2 || args[1] == "-" {
		return io.NopCloser(os.Stdin), nil, nil
	}
	f, err := os.Open(args[1])
	if err != nil {
		return nil, nil, err
	}
	info, err := f.Stat()
	if err == nil && info.IsDir() {
		err = fmt.Errorf("%s is a folder (sheaf import stores a tree)", args[1])
	}
	if err != nil {
		return nil, nil, err
	}
	if !info.Mode().IsRegular() {
		return f, nil, nil
	}
	size := info.Size()
	return f, &size, nil
}

// orInterrupted returns when do does, or ctx ends: a read of standard input cannot be interrupted, so it is left behind.
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
		case <-time.After(time.Second): // for the call to say how it ended
			return context.Cause(ctx)
		}
	}
}
