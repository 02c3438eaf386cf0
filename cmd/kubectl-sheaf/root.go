package main

import (
	"context"
	"io"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/go-logr/logr"
	"github.com/spf13/cobra"
	"golang.org/x/term"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/cli-runtime/pkg/genericclioptions"
	"k8s.io/client-go/kubernetes"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/log"

	"sheaf.dev/sheaf/api/v1alpha1"
	"sheaf.dev/sheaf/client/recordv1"
)

// app is one invocation of the plugin.
type app struct {
	out, err io.Writer
	flags    *genericclioptions.ConfigFlags
	now      func() time.Time

	config    *rest.Config
	namespace string
	objects   client.WithWatch     // client for typed objects, including those of Sheaf's kinds
	core      kubernetes.Interface // client for logs and proxied requests
	// gateway is onGateway, unless a test replaces it.
	gateway func(context.Context, *v1alpha1.RecordStore, func(recordv1.AdminServiceClient) error) error
}

func newApp(out, err io.Writer) *app {
	a := &app{out: out, err: err, flags: genericclioptions.NewConfigFlags(true), now: time.Now}
	a.gateway = a.onGateway
	return a
}

// command returns the plugin's root command.
func (a *app) command() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "kubectl-sheaf",
		Short: "Look at stores of Sheaf on Kubernetes, and look after them",
		Long: `Shows a RecordStore on one screen with what is wrong and what to type next, gathers all that a
maintainer needs, shows moves, lists groups and deletes empty ones, drains pools and shards, and
forwards a port to a gateway. It reads what the kubeconfig's user may read; only drain and groups
delete change anything.`,
		Annotations:   map[string]string{cobra.CommandDisplayNameAnnotation: "kubectl sheaf"},
		Version:       version,
		SilenceErrors: true, SilenceUsage: true,
		PersistentPreRunE: func(cmd *cobra.Command, _ []string) error {
			if cmd.Name() == "help" || strings.HasPrefix(cmd.Name(), "__") || cmd.Parent() != nil && cmd.Parent().
				Name() == "completion" {
				return nil
			}
			return a.connect()
		},
	}
	cmd.SetOut(a.out)
	cmd.SetErr(a.err)
	a.flags.AddFlags(cmd.PersistentFlags())
	cmd.AddCommand(a.statusCommand(), a.movesCommand(), a.groupsCommand(), a.drainCommand(), a.reportCommand(),
		a.forwardCommand())
	return cmd
}

// connect creates the clients and determines the namespace.
func (a *app) connect() error {
	config, err := a.flags.ToRESTConfig()
	if err != nil {
		return failf("find the Kubernetes API: %w", err)
	}
	config.UserAgent = "kubectl-sheaf/" + version
	config.QPS, config.Burst = 50, 100 // a report sends more requests in a short time than the default allows
	if a.namespace, _, err = a.flags.ToRawKubeConfigLoader().Namespace(); err != nil {
		return failf("find the namespace: %w", err)
	}
	return a.connectTo(config)
}

// connectTo creates the clients for an API server.
func (a *app) connectTo(config *rest.Config) (err error) {
	scheme := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{clientgoscheme.AddToScheme, v1alpha1.AddToScheme} {
		if err := add(scheme); err != nil {
			return failf("know the kinds: %w", err)
		}
	}
	log.SetLogger(logr.Discard()) // without a logger, the client library would print a warning
	a.config = config
	if a.objects, err = client.NewWithWatch(config, client.Options{Scheme: scheme}); err != nil {
		return failf("connect to the Kubernetes API at %s: %w", config.Host, err)
	}
	if a.core, err = kubernetes.NewForConfig(config); err != nil {
		return failf("connect to the Kubernetes API at %s: %w", config.Host, err)
	}
	return nil
}

// stores returns the named store, or all stores of the namespace if none is named. The argument limit is the time
// limit of each read; 0 means that only ctx limits it.
func (a *app) stores(ctx context.Context, args []string, limit time.Duration) ([]v1alpha1.RecordStore, error) {
	from := bounded{a.objects, limit}
	if len(args) == 1 {
		var store v1alpha1.RecordStore
		if err := from.Get(ctx, client.ObjectKey{Namespace: a.namespace, Name: args[0]}, &store); err != nil {
			return nil, failf("read RecordStore %s of namespace %s: %w", args[0], a.namespace, err)
		}
		return []v1alpha1.RecordStore{store}, nil
	}
	var list v1alpha1.RecordStoreList
	if err := from.List(ctx, &list, client.InNamespace(a.namespace)); err != nil {
		return nil, failf("list RecordStores of namespace %s: %w", a.namespace, err)
	}
	if len(list.Items) == 0 {
		return nil, failf("namespace %s has no RecordStore: give -n NAMESPACE; kubectl get recordstores -A shows all",
			a.namespace)
	}
	return list.Items, nil
}

// oneStore returns the named store or, without a name, the only store of the namespace. The argument limit bounds each
// read, as in stores.
func (a *app) oneStore(ctx context.Context, args []string, limit time.Duration) (*v1alpha1.RecordStore, error) {
	stores, err := a.stores(ctx, args, limit)
	if err != nil {
		return nil, err
	}
	if len(stores) > 1 {
		names := make([]string, len(stores))
		for i := range stores {
			names[i] = stores[i].Name
		}
		slices.Sort(names)
		return nil, failf("namespace %s has several RecordStores: name one of %s", a.namespace, strings.Join(names, ", "))
	}
	return &stores[0], nil
}

// These widths of the screen are in columns.
const (
	widthPlain = 140 // width of output that is not a terminal
	widthMin   = 60
)

// width returns how many columns wide the output should be. If asked is above 0, it is the width. Otherwise the width
// is that of the terminal, or widthPlain if the output is not a terminal.
func (a *app) width(asked int) int {
	if asked > 0 {
		return max(asked, widthMin)
	}
	if f, ok := a.out.(*os.File); ok {
		if width, _, err := term.GetSize(int(f.Fd())); err == nil && width > 0 { //nolint:gosec // descriptors are small
			return max(width, widthMin)
		}
	}
	return widthPlain
}
