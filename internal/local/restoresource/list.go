package restoresource

import (
	"cmp"
	"slices"
	"strings"

	"google.golang.org/grpc"

	archivev1 "sheaf.dev/sheaf/api/sheaf/archive/v1"
	"sheaf.dev/sheaf/internal/archive/restore"
)

// partGroups is the maximum number of groups in one message of ListGroups.
const partGroups = 1000

// errorBytesMax limits the length of the reason why a group cannot be restored.
const errorBytesMax = 500

// lister implements RestoreService.
type lister struct {
	archivev1.UnimplementedRestoreServiceServer
	restore *restore.Restore
}

// ListGroups implements RestoreService. The groups are in the order of their names.
func (l lister) ListGroups(_ *archivev1.ListGroupsRequest,
	stream grpc.ServerStreamingServer[archivev1.ListGroupsResponse]) error {
	store, archived, from := l.restore.Store(), l.restore.ArchivedStore(), l.restore.Archive()
	err := stream.Send(&archivev1.ListGroupsResponse{Part: &archivev1.ListGroupsResponse_Header{
		Header: &archivev1.ListGroupsHeader{
			Store: store[:], ArchivedStore: archived[:], Routing: from.Routing, HashGroups: int64(from.Groups),
			TimeUnixNs: l.restore.At().UnixNano(),
		},
	}})
	if err != nil {
		return err
	}
	groups := l.restore.Groups()
	slices.SortFunc(groups, func(a, b restore.Group) int {
		return cmp.Or(strings.Compare(a.Name, b.Name), slices.Compare(a.UUID[:], b.UUID[:]))
	})
	for part := range slices.Chunk(groups, partGroups) {
		out := &archivev1.ListGroupsPart{}
		for _, g := range part {
			one := &archivev1.RestoredGroup{Name: g.Name, Uuid: g.UUID[:]}
			if g.Err != nil {
				one.Error = strings.ToValidUTF8(cut(g.Err.Error()), "?")
			}
			out.Groups = append(out.Groups, one)
		}
		if err := stream.Send(&archivev1.ListGroupsResponse{Part: &archivev1.ListGroupsResponse_Groups{Groups: out}}); err !=
			nil {
			return err
		}
	}
	return stream.Send(&archivev1.ListGroupsResponse{Part: &archivev1.ListGroupsResponse_End{
		End: &archivev1.ListGroupsEnd{Groups: int64(len(groups))},
	}})
}

// cut shortens a reason.
func cut(text string) string {
	if text = cmp.Or(text, "unknown"); len(text) > errorBytesMax {
		return text[:errorBytesMax] + "..."
	}
	return text
}
