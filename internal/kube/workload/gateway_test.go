package workload

import (
	"slices"
	"testing"

	"sheaf.dev/sheaf/api/v1alpha1"
)

// Records over HTTP are a flag of the gateways, a port of their pods and a port of their Service. Without the field,
// there is none of them.
func TestRecordsOverHTTPAreAnOption(t *testing.T) {
	for _, on := range []bool{false, true} {
		store := shardInput().Store
		store.Spec.Gateway.RecordsHTTP = on
		container := GatewayDeployment(store, "sheaf:1", EtcdAccessOf(store, nil)).Spec.Template.Spec.Containers[0]
		ports := GatewayService(store).Spec.Ports
		named := false
		for _, p := range container.Ports {
			named = named || p.Name == "records" && p.ContainerPort == 7602
		}
		if slices.Contains(container.Args, "--records-http=:7602") != on || named != on || (len(ports) == 2) != on {
			t.Errorf("recordsHTTP %v: %v, %+v, %+v", on, container.Args, container.Ports, ports)
		}
		if !on {
			continue
		}
		for transport, want := range map[v1alpha1.TLSTransport]string{v1alpha1.TransportRequired: "https",
			v1alpha1.TransportPlaintext: "http"} {
			store.Status.TLS = &v1alpha1.TLSStatus{Transport: transport}
			p := GatewayService(store).Spec.Ports[1]
			if p.Port != 7602 || p.TargetPort.StrVal != "records" || *p.AppProtocol != want {
				t.Errorf("with transport %s the port is %+v", transport, p)
			}
		}
	}
}
