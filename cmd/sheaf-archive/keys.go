package main

import (
	"context"
	"errors"

	"github.com/spf13/cobra"

	"sheaf.dev/sheaf/internal/archive/keys"
	"sheaf.dev/sheaf/internal/archive/object"
	"sheaf.dev/sheaf/internal/local/cli"
)

const keysFlag = "encryption-keys"

// addKeys adds the flag with the keys of an encrypted archive.
func addKeys(cmd *cobra.Command, dir *string) {
	cmd.Flags().StringVar(dir, keysFlag, "", "folder with the keys of an encrypted archive, each in a file, as 32 bytes "+
		"in base64; the first file in order of names, or the one that the file current names, encrypts new objects, and all "+
		"read; empty: new objects are not encrypted")
}

// loadKeys reads the keys in a folder. An empty dir means that there are none.
func loadKeys(dir string) (object.Keys, error) {
	if dir == "" {
		return nil, nil
	}
	all, err := keys.Load(dir)
	return keys.Of(all), errorOfKeys(err)
}

func errorOfKeys(err error) error {
	if errors.Is(err, keys.ErrInvalid) {
		return cli.Usagef("--"+keysFlag+": %w", err)
	}
	return err
}

// keyRow is a key as the command keys prints it.
type keyRow struct {
	Name   string `json:"name"`
	KeyID  string `json:"keyId"`
	Writes bool   `json:"writes"`
}

func keysCommand(a *app) *cobra.Command {
	return &cobra.Command{
		Use: "keys DIR", Short: "Check the keys in a folder, and print their ids", Args: cobra.ExactArgs(1),
		Long: `Prints the id of each key, which the objects that are encrypted with it contain, and which key encrypts new
objects. An id does not reveal the key. The folder is one for --` + keysFlag + `.`,
		Example: "  openssl rand -base64 32 > keys/2026-11\n" +
			"  sheaf-archive keys keys",
		RunE: a.Body(func(_ context.Context, args []string) error {
			all, err := keys.Load(args[0])
			if err != nil {
				return cli.Usagef("%w", err)
			}
			rows := make([]keyRow, 0, len(all))
			t := cli.Table{Header: []string{"KEY", "KEY ID", "ENCRYPTS NEW OBJECTS"}}
			for i, k := range all {
				row := keyRow{Name: k.Name, KeyID: k.Key.ID().String(), Writes: i == 0}
				rows = append(rows, row)
				writes := ""
				if row.Writes {
					writes = "yes"
				}
				t.Rows = append(t.Rows, []cli.Cell{cli.Text(row.Name), cli.Text(row.KeyID), cli.Text(writes)})
			}
			return a.Out.WriteRows(rows, t)
		}),
	}
}

// keyID returns the id of the key that encrypts new objects, or "none".
func keyID(all object.Keys) string {
	if all.First().IsZero() {
		return "none"
	}
	return all.First().ID().String()
}
