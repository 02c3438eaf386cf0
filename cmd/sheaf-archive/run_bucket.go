package main

import (
	"context"
	"io"
	"iter"
	"strings"

	"sheaf.dev/sheaf/internal/archive/bucket"
)

// heardBucket wraps a bucket, and tells a process the result of each call to that bucket.
type heardBucket struct {
	bucket.Bucket
	p *process
}

func (b *heardBucket) Create(ctx context.Context, name string, size int64, content io.Reader) error {
	err := b.Bucket.Create(ctx, name, size, content)
	if err == nil && !strings.HasPrefix(name, bucket.ProbePrefix) {
		b.p.created()
	}
	b.p.heard(err)
	return err
}

func (b *heardBucket) Open(ctx context.Context, name string, offset, length int64) (io.ReadCloser, error) {
	r, err := b.Bucket.Open(ctx, name, offset, length)
	b.p.heard(err)
	return r, err
}

func (b *heardBucket) Stat(ctx context.Context, name string) (bucket.Info, error) {
	info, err := b.Bucket.Stat(ctx, name)
	b.p.heard(err)
	return info, err
}

func (b *heardBucket) List(ctx context.Context, prefix, after string) iter.Seq2[bucket.Info, error] {
	return func(yield func(bucket.Info, error) bool) {
		for info, err := range b.Bucket.List(ctx, prefix, after) {
			b.p.heard(err)
			if !yield(info, err) {
				return
			}
		}
	}
}

func (b *heardBucket) Delete(ctx context.Context, name string) error {
	err := b.Bucket.Delete(ctx, name)
	b.p.heard(err)
	return err
}
