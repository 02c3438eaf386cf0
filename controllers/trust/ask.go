package trust

import (
	"context"
	"crypto/sha256"
	"fmt"
	"net"
	"slices"
	"strconv"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"

	"sheaf.dev/sheaf/api/v1alpha1"
	"sheaf.dev/sheaf/controllers/fleet"
	"sheaf.dev/sheaf/internal/base/parallel"
	"sheaf.dev/sheaf/internal/kube/workload"
)

// Bounds of asking processes.
const (
	askTime = 3 * time.Second
	// where nothing changes: a node that is away answers nothing, and the status waits for that
	restTime  = 500 * time.Millisecond
	askAtOnce = 32
)

// Answer is what one process has said.
type Answer struct {
	Pod    *corev1.Pod
	Secret string // with its certificate
	Report fleet.TransportReport
	Err    error // it has said nothing
}

// Ask asks the processes of a store that run, by their pods, in the order of these. rests says that nothing changes: no
// time is lost then over those that do not answer.
func Ask(ctx context.Context, asker fleet.TransportAsker, pods []corev1.Pod, rests bool) []Answer {
	patience := askTime
	if rests {
		patience = restTime
	}
	var all []Answer
	var ports []int
	for i := range pods {
		secret, port := processOf(&pods[i])
		if port != 0 && runs(&pods[i]) {
			all, ports = append(all, Answer{Pod: &pods[i], Secret: secret}), append(ports, port)
		}
	}
	parallel.Times(len(all), askAtOnce, func(i int) {
		ctx, cancel := context.WithTimeout(ctx, patience)
		defer cancel()
		all[i].Report, all[i].Err = asker.Transport(ctx, net.JoinHostPort(all[i].Pod.Status.PodIP, strconv.Itoa(ports[i])))
	})
	return all
}

// Running names the processes that run: another one, or one that has started again, is told apart.
func Running(pods []corev1.Pod) string {
	var names []string
	for i := range pods {
		if _, port := processOf(&pods[i]); port != 0 && runs(&pods[i]) {
			restarts := int32(0)
			for _, c := range pods[i].Status.ContainerStatuses {
				restarts += c.RestartCount
			}
			names = append(names, fmt.Sprintf("%s %d", pods[i].UID, restarts))
		}
	}
	slices.Sort(names)
	sum := sha256.Sum256([]byte(strings.Join(names, "\n")))
	return string(sum[:])
}

// processOf gives the Secret and the HTTP port of the process in a pod; 0: it is none of a store.
func processOf(pod *corev1.Pod) (secret string, port int) {
	store := pod.Labels[v1alpha1.LabelStore]
	switch pod.Labels[v1alpha1.LabelComponent] {
	case workload.ContainerGateway:
		return workload.GatewayTLS(store), workload.PortGatewayHTTP
	case workload.ContainerEtcd:
		return workload.EtcdTLS(store), workload.PortEtcdHTTP
	case workload.ContainerShard:
		n, err := strconv.ParseInt(pod.Labels[v1alpha1.LabelShard], 10, 32)
		if err != nil {
			return "", 0
		}
		return workload.ShardTLS(workload.Shard(pod.Labels[v1alpha1.LabelPool], int32(n))), workload.PortShardHTTP
	}
	return "", 0
}

// runs tells whether a pod has a process that may have read its files already. One that is about to end needs nothing
// any more.
func runs(pod *corev1.Pod) bool {
	if pod.DeletionTimestamp != nil || pod.Status.PodIP == "" {
		return false
	}
	for _, c := range pod.Status.ContainerStatuses {
		if c.State.Running != nil {
			return true
		}
	}
	return false
}

// Lacks says what a process lacks of what the status says that it was told; empty: nothing.
func (a *Answer) Lacks(status *v1alpha1.TLSStatus) string {
	etcd := a.Pod.Labels[v1alpha1.LabelComponent] == workload.ContainerEtcd // which knows no callers
	switch {
	case a.Err != nil:
		return fmt.Sprintf("it does not tell of its certificates: %v", a.Err)
	case a.Report.Mode != string(status.Transport):
		return fmt.Sprintf("it uses transport %q yet", a.Report.Mode)
	case a.Report.Bundle != status.Bundle, !etcd && a.Report.ClientBundle != status.ClientBundle:
		return "it trusts the authorities of before yet"
	}
	return ""
}
