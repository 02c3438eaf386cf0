package restoresource

import (
	"context"
	"errors"
	"io"
	"strings"
	"testing"

	"github.com/google/uuid"
	"google.golang.org/grpc"

	archivev1 "sheaf.dev/sheaf/api/sheaf/archive/v1"
	"sheaf.dev/sheaf/internal/archive/restore"
	"sheaf.dev/sheaf/internal/test/bubbletest"
)

// list returns all messages of ListGroups.
func list(ctx context.Context, conn *grpc.ClientConn) (all []*archivev1.ListGroupsResponse, err error) {
	stream, err := archivev1.NewRestoreServiceClient(conn).ListGroups(ctx, &archivev1.ListGroupsRequest{})
	if err != nil {
		return nil, err
	}
	for {
		switch one, err := stream.Recv(); {
		case errors.Is(err, io.EOF):
			return all, nil
		case err != nil:
			return all, err
		default:
			all = append(all, one)
		}
	}
}

// The list has the header, each group that existed at the time, and an end with their number.
func TestTheSourceListsItsGroups(t *testing.T) {
	bubbletest.Run(t, func(t *testing.T, network *bubbletest.Net) {
		s := newSite(t, network)
		s.start()
		defer s.stop()
		all, err := list(t.Context(), s.connect(nil))
		if err != nil || len(all) != 3 {
			t.Fatalf("%d messages, %v", len(all), err)
		}
		h := all[0].GetHeader()
		if uuid.UUID(h.GetStore()) != newStore || uuid.UUID(h.GetArchivedStore()) != s.model.Store ||
			h.GetTimeUnixNs() != s.model.Now().UnixNano() || h.GetRouting() != "named" || h.GetHashGroups() != 0 {
			t.Errorf("header %v", h)
		}
		there := map[string]*archivev1.RestoredGroup{}
		for _, g := range all[1].GetGroups().GetGroups() {
			there[g.GetName()] = g
		}
		want := 0
		for _, of := range s.model.Groups {
			if of.Gone {
				continue
			}
			want++
			if g := there[of.Name]; g.GetError() != "" || string(g.GetUuid()) != string(id(of.UUID)) {
				t.Errorf("%s: %v", of.Name, g)
			}
		}
		if len(there) != want || all[2].GetEnd().GetGroups() != int64(want) {
			t.Errorf("%d groups, and the end %v", len(there), all[2])
		}
	})
}

func id(source uuid.UUID) []byte {
	of := restore.GroupUUID(newStore, source)
	return of[:]
}

// A group whose objects are damaged is listed with the reason.
func TestTheListNamesGroupsThatCannotBeRestored(t *testing.T) {
	bubbletest.Run(t, func(t *testing.T, network *bubbletest.Net) {
		s := newSite(t, network)
		defer s.stop()
		alpha := s.model.Groups[0]
		for _, name := range s.bucket.Names() {
			if strings.Contains(name, alpha.UUID.String()+"/cat/") {
				s.bucket.Set(name, []byte("damaged"))
			}
		}
		s.start()
		all, err := list(t.Context(), s.connect(nil))
		if err != nil {
			t.Fatal(err)
		}
		bad := 0
		for _, g := range all[1].GetGroups().GetGroups() {
			if g.GetError() == "" {
				continue
			}
			bad++
			if string(g.GetUuid()) != string(id(alpha.UUID)) || !strings.Contains(g.GetError(), "/cat/") {
				t.Errorf("%v", g)
			}
		}
		if bad != 1 {
			t.Errorf("%d groups cannot be restored", bad)
		}
	})
}
