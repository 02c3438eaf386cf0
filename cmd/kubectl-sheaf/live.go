package main

import (
	"cmp"
	"context"
	"fmt"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/client-go/tools/portforward"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"sheaf.dev/sheaf/api/v1alpha1"
	"sheaf.dev/sheaf/client/recordv1"
	"sheaf.dev/sheaf/internal/kube/workload"
	"sheaf.dev/sheaf/internal/local/cli"
	"sheaf.dev/sheaf/internal/security/certs"
	"sheaf.dev/sheaf/internal/security/identity"
	"sheaf.dev/sheaf/internal/status/finding"
)

// live holds a gateway's report about its store. The report contains facts that are not in the status of the
// RecordStore, such as the leaders of the groups and the progress of moves.
type live struct {
	finding.Facts
	Moves []*recordv1.Move
	// Err says why there is no report from a gateway. It is nil if there is one.
	Err error
}

// answerBytesMax is the maximum size of a response from a gateway, in bytes. The response has a row for each copy of
// each group.
const answerBytesMax = 256 << 20

// askGateway gets a gateway's report over a forwarded port. The argument patience is the time limit; 0 means no limit.
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
		l.Facts, l.Moves = finding.Listed(shards, groups), moves.GetMoves()
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
	select { // if the context ends first, return without waiting for the dialer, which may hang
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
	err = cmp.Or(err, conn.Close())
	cancel()
	<-ended //nolint:errcheck // waits until the listener is closed; the error says only that cancel ended the forwarding
	return err
}

// credentials returns an administrator's credentials for the store. They accept only gateways of that store, because
// a forwarded port has no host name to verify. Call done after the connection is closed.
func (a *app) credentials(ctx context.Context, store *v1alpha1.RecordStore) (speaks credentials.TransportCredentials,
	done func(), err error) {
	if !workload.HasTLS(store) || store.Status.TLS.Transport == v1alpha1.TransportPlaintext {
		return insecure.NewCredentials(), func() {}, nil
	}
	name := workload.AdminTLS(store.Name)
	var secret corev1.Secret
	err = a.objects.Get(ctx, client.ObjectKey{Namespace: store.Namespace, Name: name}, &secret)
	switch {
	case apierrors.IsForbidden(err):
		return nil, nil, fmt.Errorf(
			"store %s speaks TLS, and asks administrators for the certificate in Secret %s, which you may not read: have a "+
				"Role give you get on that Secret: %w", store.Name, name, err)
	case err != nil:
		return nil, nil, fmt.Errorf("read Secret %s, with the certificate of administrators of store %s: %w", name,
			store.Name, err)
	}
	files := map[string][]byte{certs.ModeFile: []byte(store.Status.TLS.Transport)}
	for _, key := range []string{certs.CertificateFile, certs.KeyFile, certs.BundleFile, certs.ClientBundleFile} {
		if content, there := secret.Data[key]; there {
			files[key] = content
		}
	}
	source, err := certs.InMemory(certs.Config{}, files)
	if err != nil {
		return nil, nil, fmt.Errorf("secret %s: %w", name, err)
	}
	return source.Client(source.Own(identity.Gateway, "")), source.Close, nil
}
