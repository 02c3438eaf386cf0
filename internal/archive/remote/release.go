package remote

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	archivev1 "sheaf.dev/sheaf/api/sheaf/archive/v1"
	"sheaf.dev/sheaf/client/call/backoff"
)

const (
	releasePause = 2 * time.Second  // pause between two passes over the shards
	releaseCall  = 30 * time.Second // limit of a call to one shard
)

// ErrNotReleased means that shards of the store may still keep history for an archive.
var ErrNotReleased = errors.New("not all shards have ended their holds")

// ender is the part of ArchiveServiceClient that ends holds.
type ender interface {
	EndHistory(ctx context.Context, in *archivev1.EndHistoryRequest, opts ...grpc.CallOption) (
		*archivev1.EndHistoryResponse, error)
}

// Release ends the holds of all groups on all shards, because nobody archives the store any more. It asks the shards
// again and again until a pass finds nothing that is left, and returns how many holds it has ended. If ctx ends before,
// the error wraps ErrNotReleased and names a shard. It returns at once if an archiver follows a group.
func (s *Source) Release(ctx context.Context) (ended int, err error) {
	return release(ctx, func(ctx context.Context) (map[string]ender, error) {
		addresses, err := s.opts.Shards(ctx)
		if err != nil {
			return nil, err
		}
		shards, err := s.connect(addresses)
		all := make(map[string]ender, len(shards))
		for _, sh := range shards {
			all[sh.address] = sh.client
		}
		return all, err
	}, &archivev1.EndHistoryRequest{Header: s.header()})
}

func release(ctx context.Context, shards func(context.Context) (map[string]ender, error),
	in *archivev1.EndHistoryRequest) (ended int, err error) {
	for {
		some, left := 0, error(nil)
		all, err := shards(ctx)
		switch {
		case err != nil:
			left = err
		case len(all) == 0:
			left = errors.New("the gateway knows no shard of the store")
		}
		for _, address := range sortedKeys(all) {
			out, err := endAt(ctx, all[address], in)
			switch {
			case status.Code(err) == codes.FailedPrecondition, status.Code(err) == codes.PermissionDenied,
				status.Code(err) == codes.Unimplemented:
				return ended, fmt.Errorf("%w: shard %s: %w", ErrNotReleased, address, err)
			case err != nil:
				left = fmt.Errorf("shard %s: %w", address, err)
				continue
			case out.GetWaiting() > 0:
				left = fmt.Errorf("shard %s: %d groups wait: %s", address, out.GetWaiting(), out.GetReason())
			}
			some += int(out.GetEnded())
		}
		ended += some
		if left == nil && some == 0 {
			return ended, nil
		}
		if !backoff.Sleep(ctx, releasePause) {
			if left == nil {
				left = context.Cause(ctx)
			}
			return ended, fmt.Errorf("%w: %w: run the command again when all shards serve", ErrNotReleased, left)
		}
	}
}

func endAt(ctx context.Context, shard ender, in *archivev1.EndHistoryRequest) (*archivev1.EndHistoryResponse, error) {
	ctx, cancel := context.WithTimeout(ctx, releaseCall)
	defer cancel()
	return shard.EndHistory(ctx, in)
}

func sortedKeys(all map[string]ender) (keys []string) {
	for key := range all {
		keys = append(keys, key)
	}
	slices.Sort(keys)
	return keys
}
