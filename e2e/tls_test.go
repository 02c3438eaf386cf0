//go:build e2e

package e2e

import (
	"context"
	"crypto/tls"
	"encoding/json"
	"fmt"
	"net"
	"slices"
	"strings"
	"sync"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/status"

	"sheaf.dev/sheaf/api/v1alpha1"
	"sheaf.dev/sheaf/client/recordv1"
)

// A store changes to TLS, gets new authorities, and changes back, while callers put and get. No call fails, and no
// shard restarts. While TLS is required, every port refuses a caller without a certificate.
var _ = Describe("TLS", Ordered, SpecPriority(1), func() {
	var s *space
	var l *load
	var shards map[string]pod

	BeforeAll(func() {
		s = newSpace("tls")
		s.makeStore(s.threeDisks(), "tls: {mode: Disabled, clients: [reader]}")
		kubectl("patch", "recordstore", "q", "-n", s.name, "--type=merge", "-p", `{"spec": {"gateway": {"replicas": 2}}}`)
		class := s.name + "-shards"
		s.diskSet(class, "ext4", diskSpec{"n1", s.disk("n1", "tls-a", "256M"), "240Mi"},
			diskSpec{"n2", s.disk("n2", "tls-b", "256M"), "240Mi"})
		s.makePool("main", class, 2)
		s.awaitStore("q", 3*time.Minute)
		s.client()
		l = s.newLoad()
		shards = s.pods("sheaf.dev/pool=main")
		Expect(shards).To(HaveLen(2))
	})

	// change patches the store under load, and waits until all of its processes have reported the new state.
	change := func(patch string, timeout time.Duration, there func(*v1alpha1.TLSStatus) bool) {
		GinkgoHelper()
		l.start()
		l.awaitCalls(100)
		kubectl("patch", "recordstore", "q", "-n", s.name, "--type=merge", "-p", patch)
		var last v1alpha1.TLSStatus
		Eventually(func(g Gomega) {
			store := s.storeQ(g)
			now := *store.Status.TLS
			if now.Phase != last.Phase || now.Transport != last.Transport {
				GinkgoWriter.Printf("%s %s %s: %v\n", time.Now().Format(time.TimeOnly), now.Phase, now.Transport,
					condition(store.Status.Conditions, v1alpha1.ConditionCertificates))
			}
			last = now
			g.Expect(now.Phase == v1alpha1.TLSReady && now.Reported == now.Processes && there(&now)).To(BeTrue(), "%+v: %v", now,
				condition(store.Status.Conditions, v1alpha1.ConditionCertificates))
		}).WithTimeout(timeout).Should(Succeed())
		l.finish(100)
		for name, p := range s.pods("sheaf.dev/pool=main") {
			Expect(p.Metadata.UID).To(Equal(shards[name].Metadata.UID), "%s was made anew", name)
			Expect(p.Status.ContainerStatuses[0].RestartCount).To(Equal(shards[name].Status.ContainerStatuses[0].RestartCount),
				"%s has restarted", name)
		}
	}
	speaks := func(transport v1alpha1.TLSTransport) func(*v1alpha1.TLSStatus) bool {
		return func(s *v1alpha1.TLSStatus) bool { return s.Transport == transport }
	}

	It("is turned on under load", smoke, func() {
		change(`{"spec": {"tls": {"mode": "Required"}}}`, 8*time.Minute, speaks(v1alpha1.TransportRequired))
		s.put("q", 1, "by TLS")
	})

	It("refuses whoever has no certificate of the store", smoke, func() {
		server := fmt.Sprintf("q-gateway.%s.svc:7600", s.name)
		o := try(time.Minute, "", "kubectl", "exec", "-n", s.name, "client", "--", "/sheaf", "get", "1", "--timeout=5s",
			"--server", server)
		Expect(o.err).To(HaveOccurred(), "in plaintext: %v", o)
		o = try(time.Minute, "", "kubectl", "exec", "-n", s.name, "client", "--", "/sheaf", "get", "1", "--timeout=5s",
			"--server", server, "--ca", "/tls/q/ca.crt")
		Expect(o.err).To(HaveOccurred(), "without a certificate: %v", o)
		Expect(s.get("q", 1)).To(Equal("by TLS"))
		kubectl("sheaf", "status", "q", "-n", s.name)
	})

	It("lets in whom a grant names, and nobody else", func() { s.checkGrantOfPod() })

	It("leaves no port open for plaintext but HTTP", func() {
		var list struct {
			Items []struct {
				Metadata struct{ Name string }
				Status   struct{ PodIP string }
			}
		}
		Expect(get(&list, "pods", "-n", s.name, "-l", "sheaf.dev/store=q")).To(Succeed())
		Expect(len(list.Items)).To(BeNumerically(">=", 5))
		byTLS := 0
		for _, p := range list.Items {
			for _, port := range openPorts(p.Status.PodIP) {
				if slices.Contains([]int{7601, 7611, 2381}, port) { // ports for health, metrics and status (docs/security.md)
					continue
				}
				Expect([]int{7600, 7610, 2379, 2382}).To(ContainElement(port), "%s listens on port %d", p.Metadata.Name, port)
				checkAnonymousRefused(p.Metadata.Name, net.JoinHostPort(p.Status.PodIP, fmt.Sprint(port)),
					port == 7600 || port == 7610)
				byTLS++
			}
		}
		Expect(byTLS).To(BeNumerically(">=", len(list.Items)), "ports with TLS were swept")
	})

	It("tells that the authorities are missing, and takes them back", func() {
		var backup struct {
			Metadata struct{ Labels map[string]string }
			Data     map[string][]byte
		}
		Expect(get(&backup, "secret", "q-authority", "-n", s.name)).To(Succeed())
		alerts := s.watchAlerts()
		kubectl("delete", "secret", "q-authority", "-n", s.name)
		alerts.await(alertCertificates, firing)
		Expect(s.get("q", 1)).To(Equal("by TLS"), "what there is serves on")
		object := map[string]any{"apiVersion": "v1", "kind": "Secret",
			"metadata": map[string]any{"name": "q-authority", "namespace": s.name, "labels": backup.Metadata.Labels},
			"data":     backup.Data}
		yaml, err := json.Marshal(object)
		Expect(err).NotTo(HaveOccurred())
		apply(string(yaml))
		alerts.await(alertCertificates, gone)
	})

	It("changes its authorities under load", func() {
		before := s.storeQ(Default)
		change(`{"spec": {"tls": {"rotate": "e2e"}}}`, 20*time.Minute, func(s *v1alpha1.TLSStatus) bool {
			return s.Rotated == "e2e"
		})
		after := s.storeQ(Default)
		Expect(after.Status.TLS.Bundle).NotTo(Equal(before.Status.TLS.Bundle))
		Expect(s.get("q", 1)).To(Equal("by TLS"))
	})

	It("is turned off under load", func() {
		change(`{"spec": {"tls": {"mode": "Disabled"}}}`, 8*time.Minute, speaks(v1alpha1.TransportPlaintext))
		o := try(time.Minute, "", "kubectl", "exec", "-n", s.name, "client", "--", "/sheaf", "get", "1", "--server",
			fmt.Sprintf("q-gateway.%s.svc:7600", s.name))
		Expect(o.err).NotTo(HaveOccurred(), "in plaintext: %v", o)
	})
})

