package main

import (
	"context"
	"fmt"
	"time"

	"google.golang.org/grpc"
	"k8s.io/client-go/tools/portforward"

	"sheaf.dev/sheaf/api/v1alpha1"
	"sheaf.dev/sheaf/client/recordv1"
	"sheaf.dev/sheaf/internal/kube/workload"
	"sheaf.dev/sheaf/internal/local/cli"
	"sheaf.dev/sheaf/internal/status/finding"
)

// live is what a gateway reports about its store. It has more than the status, such as leaders and the progress of
// moves.
type live struct {
	Shards []*recordv1.Shard
	Groups []*recordv1.Group // one row for each copy
	Moves  []*recordv1.Move
	Facts  finding.Facts // the same, as findings need it
	// Err says why the gateway's report is missing; nil: it is present.
	Err error
}

// answerBytesMax is the maximum size of a gateway's answer, in bytes. The answer has a row for each copy of each group.
const answerBytesMax = 256 << 20

// askGateway asks a gateway over a forwarded port, within a time limit; 0: no limit.
func (a *app) askGateway(ctx context.Context, store *v1alpha1.RecordStore, patience time.Duration) live {
	var l live
	ctx, cancel := cli.Within(ctx, patience)
	defer cancel()
	l.Err = a.onGateway(ctx, store, func(admin recordv1.AdminServiceClient) error {
		shards, err := recordv1.AllShards(ctx, admin)
		if err != nil {
			return fmt.Errorf("ask for shards: %w", err)
		}
		groups, err := recordv1.AllGroups(ctx, admin, &recordv1.ListGroupsRequest{})
		if err != nil {
			return fmt.Errorf("ask for groups: %w", err)
		}
		moves, err := recordv1.AllMoves(ctx, admin)
		if err != nil {
			return fmt.Errorf("ask for moves: %w", err)
		}
		l.Shards, l.Groups, l.Moves = shards.GetShards(), groups.GetGroups(), moves.GetMoves()
		l.Facts = finding.Listed(shards, groups)
		return nil
	})
	return l
}

// onGateway calls do with a connection to a ready gateway.
func (a *app) onGateway(ctx context.Context, store *v1alpha1.RecordStore,
	do func(recordv1.AdminServiceClient) error) error {
	pod, err := a.gatewayPod(ctx, store)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	local, ended := make(chan uint16, 1), make(chan error, 1)
	go func() {
		ended <- a.forward(ctx, pod, "127.0.0.1", []string{fmt.Sprintf("0:%d", workload.PortGateway)},
			func(ports []portforward.ForwardedPort) {
				local <- ports[0].Local
			})
	}()
	var port uint16
	select { // if the context ends first, do not wait for the dialer, which may still hang
	case port = <-local:
	case err := <-ended:
		return fmt.Errorf("forward a port to pod %s: %w", pod.Name, err)
	case <-ctx.Done():
		return fmt.Errorf("forward a port to pod %s: %w", pod.Name, ctx.Err())
	}
	speaks, done, err := a.credentials(ctx, store)
	if err != nil {
		return err
	}
	defer done()
	conn, err := grpc.NewClient(fmt.Sprintf("passthrough:///127.0.0.1:%d", port), grpc.WithNoProxy(),
		grpc.WithTransportCredentials(speaks),
		grpc.WithUserAgent("kubectl-sheaf/"+version), grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(answerBytesMax)))
	if err != nil {
		return err
	}
	err = do(recordv1.NewAdminServiceClient(conn))
	if closed := conn.Close(); err == nil {
		err = closed
	}
	cancel()
	<-ended //nolint:errcheck // the listener is closed; that the way was cut is what was wanted
	return err
}
