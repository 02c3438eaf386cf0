package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"time"

	"github.com/spf13/cobra"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/client-go/tools/portforward"
	"k8s.io/client-go/transport/spdy"
	"k8s.io/klog/v2"
	"k8s.io/streaming/pkg/httpstream"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"sheaf.dev/sheaf/api/v1alpha1"
	"sheaf.dev/sheaf/internal/kube/finding"
	"sheaf.dev/sheaf/internal/kube/workload"
	"sheaf.dev/sheaf/internal/local/cli"
)

func (a *app) forwardCommand() *cobra.Command {
	var address string
	var port, httpPort uint16
	cmd := &cobra.Command{
		Use:   "port-forward [STORE]",
		Short: "Bring a gateway of a store to this machine",
		Long: `Forwards a port of this machine to a gateway that is ready, and to another one when that goes, until
it is interrupted. The commands of sheaf, and programs, then reach the store at localhost:7600, and
its page at http://127.0.0.1:7601. Where the store speaks TLS, say localhost, as its certificates
are for names, and give a certificate that its Secrets have (docs/install.md).`,
		Example: `  kubectl sheaf port-forward quotes &
  sheaf status --server localhost:7600 --ca ca.crt --cert tls.crt --key tls.key`,
		Args: cobra.MaximumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			store, err := a.oneStore(cmd.Context(), args, sourcePatience)
			if err != nil {
				return err
			}
			ports := []string{fmt.Sprintf("%d:%d", port, workload.PortGateway)}
			if httpPort > 0 {
				ports = append(ports, fmt.Sprintf("%d:%d", httpPort, workload.PortGatewayHTTP))
			}
			return a.forwardOn(cmd.Context(), store, address, ports)
		},
	}
	cmd.Flags().StringVar(&address, "address", "127.0.0.1", "address of this machine to listen on")
	cmd.Flags().Uint16Var(&port, "port", workload.PortGateway, "port of this machine for gRPC; 0: any")
	cmd.Flags().Uint16Var(&httpPort, "http-port", workload.PortGatewayHTTP,
		"port of this machine for the page, /status and /metrics; 0: none")
	return cmd
}

// forwardPause is the time between the loss of a forwarded connection and the next attempt to connect.
const forwardPause = 500 * time.Millisecond

// forwardOn forwards to a gateway until the context ends. If the connection to one gateway is lost, it forwards to
// another one. If the first attempt fails, forwardOn returns the error.
func (a *app) forwardOn(ctx context.Context, store *v1alpha1.RecordStore, address string, ports []string) error {
	worked := false
	for {
		pod, err := a.gatewayPod(ctx, store)
		if err == nil {
			err = a.forwardWhileReady(ctx, pod, address, ports, func(there []portforward.ForwardedPort) {
				worked = true
				for _, p := range there {
					fmt.Fprintf(a.out, "%s:%d -> pod %s:%d\n", address, p.Local, pod.Name, p.Remote)
				}
			})
		}
		if ctx.Err() != nil {
			err = nil // an interruption by the user is not an error
		} else if !worked {
			err = failf("forward a port: %w", err)
		}
		if ctx.Err() != nil || !worked {
			return err
		}
		fmt.Fprintf(a.err, "the way to a gateway broke off (%v); another one is tried\n", err)
		if !cli.Pause(ctx, forwardPause) {
			return nil
		}
	}
}

// readyLook is the interval between two checks of the pod's readiness.
const readyLook = time.Second

// forwardWhileReady forwards to a pod until the pod is no longer ready. The API server does not report that a forwarded
// pod no longer exists, so calls would hang.
func (a *app) forwardWhileReady(ctx context.Context, pod *corev1.Pod, address string, ports []string,
	ready func([]portforward.ForwardedPort)) error {
	ctx, stop := context.WithCancelCause(ctx)
	defer stop(nil)
	go func() {
		for cli.Pause(ctx, readyLook) {
			var now corev1.Pod
			err := a.objects.Get(ctx, client.ObjectKeyFromObject(pod), &now)
			if apierrors.IsNotFound(err) || err == nil && (now.UID != pod.UID || !finding.PodReady(&now)) {
				stop(fmt.Errorf("pod %s is no longer ready", pod.Name))
				return
			}
		}
	}()
	err := a.forward(ctx, pod, address, ports, ready)
	if cause := context.Cause(ctx); cause != nil {
		return cause
	}
	return err
}

// gatewayPod returns the oldest ready gateway. A younger one may only just have replaced another gateway.
func (a *app) gatewayPod(ctx context.Context, store *v1alpha1.RecordStore) (*corev1.Pod, error) {
	var pods corev1.PodList
	err := a.objects.List(ctx, &pods, client.InNamespace(store.Namespace),
		client.MatchingLabels(workload.Selector(store.Name, workload.ContainerGateway)))
	if err != nil {
		return nil, fmt.Errorf("list the gateways of store %s: %w", store.Name, err)
	}
	ready := slices.DeleteFunc(pods.Items, func(p corev1.Pod) bool { return !finding.PodReady(&p) })
	if len(ready) == 0 {
		return nil, fmt.Errorf(
			"none of the %d gateways of store %s is ready: kubectl -n %s get pods -l app.kubernetes.io/component=gateway "+
				"shows them",
			len(pods.Items), store.Name, store.Namespace)
	}
	slices.SortFunc(ready, func(a, b corev1.Pod) int {
		return cmp.Or(a.CreationTimestamp.Compare(b.CreationTimestamp.Time), cmp.Compare(a.Name, b.Name))
	})
	return &ready[0], nil
}

// quiet returns a context in which the Kubernetes libraries write no log lines to standard error. The lines are not
// needed, because the libraries also return every error that matters. Some lines would even mislead, because they
// report forwarded connections that end with the command.
func quiet(ctx context.Context) context.Context { return klog.NewContext(ctx, klog.Logger{}) }

var errForwardLost = errors.New("the pod or the API server ended the connection")

// forward forwards ports to a pod until the context ends or the connection breaks. It calls ready once the connection
// is established.
func (a *app) forward(ctx context.Context, pod *corev1.Pod, address string, ports []string,
	ready func([]portforward.ForwardedPort)) error {
	target := a.core.CoreV1().RESTClient().Post().Resource("pods").Namespace(pod.Namespace).Name(pod.Name).
		SubResource("portforward").URL()
	transport, upgrader, err := spdy.RoundTripperFor(a.config)
	if err != nil {
		return err
	}
	older := spdy.NewDialerForStreaming(upgrader, &http.Client{Transport: transport}, http.MethodPost, target)
	newer, err := portforward.NewSPDYOverWebsocketDialerForStreaming(target, a.config)
	if err != nil {
		return err
	}
	dialer := portforward.NewFallbackDialerForStreaming(newer, older, func(err error) bool {
		return httpstream.IsUpgradeFailure(err) || httpstream.IsHTTPSProxyError(err)
	})
	stands := make(chan struct{})
	forwarder, err := portforward.NewOnAddressesForStreamingWithContext(quiet(ctx), dialer, []string{address}, ports,
		stands, io.Discard, io.Discard)
	if err != nil {
		return err
	}
	ended := make(chan error, 1)
	go func() { ended <- forwarder.ForwardPorts() }()
	select {
	case <-stands:
		there, err := forwarder.GetPorts()
		if err != nil {
			return err
		}
		ready(there)
	case err := <-ended:
		return cmp.Or(err, errForwardLost)
	case <-ctx.Done():
		return ctx.Err()
	}
	return cmp.Or(<-ended, errForwardLost)
}
