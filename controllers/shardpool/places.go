package shardpool

import (
	"context"
	"net"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"sheaf.dev/sheaf/api/v1alpha1"
	"sheaf.dev/sheaf/client/recordv1"
	"sheaf.dev/sheaf/controllers/fleet"
	"sheaf.dev/sheaf/internal/kube/workload"
)

// places caches the placement of a store's groups, as recorded in etcd, during one reconcile. Not safe for concurrent
// use.
type places struct {
	register fleet.ShardRegister // if nil, only the reports of the shards are used
	store    *v1alpha1.RecordStore
	silent   map[string]bool // the shards whose disks did not answer

	view *fleet.Places // the first answer of etcd; nil if etcd has not been asked yet, or has not answered
	err  error
}

// known reports whether etcd can be queried at all. If it returns false, no other method may be called.
func (p *places) known() bool { return p.register != nil }

// look asks etcd once per reconcile, and returns the same answer when called again.
func (p *places) look(ctx context.Context) (*fleet.Places, error) {
	if p.view == nil && p.err == nil {
		p.view, p.err = p.lookAgain(ctx)
	}
	return p.view, p.err
}

// lookAgain asks etcd for its current state.
func (p *places) lookAgain(ctx context.Context) (*fleet.Places, error) {
	planned, err := p.register.Look(ctx, p.store)
	if err != nil {
		return nil, err
	}
	return &fleet.Places{Planned: planned, SilentDisks: p.silent}, nil
}

// empty asks the planner to move the groups of a shard to other shards.
func (p *places) empty(ctx context.Context, shard string) error {
	return p.register.Empty(ctx, p.store, shard)
}

// forget removes the entries of a shard that is permanently gone. The error names the groups that still refer to the
// shard.
func (p *places) forget(ctx context.Context, shard string) error {
	return p.register.Forget(ctx, p.store, shard)
}

// shardClient asks the shards of one store for their statuses.
type shardClient struct {
	shards fleet.ShardClient
	store  string // key of the store
	tls    bool   // the shards accept no plaintext
}

// ask asks the shard in a pod for its status, and waits up to describeTime.
func (a shardClient) ask(ctx context.Context, pod *corev1.Pod) (*recordv1.ShardStatus, error) {
	ctx, cancel := context.WithTimeout(ctx, describeTime)
	defer cancel()
	return a.shards.Describe(ctx, fleet.ShardAt{
		Store: a.store, Name: strings.TrimSuffix(pod.Name, "-0"), Address: net.JoinHostPort(pod.Status.PodIP,
			strconv.Itoa(workload.PortShard)), TLS: a.tls,
	})
}
