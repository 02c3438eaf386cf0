package remote

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc"

	archivev1 "sheaf.dev/sheaf/api/sheaf/archive/v1"
)

// onceClient is a client whose Follow call answers once, with the end of the round.
type onceClient struct {
	archivev1.ArchiveServiceClient
	before func() // called before the response arrives
}

func (c onceClient) Follow(ctx context.Context, _ ...grpc.CallOption) (archivev1.ArchiveService_FollowClient, error) {
	return onceCall{ctx: ctx, before: c.before}, nil
}

type onceCall struct {
	archivev1.ArchiveService_FollowClient
	ctx    context.Context
	before func()
}

func (onceCall) Send(*archivev1.FollowRequest) error { return nil }

func (c onceCall) Recv() (*archivev1.FollowResponse, error) {
	c.before()
	return &archivev1.FollowResponse{RoundEnds: true}, nil
}

// If a call is cancelled while the last response of a round arrives, it cannot be used for the next round. In that
// case ask returns an error, so that its caller ends the call.
func TestCancelledCallIsNotReused(t *testing.T) {
	const lasts = "the call lasts"
	for name, before := range map[string]func(cancel context.CancelFunc){
		"the round is cancelled":        func(cancel context.CancelFunc) { cancel() },
		"the shard was silent for long": func(context.CancelFunc) { time.Sleep(silenceMax + time.Second) },
		lasts:                           func(context.CancelFunc) {},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				ctx, cancel := context.WithCancel(t.Context())
				defer cancel()
				sh := &shard{client: onceClient{before: func() { before(cancel); synctest.Wait() }}}
				err := sh.ask(ctx, nil, []*archivev1.FollowRequest{{}}, func(*archivev1.FollowResponse) bool { return true })
				ended := sh.call.stream.(onceCall).ctx.Err() != nil
				if (err != nil) != ended || ended == (name == lasts) {
					t.Errorf("the call is cancelled: %t; the error is %v", ended, err)
				}
				sh.end()
			})
		})
	}
}
