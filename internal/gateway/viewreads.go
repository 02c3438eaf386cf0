package gateway

import (
	"bytes"
	"context"
	"encoding/json"
	"slices"

	"github.com/apache/arrow-go/v18/arrow/flight/gen/flight"
	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"sheaf.dev/sheaf/client/batchv1"
	"sheaf.dev/sheaf/client/call/reason"
	"sheaf.dev/sheaf/client/call/routing"
	"sheaf.dev/sheaf/client/recordv1"
	"sheaf.dev/sheaf/internal/placement"
	"sheaf.dev/sheaf/internal/security/access"
)

// Reads of a view go to the leader of a group first, and to the other copies if the leader's copy lacks what the view
// needs (failures.judgeView).

// ofEveryCopy returns the error for a read of a view whose verdict is final. Shards name themselves in such an error if
// it concerns only their own copy. By now it concerns every copy, so the name is removed.
func ofEveryCopy(err error, v routing.Verdict) error {
	if v.Reason != reason.ViewExpired || v.Fate != routing.Final || v.Info["shard"] == "" {
		return err
	}
	st := status.Convert(err)
	return withDetails(st.Code(), st.Message()+" (no other copy can answer)", &errdetails.ErrorInfo{Domain: reason.Domain,
		Reason: reason.ViewExpired, Metadata: map[string]string{"view": v.Info["view"]}})
}

// viewExpired returns the error for a view that does not exist.
func viewExpired(id string) error {
	return withDetails(codes.OutOfRange, "view "+id+": there is no such view: it was closed, or has expired: "+
		"open another view", &errdetails.ErrorInfo{Domain: reason.Domain, Reason: reason.ViewExpired,
		Metadata: map[string]string{"view": id}})
}

// viewNamed reads a view from etcd. It returns VIEW_EXPIRED if there is none.
func (g *Gateway) viewNamed(ctx context.Context, id string) (v placement.DataView, err error) {
	parsed, err := placement.ParseDataViewID(id)
	if err != nil {
		return v, invalid("view", "%v", err)
	}
	ctx, cancel := etcdTime(ctx)
	defer cancel()
	v, found, err := g.cfg.Store.DataView(ctx, parsed)
	if err != nil {
		return v, etcdFailed(err, false, "view %s cannot be read", id)
	}
	if !found {
		return v, viewExpired(id)
	}
	return v, nil
}

// groupsOfView returns the names of a view's groups, all of which the caller must be allowed to scan.
func (g *Gateway) groupsOfView(ctx context.Context, id string) (names []string, err error) {
	v, err := g.viewNamed(ctx, id)
	if err != nil {
		return nil, err
	}
	for _, of := range v.Groups {
		if err := access.May(ctx, access.Scan, of.Name); err != nil {
			return nil, err
		}
		names = append(names, of.Name)
	}
	return names, nil
}

// scanViewBehind does the same as scanBehind, for the groups of a view.
func (g *Gateway) scanViewBehind(stream grpc.ServerStream, request *recordv1.ScanRequest, behind string,
	damage error) error {
	names, err := g.groupsOfView(stream.Context(), request.GetView())
	if err != nil {
		return err
	}
	for _, name := range names {
		if name <= behind {
			continue
		}
		one := &recordv1.ScanRequest{Group: name, MetadataOnly: request.GetMetadataOnly(), View: request.GetView(),
			RoutingEpoch: request.GetRoutingEpoch()}
		switch err := g.scanGroup(stream, one, name, true); {
		case status.Code(err) == codes.DataLoss:
			damage = err
		case err != nil:
			return err
		}
	}
	return damage
}

