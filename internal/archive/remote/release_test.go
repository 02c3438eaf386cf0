package remote

import (
	"context"
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	archivev1 "sheaf.dev/sheaf/api/sheaf/archive/v1"
)

// member is a shard that gives one answer after another, and repeats the last one.
type member struct {
	answers []*archivev1.EndHistoryResponse
	errs    map[int]error // by the number of the call, from 0 on
	calls   int
}

func (m *member) EndHistory(context.Context, *archivev1.EndHistoryRequest, ...grpc.CallOption) (
	*archivev1.EndHistoryResponse, error) {
	n := m.calls
	m.calls++
	if err := m.errs[n]; err != nil {
		return nil, err
	}
	return m.answers[min(n, len(m.answers)-1)], nil
}

func of(members ...*member) func(context.Context) (map[string]ender, error) {
	return func(context.Context) (map[string]ender, error) {
		all := map[string]ender{}
		for i, m := range members {
			all[string(rune('a'+i))] = m
		}
		return all, nil
	}
}

// Holds have ended only after a pass in which all shards answer, and none of them has anything left.
func TestReleaseGoesOnUntilNothingIsLeft(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		none := &archivev1.EndHistoryResponse{}
		leader := &member{answers: []*archivev1.EndHistoryResponse{{Ended: 2}, none}}
		other := &member{answers: []*archivev1.EndHistoryResponse{{Waiting: 2, Reason: "x"}, none, {Ended: 2}, none},
			errs: map[int]error{1: status.Error(codes.Unavailable, "it starts")}}
		ended, err := release(t.Context(), of(leader, other), nil)
		if ended != 4 || err != nil || leader.calls != 4 || other.calls != 4 {
			t.Errorf("%d holds have ended, %v; %d and %d calls", ended, err, leader.calls, other.calls)
		}
	})
}

// A shard that does not answer may hold, and a shard that an archiver follows does.
func TestReleaseNamesWhatIsLeft(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		waits := &member{answers: []*archivev1.EndHistoryResponse{{Waiting: 1, Reason: "group 7: its leader"}}}
		if _, err := release(ctx, of(waits), nil); !errors.Is(err, ErrNotReleased) ||
			!strings.Contains(err.Error(), "shard a: 1 groups wait: group 7: its leader") || waits.calls < 10 {
			t.Errorf("%v, %d calls", err, waits.calls)
		}
		follows := &member{errs: map[int]error{0: status.Error(codes.FailedPrecondition, "an archiver follows")}}
		if _, err := release(t.Context(), of(follows), nil); !errors.Is(err, ErrNotReleased) || follows.calls != 1 {
			t.Errorf("%v, %d calls", err, follows.calls)
		}
		ctx, stop := context.WithTimeout(t.Context(), time.Minute)
		defer stop()
		if _, err := release(ctx, of(), nil); !errors.Is(err, ErrNotReleased) {
			t.Errorf("no shard is known: %v", err)
		}
	})
}
