package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"strings"
	"time"

	"github.com/spf13/cobra"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	policyv1 "k8s.io/api/policy/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/validation"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/metrics/server"

	"sheaf.dev/sheaf/api/v1alpha1"
	"sheaf.dev/sheaf/controllers/step"
)

// options holds the options of the operator.
type options struct {
	namespaces      []string
	shardImage      string
	archiveImage    string
	namespace       string
	leaderElect     bool
	leaderNamespace string
	metricsAddress  string
	healthAddress   string
	diskSets        bool
	wipePullSecrets []string
	logLevel        string
	level           slog.Level
}

// command returns the command line. It calls run with checked options.
func command(run func(context.Context, options) error) *cobra.Command {
	var o options
	cmd := &cobra.Command{
		Use:   "sheaf-operator",
		Short: "Run the operator of Sheaf",
		Long: `Reconciles RecordStores, ShardPools and DiskSets of the cluster that the kubeconfig, or the pod's
service account, names. The Helm chart sheaf-operator installs it with the rights that it needs.`,
		Version: version, Args: cobra.NoArgs, SilenceErrors: true, SilenceUsage: true,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := o.check(); err != nil {
				return err
			}
			if err := run(cmd.Context(), o); err != nil {
				return failure{err}
			}
			return nil
		},
	}
	flags := cmd.Flags()
	flags.StringSliceVar(&o.namespaces, "namespaces", nil, "namespaces to look after; empty: all")
	flags.StringVar(&o.shardImage, "shard-image", "",
		"image of shards, gateways and etcd, where a RecordStore names none (required)")
	flags.StringVar(&o.archiveImage, "archive-image", "",
		"image of the pods of archives, where a RecordArchive names none; empty: each has to name one")
	flags.StringVar(&o.namespace, "operator-namespace", "",
		"namespace of the operator's pods, which NetworkPolicies of stores let in; "+
			"empty: $POD_NAMESPACE; where that is empty too, none are made")
	flags.BoolVar(&o.leaderElect, "leader-elect", true,
		"work only while holding a lease, so that several replicas may run")
	flags.StringVar(&o.leaderNamespace, "leader-election-namespace", "",
		"namespace of that lease; empty: $POD_NAMESPACE, else that of the pod")
	flags.StringVar(&o.metricsAddress, "metrics-bind-address", ":8080", "address of /metrics; 0: none")
	flags.StringVar(&o.healthAddress, "health-probe-bind-address", ":8081", "address of /healthz and /readyz; 0: none")
	flags.BoolVar(&o.diskSets, "disksets", true,
		"look after DiskSets, which needs rights on nodes and volumes of the cluster")
	flags.StringSliceVar(&o.wipePullSecrets, "wipe-pull-secrets", nil,
		"names of Secrets of --operator-namespace, with which Jobs that wipe disks pull --shard-image")
	flags.StringVar(&o.logLevel, "log-level", "info", "debug, info, warn or error")
	return cmd
}

// check returns an error that describes what is wrong with the command line, or nil.
func (o *options) check() error {
	if o.shardImage == "" {
		return errors.New("--shard-image is required: the image of shards, gateways and etcd")
	}
	if err := o.level.UnmarshalText([]byte(o.logLevel)); err != nil {
		return fmt.Errorf("--log-level %q: give debug, info, warn or error", o.logLevel)
	}
	for _, n := range o.namespaces {
		if why := validation.IsDNS1123Label(n); len(why) > 0 {
			return fmt.Errorf("--namespaces: %q is no name of a namespace: %s", n, strings.Join(why, "; "))
		}
	}
	if o.leaderNamespace == "" {
		o.leaderNamespace = os.Getenv("POD_NAMESPACE")
	}
	if o.namespace == "" {
		o.namespace = os.Getenv("POD_NAMESPACE")
	}
	return nil
}

// scheme returns a scheme with the kinds that the operator reads and writes.
func scheme() *runtime.Scheme {
	s := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{clientgoscheme.AddToScheme, v1alpha1.AddToScheme} {
		if err := add(s); err != nil {
			panic(err) // only a bug can register a kind twice
		}
	}
	return s
}

// manager returns the options of the controller manager. Of kinds defined by other projects, the manager's cache holds
// only objects with Sheaf's labels: the operator's own objects, and the pods and claims of Jobs that measure disks.
func (o *options) manager() ctrl.Options {
	ours := cache.ByObject{Label: labels.SelectorFromSet(labels.Set{"app.kubernetes.io/managed-by": "sheaf-operator"})}
	byObject := map[client.Object]cache.ByObject{}
	for _, kind := range []client.Object{&corev1.Service{}, &appsv1.StatefulSet{}, &appsv1.Deployment{},
		&policyv1.PodDisruptionBudget{}, &networkingv1.NetworkPolicy{}} {
		byObject[kind] = ours
	}
	named := cache.ByObject{Label: labels.SelectorFromSet(labels.Set{v1alpha1.LabelName: v1alpha1.NameSheaf})}
	for _, kind := range []client.Object{&corev1.Pod{}, &corev1.PersistentVolumeClaim{}} {
		byObject[kind] = named
	}
	resync := 10 * time.Hour
	// If the leader's node fails, another operator takes over within 12 to 15 s. With the Kubernetes defaults, it would
	// take 15 to 18 s.
	lease, renew, retry := 12*time.Second, 8*time.Second, 2*time.Second
	cached := cache.Options{ByObject: byObject, SyncPeriod: &resync, DefaultTransform: step.CacheTransform()}
	if len(o.namespaces) > 0 {
		cached.DefaultNamespaces = map[string]cache.Config{}
		for _, n := range o.namespaces {
			cached.DefaultNamespaces[n] = cache.Config{}
		}
	}
	return ctrl.Options{
		Scheme: scheme(), Cache: cached,
		Metrics:                       server.Options{BindAddress: "0"}, // off, because addServers serves the metrics
		LeaderElection:                o.leaderElect,
		LeaderElectionID:              "sheaf-operator.sheaf.dev",
		LeaderElectionNamespace:       o.leaderNamespace,
		LeaderElectionReleaseOnCancel: true,
		LeaseDuration:                 &lease,
		RenewDeadline:                 &renew,
		RetryPeriod:                   &retry,
		Client: client.Options{Cache: &client.CacheOptions{DisableFor: []client.Object{
			&corev1.Secret{}, &corev1.ConfigMap{}, &corev1.Event{}}}},
	}
}
