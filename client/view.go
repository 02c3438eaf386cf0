package client

import (
	"context"
	"time"

	"sheaf.dev/sheaf/client/batchv1"
)

// View is a state of some groups that can be read for days: after failovers, restarts, moves and compactions. Give
// its ID to Get, BatchGet, PlanScan and Scan, in any process. Each group has a moment of its own, which lies within
// the call of OpenView.
type View struct {
	// ID names the view. It is no secret: every read is decided by the caller's rights.
	ID string
	// Groups lists the names of the view's groups, sorted.
	Groups []string
	// Lost says, by group, why a group can no longer be read in the view. It is empty if all can be.
	Lost map[string]string
	// Opened is when the view was opened, and Expires is when it ends unless it is renewed.
	Opened, Expires time.Time
}

// OpenView opens a view of groups, or of all groups if none is named. It expires after the given time, which may be
// up to 30 days; 0 means 24 hours. Close it when it is no longer read: what is superseded meanwhile stays on the
// disks, and if that becomes too much, the oldest views are given up (ErrViewExpired). The caller needs the right to
// scan the groups.
func (c *Client) OpenView(ctx context.Context, groups []string, expires time.Duration) (View, error) {
	answer, err := unary(ctx, c, call{op: "open a view"}, batchv1.NewViewServiceClient, batchv1.ViewServiceClient.OpenView,
		&batchv1.OpenViewRequest{Groups: groups, ExpiresSeconds: seconds(expires)})
	return toView(answer.GetView()), err
}

// RenewView sets the time after which a view expires, from now on. The argument expires is that of OpenView. The
// error is ErrViewExpired if the view has ended.
func (c *Client) RenewView(ctx context.Context, id string, expires time.Duration) (View, error) {
	answer, err := unary(ctx, c, call{op: "renew view " + id}, batchv1.NewViewServiceClient,
		batchv1.ViewServiceClient.RenewView, &batchv1.RenewViewRequest{View: id, ExpiresSeconds: seconds(expires)})
	return toView(answer.GetView()), err
}

// Views returns the views of which the caller may scan all groups, the oldest first.
func (c *Client) Views(ctx context.Context) (views []View, err error) {
	answer, err := unary(ctx, c, call{op: "list views"}, batchv1.NewViewServiceClient, batchv1.ViewServiceClient.ListViews,
		&batchv1.ListViewsRequest{})
	for _, v := range answer.GetViews() {
		views = append(views, toView(v))
	}
	return views, err
}

// CloseView ends a view. Closing a view that does not exist succeeds.
func (c *Client) CloseView(ctx context.Context, id string) error {
	_, err := unary(ctx, c, call{op: "close view " + id}, batchv1.NewViewServiceClient,
		batchv1.ViewServiceClient.CloseView, &batchv1.CloseViewRequest{View: id})
	return err
}

// seconds rounds a time up to whole seconds, so that a positive time never becomes the default.
func seconds(d time.Duration) int64 {
	if d <= 0 {
		return int64(d / time.Second)
	}
	return int64((d + time.Second - 1) / time.Second)
}

func toView(v *batchv1.View) View {
	if v == nil {
		return View{}
	}
	out := View{ID: v.GetId(), Opened: time.Unix(0, v.GetOpenedUnixNs()), Expires: time.Unix(0, v.GetExpiresUnixNs())}
	for _, g := range v.GetGroups() {
		out.Groups = append(out.Groups, g.GetGroup())
		if g.GetLost() != "" {
			if out.Lost == nil {
				out.Lost = map[string]string{}
			}
			out.Lost[g.GetGroup()] = g.GetLost()
		}
	}
	return out
}
