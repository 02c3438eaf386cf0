package access

import (
	"context"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"sheaf.dev/sheaf/client/recordv1"
)

// Service implements AccessService, with which callers can find out who they are and what they may do.
type Service struct {
	recordv1.UnimplementedAccessServiceServer
}

// WhoAmI implements AccessService.
func (Service) WhoAmI(ctx context.Context, _ *recordv1.WhoAmIRequest) (*recordv1.WhoAmIResponse, error) {
	call, err := callOf(ctx)
	if err != nil || call == Everybody {
		return &recordv1.WhoAmIResponse{}, err
	}
	caller := call.Caller()
	out := &recordv1.WhoAmIResponse{Caller: caller.String(), TableVersion: call.Table()}
	if !caller.Expires.IsZero() {
		out.TokenExpiresUnixS = caller.Expires.Unix()
	}
	return out, nil
}

// CanI implements AccessService.
func (Service) CanI(ctx context.Context, in *recordv1.CanIRequest) (*recordv1.CanIResponse, error) {
	verb, err := ParseVerb(in.GetVerb())
	if err != nil {
		return nil, status.Errorf(codes.InvalidArgument, "verb: %v", err)
	}
	if len(in.GetGroup()) > nameBytesMax {
		return nil, status.Errorf(codes.InvalidArgument, "group: has %d bytes, at most %d are allowed", len(in.GetGroup()),
			nameBytesMax)
	}
	call, err := callOf(ctx)
	if err != nil {
		return nil, err
	}
	if err := call.Can(verb, in.GetGroup()); err != nil {
		return &recordv1.CanIResponse{Reason: status.Convert(err).Message()}, nil
	}
	return &recordv1.CanIResponse{Allowed: true}, nil
}
