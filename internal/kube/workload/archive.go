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

// credentialsDir is the folder in an archive's pod that contains the files of the bucket's credentials.
const credentialsDir = "/etc/sheaf/credentials"

// credentialsVolume is the name of the pod's volume that is mounted at credentialsDir.
const credentialsVolume = "credentials"

// annotationCredentials is set on the pod templates of archives. Its value is a hash of the credentials, so a change
// of the credentials changes the template and replaces the pod.
const annotationCredentials = "sheaf.dev/credentials"

// keysDir is the folder in an archive's pod that contains the encryption keys.
const keysDir = "/etc/sheaf/keys"

// keysVolume is the name of the pod's volume that is mounted at keysDir.
const keysVolume = "keys"

// annotationKeys is set on the pod templates of archives. Its value is a hash of the encryption keys, so a change of
// the keys changes the template and replaces the pod.
const annotationKeys = "sheaf.dev/encryption-keys"

// credentialVariables are the keys of a credentials Secret whose values become environment variables of the same name.
var credentialVariables = []string{
	"AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN",
	"AZURE_STORAGE_ACCOUNT", "AZURE_STORAGE_KEY", "AZURE_STORAGE_SAS_TOKEN",
}

// credentialFiles are the keys of a credentials Secret whose values become files. Each key is listed with the
// environment variable that names its file.
var credentialFiles = []struct{ key, variable string }{
	{"ca.crt", "AWS_CA_BUNDLE"},
	{"credentials.json", "GOOGLE_APPLICATION_CREDENTIALS"},
}

// CredentialKeys returns the keys of a credentials Secret that an archive's pod uses, in a fixed order.
func CredentialKeys(data map[string][]byte) (keys []string) {
	for _, key := range credentialVariables {
		if len(data[key]) > 0 {
			keys = append(keys, key)
		}
	}
	for _, file := range credentialFiles {
		if len(data[file.key]) > 0 {
			keys = append(keys, file.key)
		}
	}
	return keys
}

// ArchiveInput holds the input of ArchiveDeployment for one archive.
type ArchiveInput struct {
	Store   *v1alpha1.RecordStore // its status.storeUID must be set
	Archive *v1alpha1.RecordArchive
	// Image is the pod's image, unless the archive names a different image.
	Image string
	// Credentials are those keys of the Secret in spec.credentialsSecretRef that the pod uses.
	Credentials []string
	// CredentialsHash is a hash of the values of these keys.
	CredentialsHash string
	// KeysHash is a hash of the encryption keys in the Secret of spec.encryption; empty if the archive has no keys.
	KeysHash string
}

// ArchiveImage returns the image of an archive's pod, or "" if neither the archive nor the operator specifies one.
func ArchiveImage(archive *v1alpha1.RecordArchive, fallback string) string {
	return cmp.Or(archive.Spec.Image, fallback)
}

// ArchiveDeployment returns the Deployment of the one pod that archives a store.
//
// The pod does not need a StatefulSet, because it has no volume and nothing depends on its name. Besides, a
// StatefulSet would not replace a pod on a node that is down. It does no harm if two pods run at the same time:
// archivers only create objects, so the second pod takes over and the first one stops. During updates, the strategy
// Recreate keeps two pods from running at the same time.
func ArchiveDeployment(in ArchiveInput) *appsv1.Deployment {
	store, spec := in.Store, &in.Archive.Spec
	labels := Labels(store.Name, ContainerArchive)
	selector := &metav1.LabelSelector{MatchLabels: Selector(store.Name, ContainerArchive)}
	args := []string{
		"run", spec.URL, "--server=" + GatewayHost(store), "--name=" + Placement(store.Namespace, store.Name), "--stay",
		fmt.Sprintf("--http=:%d", PortArchiveHTTP), "--log-format=json",
	}
	if spec.Interval != nil {
		args = append(args, "--interval="+spec.Interval.Duration.String())
	}
	args = append(args, retentionArgs(&spec.ArchiveRetention)...)
	pod := podOf(store, ContainerArchive, ArchiveImage(in.Archive, in.Image), slices.Concat(args, TLSArgs(store)))
	pod.ServiceAccountName = cmp.Or(spec.ServiceAccountName, "default")
	pod.Tolerations = leavesSoon(spec.Scheduling)
	container := &pod.Containers[0]
	container.Ports = []corev1.ContainerPort{containerPort("http", PortArchiveHTTP)}
	container.Resources = resources(spec.Resources, "50m", "256Mi")
	container.ReadinessProbe = httpProbe("/readyz", 10, 2)
	mountTLS(store, ArchiveTLS(store.Name), &pod, container)
	mountPoints(store, &pod, container)
	template := corev1.PodTemplateSpec{ObjectMeta: metav1.ObjectMeta{Labels: labels}, Spec: pod}
	if spec.CredentialsSecretRef != nil {
		giveCredentials(&template, spec.CredentialsSecretRef.Name, in.Credentials, in.CredentialsHash)
	}
	giveKeys(&template, spec.Encryption, in.KeysHash)
	customize(&template, &spec.PodOptions, selector.MatchLabels)
	return &appsv1.Deployment{
		ObjectMeta: metav1.ObjectMeta{Namespace: store.Namespace, Name: Archive(store.Name), Labels: labels},
		Spec: appsv1.DeploymentSpec{
			Replicas: new(int32(1)),
			Selector: selector,
			Strategy: appsv1.DeploymentStrategy{Type: appsv1.RecreateDeploymentStrategyType},
			Template: template,
		},
	}
}