// locate fills in the shards and nodes of a split. Every copy can serve a split of a view. The shard that has planned
// it is the first one.
func (t *table) locate(split *recordv1.ScanSplit, every bool) {
	r := t.named[split.GetGroup()]
	if r == nil {
		return
	}
	if len(split.GetAddresses()) == 0 {
		split.Addresses = slices.Clone(r.voters)
	}
	if every {
		for _, address := range r.voters {
			if !slices.Contains(split.Addresses, address) {
				split.Addresses = append(split.Addresses, address)
			}
		}
	}
	for _, address := range split.Addresses {
		node := ""
		if i := slices.IndexFunc(r.members, func(s *shard) bool { return s.address == address }); i >= 0 {
			node = t.view.Shards[r.members[i].name].Node
		}
		split.Nodes = append(split.Nodes, node)
	}
}

// viewCommand is the body of the actions of Arrow Flight that concern views.
type viewCommand struct {
	View           string   `json:"view"`
	Groups         []string `json:"groups"`
	ExpiresSeconds int64    `json:"expires_seconds"`
}

// viewResult is the result of these actions.
type viewResult struct {
	View          string   `json:"view"`
	Groups        []string `json:"groups"`
	OpenedUnixNs  int64    `json:"opened_unix_ns"`
	ExpiresUnixNs int64    `json:"expires_unix_ns"`
	// Lost says, by group, why a group can no longer be read in the view.
	Lost map[string]string `json:"lost,omitempty"`
}

// viewResultOf returns a view as the actions of Arrow Flight show it.
func viewResultOf(v *batchv1.View) ([]byte, error) {
	out := viewResult{View: v.GetId(), OpenedUnixNs: v.GetOpenedUnixNs(), ExpiresUnixNs: v.GetExpiresUnixNs()}
	for _, group := range v.GetGroups() {
		out.Groups = append(out.Groups, group.GetGroup())
		if why := group.GetLost(); why != "" {
			if out.Lost == nil {
				out.Lost = map[string]string{}
			}
			out.Lost[group.GetGroup()] = why
		}
	}
	return json.Marshal(out)
}

// flightListViews sends one result for each view of which the caller may scan all groups, the oldest first.
func (g *Gateway) flightListViews(stream grpc.ServerStream, body []byte) error {
	if text := string(bytes.TrimSpace(body)); text != "" && text != "{}" {
		return invalid("body", "list-views takes none: %.200q", text)
	}
	list, err := (&viewServer{g: g}).ListViews(stream.Context(), &batchv1.ListViewsRequest{})
	if err != nil {
		return err
	}
	for _, v := range list.GetViews() {
		result, err := viewResultOf(v)
		if err != nil {
			return err
		}
		if err := stream.SendMsg(&flight.Result{Body: result}); err != nil {
			return err
		}
	}
	return nil
}

// viewAction carries out an action of Arrow Flight that concerns a view, and returns its result.
func (g *Gateway) viewAction(ctx context.Context, action string, body []byte) ([]byte, error) {
	var in viewCommand
	d := json.NewDecoder(bytes.NewReader(body))
	d.DisallowUnknownFields()
	if err := d.Decode(&in); err != nil {
		return nil, invalid("body", "is not that of %s in docs/flight.md: %.200s", action, err.Error())
	}
	if (action == "open-view") != (in.View == "") || action != "open-view" && len(in.Groups) > 0 {
		return nil, invalid("body", "open-view takes groups, and the other actions take view")
	}
	s := &viewServer{g: g}
	var v *batchv1.View
	switch action {
	case "open-view":
		out, err := s.OpenView(ctx, &batchv1.OpenViewRequest{Groups: in.Groups, ExpiresSeconds: in.ExpiresSeconds})
		if err != nil {
			return nil, err
		}
		v = out.GetView()
	case "renew-view":
		out, err := s.RenewView(ctx, &batchv1.RenewViewRequest{View: in.View, ExpiresSeconds: in.ExpiresSeconds})
		if err != nil {
			return nil, err
		}
		v = out.GetView()
	default:
		if _, err := s.CloseView(ctx, &batchv1.CloseViewRequest{View: in.View}); err != nil {
			return nil, err
		}
		return []byte("{}"), nil
	}
	return viewResultOf(v)
}
