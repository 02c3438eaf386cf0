package access

import (
	"context"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"sheaf.dev/sheaf/client/recordv1"
)

// TestContextWithoutCallIsRefused checks that everything is refused if a context has no Call, because in that case the
// server has not identified the caller. By contrast, the Call named Everybody allows everything.
func TestContextWithoutCallIsRefused(t *testing.T) {
	questions := map[string]func(context.Context) error{
		"May":       func(ctx context.Context) error { return May(ctx, Get, "a") },
		"MayRecord": func(ctx context.Context) error { return MayRecord(ctx, Put, "a", 1) },
		"Sign": func(ctx context.Context) error {
			_, err := Sign(ctx, []byte("x"), time.Minute)
			return err
		},
		"Open": func(ctx context.Context) error {
			_, err := Open(ctx, []byte("x"))
			return err
		},
		"SignPage": func(ctx context.Context) error {
			_, err := SignPage(ctx, "a", "x")
			return err
		},
		"OpenPage": func(ctx context.Context) error {
			_, err := OpenPage(ctx, "a", "x")
			return err
		},
		"WhoAmI": func(ctx context.Context) error {
			_, err := Service{}.WhoAmI(ctx, &recordv1.WhoAmIRequest{})
			return err
		},
		"CanI": func(ctx context.Context) error {
			_, err := Service{}.CanI(ctx, &recordv1.CanIRequest{Verb: "get"})
			return err
		},
	}
	for name, ask := range questions {
		if err := ask(t.Context()); status.Code(err) != codes.Internal {
			t.Errorf("%s without a call: %v", name, err)
		}
		if err := ask(WithCall(t.Context(), Everybody)); err != nil {
			t.Errorf("%s by everybody: %v", name, err)
		}
	}
	if !Identified(t.Context()) || Identified(WithCall(t.Context(), Everybody)) {
		t.Error("only everybody is not identified")
	}
}