// retentionArgs returns the arguments that say which points an archiver makes, and what it deletes.
func retentionArgs(r *v1alpha1.ArchiveRetention) (args []string) {
	if r.Points != nil {
		args = append(args, "--points-schedule="+r.Points.Schedule)
	}
	if r.Prune != v1alpha1.PruneDelete {
		return args
	}
	args = append(args, "--prune")
	if r.Keep == nil {
		return args
	}
	if r.Keep.Window != nil {
		args = append(args, "--keep-window="+r.Keep.Window.Duration.String())
	}
	if r.Keep.Points > 0 {
		args = append(args, fmt.Sprintf("--keep-points=%d", r.Keep.Points))
	}
	return args
}

// giveCredentials gives a pod the credentials of the bucket as environment variables and files. The argument keys lists
// those keys of the Secret that the pod uses, and hash identifies their values.
func giveCredentials(template *corev1.PodTemplateSpec, secret string, keys []string, hash string) {
	from := corev1.LocalObjectReference{Name: secret}
	container := &template.Spec.Containers[0]
	annotate(template, annotationCredentials, hash)
	for _, key := range credentialVariables {
		if slices.Contains(keys, key) {
			container.Env = append(container.Env, corev1.EnvVar{Name: key, ValueFrom: &corev1.EnvVarSource{
				SecretKeyRef: &corev1.SecretKeySelector{LocalObjectReference: from, Key: key}}})
		}
	}
	var items []corev1.KeyToPath
	for _, file := range credentialFiles {
		if slices.Contains(keys, file.key) {
			items = append(items, corev1.KeyToPath{Key: file.key, Path: file.key})
			container.Env = append(container.Env, corev1.EnvVar{Name: file.variable, Value: credentialsDir + "/" + file.key})
		}
	}
	if len(items) == 0 {
		return
	}
	template.Spec.Volumes = append(template.Spec.Volumes, corev1.Volume{Name: credentialsVolume,
		VolumeSource: corev1.VolumeSource{Secret: &corev1.SecretVolumeSource{SecretName: from.Name, Items: items,
			DefaultMode: new(int32(0o440))}}})
	container.VolumeMounts = append(container.VolumeMounts, corev1.VolumeMount{Name: credentialsVolume,
		MountPath: credentialsDir, ReadOnly: true})
}

// giveKeys gives a pod the encryption keys of an archive as a folder of files. It does nothing if encryption is nil.
// The hash identifies the keys.
func giveKeys(template *corev1.PodTemplateSpec, encryption *v1alpha1.ArchiveEncryption, hash string) {
	if encryption == nil {
		return
	}
	annotate(template, annotationKeys, hash)
	template.Spec.Volumes = append(template.Spec.Volumes, corev1.Volume{Name: keysVolume,
		VolumeSource: corev1.VolumeSource{Secret: &corev1.SecretVolumeSource{SecretName: encryption.SecretRef.Name,
			DefaultMode: new(int32(0o440))}}})
	container := &template.Spec.Containers[0]
	container.Args = append(container.Args, "--encryption-keys="+keysDir)
	container.VolumeMounts = append(container.VolumeMounts, corev1.VolumeMount{Name: keysVolume, MountPath: keysDir,
		ReadOnly: true})
}

func annotate(template *corev1.PodTemplateSpec, key, value string) {
	if template.Annotations == nil {
		template.Annotations = map[string]string{}
	}
	template.Annotations[key] = value
}
