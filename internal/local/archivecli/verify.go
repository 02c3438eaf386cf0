package archivecli

import (
	"context"
	"fmt"

	"sheaf.dev/sheaf/internal/archive/reader"
	"sheaf.dev/sheaf/internal/base/units"
	"sheaf.dev/sheaf/internal/local/cli"
)

// VerifyOptions are the options of Verify.
type VerifyOptions struct {
	Sample int    // percentage of the segments, blobs and log objects to check; 0 means all
	Seed   uint64 // seed of the random sample
}

// Verify checks an archive, and prints the problems that it finds. It returns an error if there are any.
func Verify(ctx context.Context, out *cli.Output, s Source, opts VerifyOptions) error {
	if opts.Sample < 0 || opts.Sample > 100 {
		return cli.Usagef("--sample %d: must be 1 to 100 percent", opts.Sample)
	}
	store, err := s.store(ctx)
	if err != nil {
		return err
	}
	s.Store = store.String()
	var r *reader.Report
	err = s.Reading(ctx, "verify", func(text string) { out.Sayf("%s", text) }, func(ctx context.Context) (err error) {
		r, err = reader.Verify(ctx, s.Bucket, store, s.Keys, reader.VerifyOptions{Sample: opts.Sample, Seed: opts.Seed})
		return err
	})
	if err != nil {
		return coded(err)
	}
	t := cli.Table{Header: []string{"GROUP", "PROBLEM"}}
	for _, p := range r.Problems {
		t.Rows = append(t.Rows, []cli.Cell{cli.Text(p.Group), cli.Text(p.What)})
	}
	switch {
	case out.JSON:
		err = out.WriteJSON(r)
	case len(t.Rows) > 0:
		err = out.WriteTable(t)
	}
	if err != nil {
		return err
	}
	say(out, r)
	if n := len(r.Problems); n > 0 {
		return fmt.Errorf("verify: the archive of store %s has %s", store, units.Count(int64(n), "problem", "problems"))
	}
	return nil
}

// say prints a summary of what was checked.
func say(out *cli.Output, r *reader.Report) {
	out.Sayf("store %s: %s in %s, %s, %s, %s and %s checked", r.Store, cli.FormatBytes(r.Bytes),
		units.Count(int64(r.Groups), "group", "groups"), units.Count(r.Logs, "log object", "log objects"),
		units.Count(r.Catalogues, "catalogue", "catalogues"), units.Count(r.Segments, "segment", "segments"),
		units.Count(r.Blobs, "blob", "blobs"))
	if r.Keyless {
		out.Sayf("%s not known: only lengths and checksums were checked. What the encrypted objects contain, and what "+
			"objects say of each other, was not: give the keys with --encryption-keys", keyIDs(r.UnknownKeys))
	} else {
		out.Sayf("%s were read, of which %s; archived up to %s", units.Count(r.Entries, "entry", "entries"),
			units.Count(r.Records, "is a record's version", "are records' versions"),
			words(formatTime(r.Covered), "a time that is not known"))
	}
	sayKeys(out, r)
	if r.Skipped > 0 {
		out.Sayf("%s not read, because they are not in the sample", units.Count(r.Skipped, "object was", "objects were"))
	}
	if r.Gaps > 0 {
		out.Sayf("%s without an entry: compaction drops entries that are no records, so this is no problem",
			units.Count(r.Gaps, "range of indexes is", "ranges of indexes are"))
	}
	if r.Unused > 0 {
		out.Sayf("%s to which nothing refers", units.Count(r.Unused, "object is there", "objects are there"))
	}
}

// keyIDs names keys that are not known.
func keyIDs(ids []string) string {
	if len(ids) == 1 {
		return "the key with id " + ids[0] + " is"
	}
	return "the keys with ids " + units.Some(ids, 3) + " are"
}

// sayKeys says with which keys the objects that were read are encrypted.
func sayKeys(out *cli.Output, r *reader.Report) {
	for _, k := range r.Keys {
		with := "encrypted with key id " + k.KeyID
		if k.KeyID == "" {
			with = "not encrypted"
		}
		out.Sayf("%s %s", units.Count(k.Objects, "object is", "objects are"), with)
	}
}
