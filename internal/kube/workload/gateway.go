package workload

import (
	"fmt"
	"maps"
	"slices"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"

	"sheaf.dev/sheaf/api/v1alpha1"
)

// GatewayReplicas returns the wanted number of gateways.
func GatewayReplicas(store *v1alpha1.RecordStore) int32 {
	if r := store.Spec.Gateway.Replicas; r != nil {
		return *r
	}
	return 2
}

// GatewayHost returns host:port of the gateway's Service inside the cluster.
func GatewayHost(store *v1alpha1.RecordStore) string {
	return fmt.Sprintf("%s.%s.svc:%d", Gateway(store.Name), store.Namespace, PortGateway)
}

// GatewayService returns the Service that clients call.
func GatewayService(store *v1alpha1.RecordStore) *corev1.Service {
	service := &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: store.Namespace, Name: Gateway(store.Name), Labels: Labels(store.Name, ContainerGateway),
			Annotations: map[string]string{},
		},
		Spec: corev1.ServiceSpec{
			Type:     store.Spec.Gateway.ServiceType,
			Selector: Selector(store.Name, ContainerGateway),
			Ports: []corev1.ServicePort{{
				Name: "grpc", Port: PortGateway, TargetPort: intstr.FromString("grpc"), Protocol: corev1.ProtocolTCP,
				AppProtocol: new(gatewayProtocol(store)),
			}},
		},
	}
	if store.Spec.Gateway.RecordsHTTP {
		service.Spec.Ports = append(service.Spec.Ports, corev1.ServicePort{
			Name: portRecords, Port: PortRecordsHTTP, TargetPort: intstr.FromString(portRecords), Protocol: corev1.ProtocolTCP,
			AppProtocol: new(recordsProtocol(store)),
		})
	}
	maps.Copy(service.Annotations, store.Spec.Gateway.ServiceAnnotations)
	return service
}

// portRecords is the name of the port of records over HTTP.
const portRecords = "records"

// gatewayProtocol returns the protocol on the gateway's port, for load balancers.
func gatewayProtocol(store *v1alpha1.RecordStore) string {
	if requiresTLS(store) {
		return "https"
	}
	return "kubernetes.io/h2c"
}

// recordsProtocol returns the protocol on the port of records over HTTP.
func recordsProtocol(store *v1alpha1.RecordStore) string {
	if requiresTLS(store) {
		return "https"
	}
	return "http"
}

func requiresTLS(store *v1alpha1.RecordStore) bool {
	tls := store.Status.TLS
	return tls != nil && tls.Transport == v1alpha1.TransportRequired
}

// gatewayLeaveSeconds is how long a terminating gateway still accepts new connections. During that time the Service
// may still send new connections to it, because the proxy on each node learns late that the pod is terminating.
const gatewayLeaveSeconds = 5

// GatewayDeployment returns the Deployment of the gateways, which route calls to shards.
func GatewayDeployment(store *v1alpha1.RecordStore, image string, etcd EtcdAccess) *appsv1.Deployment {
	labels := Labels(store.Name, ContainerGateway)
	selector := &metav1.LabelSelector{MatchLabels: Selector(store.Name, ContainerGateway)}
	args := slices.Concat([]string{
		"gateway", fmt.Sprintf("--listen=:%d", PortGateway), fmt.Sprintf("--http=:%d", PortGatewayHTTP),
		"--store-uid=" + store.Status.StoreUID, "--planner=false", "--log-format=json",
	}, recordsArgs(store), TLSArgs(store), auditArgs(store), etcd.Args())
	pod := podOf(store, ContainerGateway, image, args)
	pod.TopologySpreadConstraints = []corev1.TopologySpreadConstraint{apart(selector.MatchLabels)}
	pod.Tolerations = leavesSoon(store.Spec.Gateway.Scheduling)
	pod.TerminationGracePeriodSeconds = new(int64(45))
	container := &pod.Containers[0]
	container.Env = tracingEnv(store)
	container.Ports = []corev1.ContainerPort{containerPort("grpc", PortGateway), containerPort("http", PortGatewayHTTP)}
	if store.Spec.Gateway.RecordsHTTP {
		container.Ports = append(container.Ports, containerPort(portRecords, PortRecordsHTTP))
	}
	container.Resources = resources(store.Spec.Gateway.Resources, "50m", "128Mi")
	container.Lifecycle = &corev1.Lifecycle{PreStop: &corev1.LifecycleHandler{Sleep: &corev1.SleepAction{
		Seconds: gatewayLeaveSeconds}}}
	container.ReadinessProbe = httpProbe("/readyz", 5, 2)
	etcd.mount(&pod, container)
	mountTLS(store, GatewayTLS(store.Name), &pod, container)
	template := corev1.PodTemplateSpec{ObjectMeta: metav1.ObjectMeta{Labels: labels}, Spec: pod}
	customize(&template, &store.Spec.Gateway.PodOptions, selector.MatchLabels)
	return &appsv1.Deployment{
		ObjectMeta: metav1.ObjectMeta{Namespace: store.Namespace, Name: Gateway(store.Name), Labels: labels},
		Spec: appsv1.DeploymentSpec{
			Replicas: new(GatewayReplicas(store)),
			Selector: selector,
			Strategy: appsv1.DeploymentStrategy{
				Type: appsv1.RollingUpdateDeploymentStrategyType,
				RollingUpdate: &appsv1.RollingUpdateDeployment{
					MaxUnavailable: new(intstr.FromInt32(0)), MaxSurge: new(intstr.FromInt32(1)),
				},
			},
			Template: template,
		},
	}
}

// recordsArgs returns the arguments for records over HTTP.
func recordsArgs(store *v1alpha1.RecordStore) []string {
	if !store.Spec.Gateway.RecordsHTTP {
		return nil
	}
	return []string{fmt.Sprintf("--records-http=:%d", PortRecordsHTTP)}
}

// resources returns the requested resources, or small requests without limits if none are requested.
func resources(asked *corev1.ResourceRequirements, cpu, memory string) corev1.ResourceRequirements {
	if asked != nil {
		return *asked.DeepCopy()
	}
	return corev1.ResourceRequirements{Requests: corev1.ResourceList{
		corev1.ResourceCPU: resource.MustParse(cpu), corev1.ResourceMemory: resource.MustParse(memory),
	}}
}
