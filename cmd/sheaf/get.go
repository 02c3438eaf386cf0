package main

import (
	"bytes"
	"context"
	"fmt"
	"io"

	"github.com/spf13/cobra"

	"sheaf.dev/sheaf/client"
	"sheaf.dev/sheaf/internal/local/cli"
	"sheaf.dev/sheaf/internal/storage/vfs"
)

// getFlags holds the flags of the command get.
type getFlags struct {
	key      keyFlags
	version  string
	metadata bool
	offset   int64
	length   int64
	file     string
}

func getCommand(a *app) *cobra.Command {
	var f getFlags
	cmd := &cobra.Command{
		Use:     "get ID",
		Short:   "Read a record",
		GroupID: groupRecords,
		Long: `Writes the data of a record to standard output or to a file. With -o json, metadata and data
(base64) as JSON. A slice of it with --offset and --length.`,
		Example: `  sheaf get 42
  sheaf get 42 --to copy.png
  sheaf get 42 --metadata -o json
  sheaf get 42 --offset 1048576 --length 4096`,
		Args: cobra.ExactArgs(1),
	}
	key := &f.key
	key.add(cmd)
	cmd.Flags().StringVar(&f.version, "version", "", "read this version instead of the newest")
	cmd.Flags().BoolVar(&f.metadata, "metadata", false, "leave the data out and print what is known about it")
	cmd.Flags().Int64Var(&f.offset, "offset", 0, "first byte")
	cmd.Flags().Int64Var(&f.length, "length", -1, "number of bytes; -1: to the end")
	cmd.Flags().StringVar(&f.file, "to", "", "write the data to this file (replaced only when all has come)")
	cmd.MarkFlagsMutuallyExclusive("metadata", "to")
	cmd.MarkFlagsMutuallyExclusive("metadata", "offset")
	cmd.MarkFlagsMutuallyExclusive("metadata", "length")
	cmd.RunE = a.call(true, func(ctx context.Context, conn *cli.Conn, args []string) error {
		key, err := f.key.key(args[0])
		if err != nil {
			return err
		}
		if f.offset < 0 || f.length < -1 {
			return cli.Usagef("--offset and --length must not be negative")
		}
		slice := cmd.Flags().Changed("offset") || f.length >= 0
		if err := getRecord(ctx, a.Out, conn, key, f, slice); err != nil {
			return fmt.Errorf("get %d: %w", key.ID, err)
		}
		return nil
	})
	return cmd
}

func getRecord(ctx context.Context, out *cli.Output, conn *cli.Conn, key client.Key, f getFlags, slice bool) error {
	read := func(w io.Writer) (client.Record, error) {
		switch {
		case !slice:
			return conn.Fetch(ctx, key, f.version, w)
		case f.length != 0:
			return conn.Download(ctx, key, w, &client.DownloadOptions{Version: f.version, Offset: f.offset,
				Length: max(f.length, 0)})
		}
		r, err := conn.Open(ctx, key, &client.DownloadOptions{Version: f.version, Offset: f.offset})
		if err != nil {
			return client.Record{}, err
		}
		return r.Record(), r.Close() // only the metadata is needed
	}
	switch {
	case f.metadata:
		record, err := conn.Get(ctx, key, &client.GetOptions{Version: f.version, MetadataOnly: true})
		if err != nil {
			return err
		}
		return out.WriteRows(cli.JSONOf(record), cli.RecordTable([]client.Record{record}))
	case f.file != "":
		return vfs.ReplaceFile(f.file, func(w io.Writer) error {
			_, err := read(w)
			return err
		})
	case out.JSON:
		// The metadata comes first in the line, but is complete only after all data has arrived. Therefore the command
		// keeps all of the record's data in memory, however large it is.
		var data bytes.Buffer
		record, err := read(&data)
		if err != nil {
			return err
		}
		return cli.WriteJSONLine(out.Out, record, &data)
	default:
		_, err := read(out.Out)
		return err
	}
}

func versionsCommand(a *app) *cobra.Command {
	var key keyFlags
	var limit int
	cmd := &cobra.Command{
		Use:     "versions ID",
		Short:   "List the versions of a record, newest first",
		GroupID: groupRecords,
		Long:    "Lists the versions of a record that retention still keeps, newest first, deletes included.",
		Args:    cobra.ExactArgs(1),
		RunE: a.call(false, func(ctx context.Context, conn *cli.Conn, args []string) error {
			if limit < 0 {
				return cli.Usagef("--limit %d: must not be negative", limit)
			}
			k, err := key.key(args[0])
			if err != nil {
				return err
			}
			var records []client.Record
			for r, err := range conn.Versions(ctx, k) {
				if err != nil {
					return fmt.Errorf("versions %d: %w", k.ID, err)
				}
				if records = append(records, r); len(records) == limit {
					break
				}
			}
			if len(records) == 0 {
				return cli.NotFoundf("versions %d: there is no such record", k.ID)
			}
			return printRecords(a.Out, records)
		}),
	}
	key.add(cmd)
	cmd.Flags().IntVar(&limit, "limit", 0, "at most so many; 0: all")
	return cmd
}

func findCommand(a *app) *cobra.Command {
	return &cobra.Command{
		Use:     "find ID",
		Short:   "Find the groups that hold an id",
		GroupID: groupRecords,
		Long: "Asks all groups (in Hash routing the one that may) for a record. Fails while a group that could hold it " +
			"is silent.",
		Args: cobra.ExactArgs(1),
		RunE: a.call(false, func(ctx context.Context, conn *cli.Conn, args []string) error {
			id, err := cli.ParseID(args[0])
			if err != nil {
				return err
			}
			records, err := conn.Find(ctx, id)
			if err != nil {
				return fmt.Errorf("find %d: %w", id, err)
			}
			if len(records) == 0 {
				return cli.NotFoundf("find %d: no group holds it", id)
			}
			return printRecords(a.Out, records)
		}),
	}
}

func printRecords(out *cli.Output, records []client.Record) error {
	rows := make([]cli.RecordJSON, 0, len(records))
	for _, r := range records {
		rows = append(rows, cli.JSONOf(r))
	}
	return out.WriteRows(rows, cli.RecordTable(records))
}
