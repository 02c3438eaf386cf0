package bucket

import (
	"context"
	"io"
	"iter"
	"strings"
)

// Under returns a folder of a bucket as a separate bucket, for example one store's archive at a URL that several
// stores share. The folder is a relative path without a trailing slash. Close closes the whole bucket.
func Under(b Bucket, folder string) Bucket { return under{bucket: b, prefix: folder + "/"} }

type under struct {
	bucket Bucket
	prefix string
}

// name returns the name in the whole bucket. It checks the given name first, because with the prefix, "" and ".."
// would become valid or lead out of the folder.
func (u under) name(name string) (string, error) { return u.prefix + name, CheckName(name) }

func (u under) Create(ctx context.Context, name string, size int64, content io.Reader) error {
	name, err := u.name(name)
	if err != nil {
		return err
	}
	return u.bucket.Create(ctx, name, size, content)
}

func (u under) Open(ctx context.Context, name string, offset, length int64) (io.ReadCloser, error) {
	name, err := u.name(name)
	if err != nil {
		return nil, err
	}
	return u.bucket.Open(ctx, name, offset, length)
}

func (u under) Stat(ctx context.Context, name string) (Info, error) {
	name, err := u.name(name)
	if err != nil {
		return Info{}, err
	}
	info, err := u.bucket.Stat(ctx, name)
	info.Name = strings.TrimPrefix(info.Name, u.prefix)
	return info, err
}

func (u under) List(ctx context.Context, prefix, after string) iter.Seq2[Info, error] {
	if after != "" {
		after = u.prefix + after
	}
	return func(yield func(Info, error) bool) {
		for info, err := range u.bucket.List(ctx, u.prefix+prefix, after) {
			info.Name = strings.TrimPrefix(info.Name, u.prefix)
			if !yield(info, err) {
				return
			}
		}
	}
}

func (u under) Delete(ctx context.Context, name string) error {
	name, err := u.name(name)
	if err != nil {
		return err
	}
	return u.bucket.Delete(ctx, name)
}

func (u under) Close() error { return u.bucket.Close() }
