package recordstore

import (
	"context"
	"fmt"
	"net"
	"strconv"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"sheaf.dev/sheaf/api/v1alpha1"
	"sheaf.dev/sheaf/controllers/fleet"
	"sheaf.dev/sheaf/controllers/step"
	"sheaf.dev/sheaf/controllers/trust"
	"sheaf.dev/sheaf/internal/kube/workload"
	"sheaf.dev/sheaf/internal/status/archiving"
)

// Sources asks the sources of restores. internal/operator implements it.
type Sources interface {
	// SourceReport asks the source whose HTTP port is at host:port for its report. Any error means that the source gave no
	// report.
	SourceReport(ctx context.Context, address string) (*archiving.SourceReport, error)
}

// askSourceTime is how long the operator waits for the report of a source.
const askSourceTime = 3 * time.Second

// restoring runs the source from which a store is restored.
type restoring struct {
	*writer
	seen    *observed
	live    client.Reader
	sources Sources
	trust   *trust.Keeper // nil if the operator creates no certificates
	image   string        // image of sheaf-archive; empty if the operator has none
}

// run creates the source, and asks it what it serves. It does nothing if the store is not restored, or is restored
// already.
func (r restoring) run(ctx context.Context) step.Outcome {
	seen := r.seen
	if !isRestoring(r.store) {
		return step.Complete()
	}
	seen.restore.asked = true
	seen.restore.out = r.apply(ctx)
	if seen.restore.out.Err() != nil {
		return seen.restore.out
	}
	if err := r.ask(ctx); err != nil {
		return step.Retry(err)
	}
	return step.Retry(r.commitTime(ctx))
}

// apply applies the Service and the Deployment of the source.
func (r restoring) apply(ctx context.Context) step.Outcome {
	if r.image == "" {
		return step.Fail(reasonNoImage, "the operator has no image of sheaf-archive: set the operator's --archive-image "+
			"(value archive.image of the chart sheaf-operator)").Again(step.PauseShort)
	}
	secret, out := fleet.ReadBucketSecret(ctx, r.live, r.store.Namespace, r.store.Spec.Restore.CredentialsSecretRef,
		"spec.restore.credentialsSecretRef")
	if !out.IsComplete() {
		return out
	}
	keysHash, out := fleet.ReadKeysSecret(ctx, r.live, r.store.Namespace, r.store.Spec.Restore.Encryption,
		"spec.restore.encryption")
	if !out.IsComplete() {
		return out
	}
	r.seen.restore.pinned = workload.RestorePoint(r.store) != nil
	return r.writer.apply(ctx, workload.RestoreService(r.store), workload.RestoreDeployment(workload.RestoreInput{
		Store: r.store, Image: r.image, Credentials: secret.Keys, CredentialsHash: secret.Hash, KeysHash: keysHash}))
}

// ask reads the pod of the source, and asks it for its report.
func (r restoring) ask(ctx context.Context) error {
	store, found := r.store, &r.seen.restore
	deployment := &appsv1.Deployment{}
	key := client.ObjectKey{Namespace: store.Namespace, Name: workload.Restore(store.Name)}
	there, err := step.Read(ctx, r, "Deployment", key, deployment)
	if err != nil {
		return err
	}
	if there {
		found.deployment = deployment
	}
	var pods corev1.PodList
	if err := r.List(ctx, &pods, client.InNamespace(store.Namespace),
		client.MatchingLabels(workload.Selector(store.Name, workload.ContainerRestore))); err != nil {
		return fmt.Errorf("list the pods of the restore of store %s: %w", client.ObjectKeyFromObject(store), err)
	}
	if found.pod = fleet.NewestPod(pods.Items); !fleet.Runs(found.pod) || r.sources == nil {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, askSourceTime)
	defer cancel()
	found.report, found.silent = r.sources.SourceReport(ctx, net.JoinHostPort(found.pod.Status.PodIP,
		strconv.Itoa(workload.PortRestoreHTTP)))
	if p := found.report; p != nil && p.Store != store.Status.StoreUID { // another pod now has this address
		found.report, found.silent = nil, fmt.Errorf("it restores into store %s", p.Store)
	}
	return nil
}

// commitTime records the time as of which the store is restored, before the restore begins. A source that starts again
// later must serve the same state, and the end of the archive may have moved until then.
func (r restoring) commitTime(ctx context.Context) error {
	report := r.seen.restore.report
	if report == nil || report.Time == nil || restoreTime(r.store) != "" {
		return nil
	}
	at := report.Time.UTC().Format(time.RFC3339Nano)
	err := r.commit(ctx, func(s *v1alpha1.RecordStoreStatus) { s.Restore = &v1alpha1.RestoreStatus{Time: at} })
	if err == nil { // if the CRD is of an earlier version, the API server has dropped the field
		r.store.Status.Restore = r.written.Restore.DeepCopy()
	}
	return err
}

// settle removes the source once etcd says that no group waits any more. If groups wait again, because etcd was set
// back, the condition that settle's caller writes brings the source back in the next reconcile.
func (r restoring) settle(ctx context.Context) step.Outcome {
	if r.store.Spec.Restore == nil || r.seen.restoreState() != restoreDone {
		return step.Complete()
	}
	deployment := &appsv1.Deployment{}
	key := client.ObjectKey{Namespace: r.store.Namespace, Name: workload.Restore(r.store.Name)}
	there, err := step.Read(ctx, r, "Deployment", key, deployment)
	if err != nil {
		return step.Retry(err)
	}
	// The Deployment is deleted last. So while it exists, the other objects may exist, too.
	if !there || !metav1.IsControlledBy(deployment, r.store) || deployment.DeletionTimestamp != nil {
		return step.Complete()
	}
	if r.trust != nil && workload.HasTLS(r.store) {
		of, err := trust.StoreIdentity(r.store)
		if err == nil {
			err = r.trust.Remove(ctx, r.store, trust.RestoreLeaf(of, r.store))
		}
		if err != nil {
			return step.Retry(err)
		}
	}
	service := &corev1.Service{}
	there, err = step.Read(ctx, r, "Service", key, service)
	if err == nil && there && metav1.IsControlledBy(service, r.store) {
		err = r.Delete(ctx, service, client.Preconditions{UID: &service.UID})
	}
	if client.IgnoreNotFound(err) != nil {
		return step.Retry(fmt.Errorf("delete Service %s: %w", key, err))
	}
	err = r.Delete(ctx, deployment, client.Preconditions{UID: &deployment.UID},
		client.PropagationPolicy(metav1.DeletePropagationBackground))
	if client.IgnoreNotFound(err) != nil {
		return step.Retry(fmt.Errorf("delete Deployment %s: %w", key, err))
	}
	r.tell(ctx, "SourceDeleted", "Delete", deployment, "deleted Deployment %s, as every group of the archive is restored",
		key)
	return step.Complete()
}
