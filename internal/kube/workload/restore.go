package workload

import (
	"cmp"
	"fmt"
	"slices"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"sheaf.dev/sheaf/api/v1alpha1"
)

// RestoreInput holds the input of RestoreDeployment.
type RestoreInput struct {
	Store *v1alpha1.RecordStore // its spec.restore and status.storeUID must be set
	Image string                // image of sheaf-archive
	// Credentials are those keys of the Secret in spec.restore.credentialsSecretRef that the pod uses.
	Credentials []string
	// CredentialsHash is a hash of the values of these keys.
	CredentialsHash string
	// KeysHash is a hash of the encryption keys in the Secret of spec.restore.encryption; empty if there are none.
	KeysHash string
}

// RestorePoint returns the flag that says as of when the source serves the archive. A source that starts again must
// serve the same state as before. So if the spec names neither a time nor a point, the source gets the time that the
// status records, and takes groups whose archive ends earlier as they were last archived. The result is nil before the
// status records the time.
func RestorePoint(store *v1alpha1.RecordStore) []string {
	spec := store.Spec.Restore
	switch {
	case spec.Point != "":
		return []string{"--point=" + spec.Point}
	case spec.Time != "":
		return []string{"--time=" + spec.Time}
	case store.Status.Restore != nil && store.Status.Restore.Time != "":
		return []string{"--up-to=" + store.Status.Restore.Time}
	}
	return nil
}

// RestoreDeployment returns the Deployment of the one pod that serves the groups of an archive to a store that is
// restored from it. The pod has no volume, so a Deployment suffices, which replaces it if its node is down. During
// updates, the strategy Recreate keeps two pods from running at the same time. Two of them would do no harm, because
// they serve the same bytes.
func RestoreDeployment(in RestoreInput) *appsv1.Deployment {
	store, spec := in.Store, in.Store.Spec.Restore
	labels := Labels(store.Name, ContainerRestore)
	selector := &metav1.LabelSelector{MatchLabels: Selector(store.Name, ContainerRestore)}
	args := make([]string, 0, 16+len(spec.Groups))
	args = append(args,
		"source", spec.URL, "--store="+spec.StoreUID, "--into="+store.Status.StoreUID,
		fmt.Sprintf("--listen=:%d", PortRestore), fmt.Sprintf("--http=:%d", PortRestoreHTTP))
	for _, group := range spec.Groups {
		args = append(args, "--group="+group)
	}
	pod := podOf(store, ContainerRestore, in.Image, slices.Concat(args, RestorePoint(store), TLSArgs(store)))
	pod.ServiceAccountName = cmp.Or(spec.ServiceAccountName, "default")
	pod.Tolerations = leavesSoon(nil)
	container := &pod.Containers[0]
	container.Ports = []corev1.ContainerPort{containerPort("grpc", PortRestore), containerPort("http", PortRestoreHTTP)}
	container.Resources = resources(nil, "100m", "512Mi")
	container.ReadinessProbe = httpProbe("/readyz", 5, 2)
	mountTLS(store, RestoreTLS(store.Name), &pod, container)
	template := corev1.PodTemplateSpec{ObjectMeta: metav1.ObjectMeta{Labels: labels}, Spec: pod}
	if spec.CredentialsSecretRef != nil {
		giveCredentials(&template, spec.CredentialsSecretRef.Name, in.Credentials, in.CredentialsHash)
	}
	giveKeys(&template, spec.Encryption, in.KeysHash)
	customize(&template, &v1alpha1.PodOptions{}, selector.MatchLabels)
	return &appsv1.Deployment{
		ObjectMeta: metav1.ObjectMeta{Namespace: store.Namespace, Name: Restore(store.Name), Labels: labels},
		Spec: appsv1.DeploymentSpec{
			Replicas: new(int32(1)),
			Selector: selector,
			Strategy: appsv1.DeploymentStrategy{Type: appsv1.RecreateDeploymentStrategyType},
			Template: template,
		},
	}
}

// RestoreService returns the Service through which gateways and shards reach the source of a restore.
func RestoreService(store *v1alpha1.RecordStore) *corev1.Service {
	return &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Namespace: store.Namespace, Name: Restore(store.Name),
			Labels: Labels(store.Name, ContainerRestore)},
		Spec: corev1.ServiceSpec{Selector: Selector(store.Name, ContainerRestore),
			Ports: []corev1.ServicePort{servicePort("grpc", PortRestore)}},
	}
}
