package main

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/spf13/cobra"

	"sheaf.dev/sheaf/internal/local/cli"
	"sheaf.dev/sheaf/internal/local/parquetcli"
	"sheaf.dev/sheaf/internal/storage/vfs"
)

// These are the values of --format of export and import.
const (
	formatFiles   = "files"
	formatParquet = "parquet"
)

// addFormat adds --format.
func addFormat(cmd *cobra.Command, format *string, words string) {
	cmd.Flags().StringVar(format, "format", formatFiles, words)
	cli.Complete(cmd, "format", formatFiles, formatParquet)
}

// checkFormat refuses an unknown format, and flags that the format does not have. Each format has flags of its own.
func checkFormat(cmd *cobra.Command, format string, onlyFiles, onlyParquet []string) error {
	refused := onlyParquet
	switch format {
	case formatFiles:
	case formatParquet:
		refused = onlyFiles
	default:
		return cli.Usagef("--format %q: must be %s or %s", format, formatFiles, formatParquet)
	}
	for _, name := range refused {
		if cmd.Flags().Changed(name) {
			return cli.Usagef("--%s does not go with --format %s", name, format)
		}
	}
	return nil
}

// exportParquet runs export --format parquet.
func exportParquet(ctx context.Context, conn *cli.Conn, out *cli.Output, opts parquetcli.ExportOptions) error {
	report, err := parquetcli.Export(ctx, vfs.OS{}, conn.Client, out, opts)
	if report.View == "" {
		return err // the export did not start
	}
	var printErr error
	switch {
	case out.JSON:
		printErr = out.WriteJSON(report)
	case report.Complete && err == nil:
		_, printErr = fmt.Fprint(out.Out, exportParquetWords(report))
	}
	switch {
	case err != nil:
		return err
	case report.NoData > 0 || report.Damaged > 0:
		return errors.New(counted(", ",
			row{report.NoData, "record has no data in its row", "records have no data in their rows"},
			row{report.Damaged, "file lacks damaged records", "files lack damaged records"}))
	}
	return printErr
}

func exportParquetWords(r parquetcli.ExportReport) string {
	words := fmt.Sprintf("wrote %s, %s, of %s, %s of data, in %.1f s\n", cli.Count(r.Files, "file", "files"),
		cli.FormatBytes(r.FileBytes), cli.Count(r.Records, "record", "records"), cli.FormatBytes(r.Bytes), r.Seconds)
	if r.Earlier > 0 {
		words += fmt.Sprintf("  %s of them by an earlier run\n", cli.FormatCount(r.Earlier))
	}
	return words
}

// importParquet runs import --format parquet.
func importParquet(ctx context.Context, conn *cli.Conn, out *cli.Output, opts parquetcli.ImportOptions) error {
	report, err := parquetcli.Import(ctx, vfs.OS{}, conn.Client, out, opts)
	if report.Seconds == 0 {
		return err // the import did not start
	}
	return importEnded(out, report, importParquetWords(report), importParquetFailures(report), report.DryRun, err)
}

// importParquetFailures describes the rows and files that were not imported. The text is empty if there are none.
func importParquetFailures(r parquetcli.ImportReport) string {
	words := make([]string, 0, len(r.Failed))
	for _, kind := range cli.SortedKeys(r.Failed) {
		noun := row{r.Failed[kind], "row", "rows"}
		if kind == parquetcli.Unreadable {
			noun = row{r.Failed[kind], "file", "files"}
		}
		words = append(words, counted("", noun)+" "+kind)
	}
	if len(words) == 0 {
		return ""
	}
	return "not imported: " + strings.Join(words, ", ")
}

func importParquetWords(r parquetcli.ImportReport) string {
	verb := "stored"
	if r.DryRun {
		verb = "would store"
	}
	words := fmt.Sprintf("%s %s of %s, %s, in %.1f s\n", verb, cli.Count(r.Stored, "record", "records"),
		cli.Count(r.Rows, "row", "rows"), cli.FormatBytes(r.StoredBytes), r.Seconds)
	if rows := counted("", row{r.AlreadyThere, "was there already", "were there already"}); rows != "" {
		words += "  " + rows + "\n"
	}
	return words
}
