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
	"sheaf.dev/sheaf/internal/base/parallel"
	"sheaf.dev/sheaf/internal/kube/workload"
	"sheaf.dev/sheaf/internal/security/certs"
)

// Limits for asking processes.
const (
	askTime = 3 * time.Second
	// restTime is the time limit while nothing changes. A process on a node that is down does not answer, so this limit
	// can delay the status.
	restTime  = 500 * time.Millisecond
	askAtOnce = 32
)

// TransportClient asks processes for their certificates. internal/operator implements it.
type TransportClient interface {
	// Transport asks the process whose HTTP port is at host:port. Every error means that the process gave no report.
	Transport(ctx context.Context, address string) (certs.Report, error)
}

// Answer is the answer of one process.
type Answer struct {
	Pod    *corev1.Pod
	Secret string // the Secret with the process's certificate
	Report certs.Report
	Err    error // nil if the process answered
}

// Ask asks the running processes of a store, and returns their answers in the order of their pods. The argument rests
// is true if no change is in progress. A shorter timeout then limits the time lost on processes that do not answer.
func Ask(ctx context.Context, asker TransportClient, pods []corev1.Pod, rests bool) []Answer {
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

// Running returns a text that identifies the running processes. It changes when a process is replaced or restarted.
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

// processOf returns the Secret and the HTTP port of the process in a pod. The port is 0 if the process is not part of
// a store.
func processOf(pod *corev1.Pod) (secret string, port int) {
	store := pod.Labels[v1alpha1.LabelStore]
	switch pod.Labels[v1alpha1.LabelComponent] {
	case workload.ContainerGateway:
		return workload.GatewayTLS(store), workload.PortGatewayHTTP
	case workload.ContainerEtcd:
		return workload.EtcdTLS(store), workload.PortEtcdHTTP
	case workload.ContainerArchive:
		return workload.ArchiveTLS(store), workload.PortArchiveHTTP
	case workload.ContainerRestore:
		return workload.RestoreTLS(store), workload.PortRestoreHTTP
	case workload.ContainerShard:
		n, err := strconv.ParseInt(pod.Labels[v1alpha1.LabelShard], 10, 32)
		if err != nil {
			return "", 0
		}
		return workload.ShardTLS(workload.Shard(pod.Labels[v1alpha1.LabelPool], int32(n))), workload.PortShardHTTP
	}
	return "", 0
}

// runs reports whether the process in a pod may already have read its files. A process that is about to end does not
// count.
func runs(pod *corev1.Pod) bool {
	return pod.DeletionTimestamp == nil && pod.Status.PodIP != "" &&
		slices.ContainsFunc(pod.Status.ContainerStatuses, func(c corev1.ContainerStatus) bool {
			return c.State.Running != nil
		})
}

// NotYetUsed describes the files and settings in the status that the process does not use yet. The result is empty if
// the process uses all of them.
func (a *Answer) NotYetUsed(status *v1alpha1.TLSStatus) string {
	// Etcd accepts no callers, so it need not trust their authorities.
	etcd := a.Pod.Labels[v1alpha1.LabelComponent] == workload.ContainerEtcd
	switch {
	case a.Err != nil:
		return fmt.Sprintf("it does not tell of its certificates: %v", a.Err)
	case v1alpha1.TLSTransport(a.Report.Mode) != status.Transport:
		return fmt.Sprintf("it uses transport %q yet", a.Report.Mode)
	case a.Report.Bundle != status.Bundle, !etcd && a.Report.ClientBundle != status.ClientBundle:
		return "it trusts the authorities of before yet"
	}
	return ""
}
