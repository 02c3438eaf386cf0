package listing

import (
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/google/uuid"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"

	archivev1 "sheaf.dev/sheaf/api/sheaf/archive/v1"
	"sheaf.dev/sheaf/internal/placement"
)

const (
	// groupsMax bounds the memory for a list. No store has more groups.
	groupsMax = 1 << 20
	// answerTime is the time in which a source must have sent its list.
	answerTime = time.Minute
)

// Ask asks the source at an address (host:port) for its list. It uses the given credentials and options for the
// connection. It returns an error if the list is cut, or if a store cannot have such groups.
func Ask(ctx context.Context, address string, by credentials.TransportCredentials, more ...grpc.DialOption) (l List,
	err error) {
	ctx, cancel := context.WithTimeout(ctx, answerTime)
	defer cancel()
	conn, err := grpc.NewClient("passthrough:///"+address, append(more, grpc.WithNoProxy(),
		grpc.WithTransportCredentials(by))...)
	if err != nil {
		return l, fmt.Errorf("the source of the restore at %s: %w", address, err)
	}
	defer func() { err = errors.Join(err, conn.Close()) }()
	stream, err := archivev1.NewRestoreServiceClient(conn).ListGroups(ctx, &archivev1.ListGroupsRequest{})
	if err == nil {
		err = l.receive(stream)
	}
	if err == nil {
		err = l.check()
	}
	if err != nil {
		return l, fmt.Errorf("asking the source of the restore at %s for its groups: %w", address, err)
	}
	return l, nil
}

// receive reads a list up to its end. If the stream ends earlier, or if the number of groups is not that of the end,
// receive returns an error.
func (l *List) receive(stream archivev1.RestoreService_ListGroupsClient) error {
	first, err := stream.Recv()
	if err != nil {
		return err
	}
	if err := l.begin(first.GetHeader()); err != nil {
		return err
	}
	for {
		next, err := stream.Recv()
		switch {
		case errors.Is(err, io.EOF):
			return fmt.Errorf("%w: it ends after %d groups without an end", errBroken, len(l.Groups))
		case err != nil:
			return err
		}
		if end := next.GetEnd(); end != nil {
			if end.GetGroups() != int64(len(l.Groups)) {
				return fmt.Errorf("%w: it has %d groups, and %d came", errBroken, end.GetGroups(), len(l.Groups))
			}
			return nil
		}
		for _, g := range next.GetGroups().GetGroups() {
			id, err := uuid.FromBytes(g.GetUuid())
			if err != nil {
				return fmt.Errorf("%w: group %.100q: %w", errBroken, g.GetName(), err)
			}
			l.Groups = append(l.Groups, Group{Name: g.GetName(), UUID: id, Err: g.GetError()})
		}
		if len(l.Groups) > groupsMax {
			return fmt.Errorf("%w: it has more than %d groups", errBroken, groupsMax)
		}
	}
}

// begin takes the header of a list.
func (l *List) begin(h *archivev1.ListGroupsHeader) (err error) {
	if h == nil {
		return fmt.Errorf("%w: it has no header", errBroken)
	}
	var archivedErr error
	l.Store, err = uuid.FromBytes(h.GetStore())
	l.Archived, archivedErr = uuid.FromBytes(h.GetArchivedStore())
	if err := errors.Join(err, archivedErr); err != nil {
		return fmt.Errorf("%w: %w", errBroken, err)
	}
	if h.GetHashGroups() < 0 || h.GetHashGroups() > groupsMax {
		return fmt.Errorf("%w: the store has %d groups", errBroken, h.GetHashGroups())
	}
	l.At = time.Unix(0, h.GetTimeUnixNs())
	switch h.GetRouting() {
	case "hash":
		l.Routing = placement.Routing{Mode: placement.Hash, Groups: int(h.GetHashGroups())}
	case "named":
		l.Routing = placement.Routing{Mode: placement.Named}
	default:
		return fmt.Errorf("%w: the routing is %.40q", errBroken, h.GetRouting())
	}
	return nil
}
