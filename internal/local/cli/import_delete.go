package cli

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"path"
	"path/filepath"
	"strings"

	"golang.org/x/sync/errgroup"
	"golang.org/x/sys/unix"

	"sheaf.dev/sheaf/client"
)

// deleteGone deletes the records below the prefix whose path is no longer a file or link of the tree. It deletes a
// record only if the record still has the version that deleteGone has read, and if no file exists at the record's path
// at that moment. If the tree could not be read completely, or holds no file at all, deleteGone deletes nothing,
// because the disk may not be mounted.
func (im *importer) deleteGone(ctx context.Context) error {
	switch {
	case im.blind.Load():
		im.kept(im.opts.Dir, "a folder could not be read, so nothing was deleted")
		return nil
	case !im.found.Load():
		im.kept(im.opts.Dir, "the tree holds no file, so nothing was deleted: is it mounted?")
		return nil
	}
	group := im.opts.Group
	if group == "dir" {
		group = ""
	}
	deletes, ctx := errgroup.WithContext(ctx)
	deletes.SetLimit(im.opts.Senders)
	for r, err := range im.conn.Scan(ctx, &client.ScanOptions{Group: strings.TrimPrefix(group, "name:"),
		MetadataOnly: true}) {
		if errors.Is(err, client.ErrGroupNotFound) {
			break // nothing to delete
		}
		if err != nil {
			return errors.Join(fmt.Errorf("scanning for records to delete: %w", err), deletes.Wait())
		}
		if im.gone(r) {
			deletes.Go(func() error { return im.delete(ctx, r) })
		}
	}
	return deletes.Wait()
}

// gone reports whether a record has a path in this tree at which there is no longer a file or link.
func (im *importer) gone(r client.Record) bool {
	name := string(r.Attributes[attributePath])
	rel, below := name, true
	if im.opts.Prefix != "" {
		rel, below = strings.CutPrefix(name, im.opts.Prefix+"/")
	}
	if !below || rel != path.Clean(rel) || !filepath.IsLocal(rel) || rel == "." {
		return false // no import of this tree has stored the record
	}
	info, err := im.root.lstat(rel)
	if err == nil {
		return info.IsDir()
	}
	var link *linkError
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.ENOTDIR) || errors.As(err, &link) {
		return true
	}
	im.kept(rel, whatOf(err))
	return false
}

// kept adds a record that could not be deleted to the list of failures.
func (im *importer) kept(name, why string) { im.failed.add(failure{failKept, name, why}, im.out) }

func (im *importer) delete(ctx context.Context, r client.Record) error {
	if !im.opts.DryRun {
		_, err := im.conn.Delete(ctx, r.Key, &client.DeleteOptions{IfVersion: r.Version})
		switch {
		case errors.Is(err, client.ErrVersionMismatch):
			im.kept(string(r.Attributes[attributePath]), "it was replaced or deleted meanwhile")
			return nil
		case err != nil:
			return fmt.Errorf("deleting record %d: %w", r.Key.ID, err)
		}
	}
	im.deleted.Add(1)
	return nil
}