// openPorts returns all ports of a pod that accept connections.
func openPorts(ip string) (open []int) {
	GinkgoHelper()
	var mu sync.Mutex
	var wait sync.WaitGroup
	ports := make(chan int)
	dialer := net.Dialer{Timeout: 2 * time.Second}
	for range 128 {
		wait.Go(func() {
			for port := range ports {
				conn, err := dialer.DialContext(context.Background(), "tcp", net.JoinHostPort(ip, fmt.Sprint(port)))
				if err != nil {
					continue
				}
				_ = conn.Close()
				mu.Lock()
				open = append(open, port)
				mu.Unlock()
			}
		})
	}
	for port := 1; port < 1<<16; port++ {
		ports <- port
	}
	close(ports)
	wait.Wait()
	slices.Sort(open)
	Expect(open).NotTo(BeEmpty(), "this machine has to reach pods, such as %s, by their addresses", ip)
	return open
}

// checkAnonymousRefused fails if a port accepts a caller without a certificate. The only permitted response is a TLS
// alert. If takesTokens is true, the caller may connect, but its calls must fail as unauthenticated.
func checkAnonymousRefused(pod, address string, takesTokens bool) {
	GinkgoHelper()
	dialer := net.Dialer{Timeout: 30 * time.Second}
	plain, err := dialer.DialContext(context.Background(), "tcp", address)
	Expect(err).NotTo(HaveOccurred())
	defer plain.Close()
	_, err = plain.Write([]byte("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\x00\x00\x00\x04\x00\x00\x00\x00\x00"))
	Expect(err).NotTo(HaveOccurred())
	Expect(plain.SetReadDeadline(time.Now().Add(5 * time.Second))).To(Succeed())
	answer := make([]byte, 512)
	n, _ := plain.Read(answer)
	const alert = 21 // type of an alert record (RFC 8446, section 5.1)
	Expect(n == 0 || answer[0] == alert || strings.HasPrefix(string(answer[:n]), "HTTP/1.0 400")).
		To(BeTrue(), "%s at %s answers plaintext: %q", pod, address, answer[:n])

	if takesTokens { // a caller without a certificate may connect to this port, but is anonymous until it sends a token
		stranger := credentials.NewTLS(&tls.Config{InsecureSkipVerify: true,
			MinVersion: tls.VersionTLS13}) //nolint:gosec // the server's certificate does not matter here
		conn, err := grpc.NewClient("passthrough:///"+address, grpc.WithTransportCredentials(stranger))
		Expect(err).NotTo(HaveOccurred())
		defer conn.Close()
		ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
		defer cancel()
		_, err = recordv1.NewRecordServiceClient(conn).Get(ctx, &recordv1.GetRequest{Key: &recordv1.RecordKey{Id: 1}})
		Expect(status.Code(err)).To(Equal(codes.Unauthenticated), "%s at %s: %v", pod, address, err)
		return
	}
	secure, err := dialer.DialContext(context.Background(), "tcp", address)
	Expect(err).NotTo(HaveOccurred())
	defer secure.Close()
	conn := tls.Client(secure, &tls.Config{InsecureSkipVerify: true, NextProtos: []string{"h2"},
		MinVersion: tls.VersionTLS12}) //nolint:gosec // the server's certificate does not matter here
	Expect(conn.SetDeadline(time.Now().Add(30 * time.Second))).To(Succeed())
	if err = conn.Handshake(); err == nil { // in TLS 1.3, the server's refusal comes after the client's handshake
		_, err = conn.Read(answer)
	}
	Expect(err).To(MatchError(ContainSubstring("certificate required")), "%s at %s", pod, address)
}
