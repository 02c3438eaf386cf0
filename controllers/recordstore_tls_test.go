package controllers

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strings"
	"sync"
	"time"

	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"sheaf.dev/sheaf/api/v1alpha1"
	"sheaf.dev/sheaf/internal/kube/workload"
	"sheaf.dev/sheaf/internal/security/certs"
	"sheaf.dev/sheaf/internal/test/kubetest"
)

// deliveredFiles is the content of a pod's folder of certificates.
type deliveredFiles map[string][]byte

// simulatedTransports simulates how the processes in the pods of a simulated cluster use their certificates. The
// processes have the files that the kubelet has delivered, which are the current contents of the Secret and the
// ConfigMap unless a test delays a delivery. The simulation uses the code of the real processes (package certs).
type simulatedTransports struct {
	play *play
	mu   sync.Mutex
	has  map[types.UID]deliveredFiles // by pod
	now  func() time.Time
	held map[string]bool // pods that receive no new files
	// grants returns the version of the grant table that the process of a pod uses. If grants is nil, no process reports
	// a version.
	grants func(pod string) *int64
	// unknown returns, for each issuer, how many tokens with an unknown key a process has received. If unknown is nil,
	// there were none.
	unknown func() map[string]int64
}

// Transport implements trust.TransportClient.
func (p *simulatedTransports) Transport(ctx context.Context, address string) (out certs.Report, err error) {
	pod, err := p.pod(ctx, address)
	if err != nil {
		return out, err
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	before := p.has[pod.UID]
	if before == nil || !p.held[pod.Name] {
		if p.has[pod.UID], err = p.deliver(ctx, pod); err != nil {
			return out, err
		}
	}
	files := p.has[pod.UID]
	// Etcd reads these files only when it starts.
	if before != nil && pod.Labels[v1alpha1.LabelComponent] == workload.ContainerEtcd {
		files[certs.ModeFile], files[certs.BundleFile] = before[certs.ModeFile], before[certs.BundleFile]
	}
	source, err := certs.InMemory(certs.Config{Now: p.now}, files)
	if err != nil {
		return out, err
	}
	defer source.Close()
	r := source.Report()
	out = certs.Report{Identity: r.Identity, Mode: r.Mode, Bundle: r.Bundle, ClientBundle: r.ClientBundle,
		NotAfter: r.NotAfter}
	if p.grants != nil {
		out.GrantsVersion = p.grants(pod.Name)
	}
	if p.unknown != nil {
		out.UnknownKeys = p.unknown()
	}
	return out, nil
}

func (p *simulatedTransports) pod(ctx context.Context, address string) (*corev1.Pod, error) {
	ip, _, err := net.SplitHostPort(address)
	if err != nil {
		return nil, err
	}
	var pods corev1.PodList
	if err := api.List(ctx, &pods, client.InNamespace(p.play.Namespace)); err != nil {
		return nil, err
	}
	for i := range pods.Items {
		if pods.Items[i].Status.PodIP == ip {
			return &pods.Items[i], nil
		}
	}
	return nil, errors.New("connection refused")
}

// deliver returns the files that the kubelet writes from a pod's projected volume.
func (p *simulatedTransports) deliver(ctx context.Context, pod *corev1.Pod) (deliveredFiles, error) {
	out := deliveredFiles{}
	for _, volume := range pod.Spec.Volumes {
		if volume.Projected == nil {
			continue
		}
		for _, source := range volume.Projected.Sources {
			if err := p.project(ctx, source, out); err != nil {
				return nil, fmt.Errorf("pod %s: %w", pod.Name, err)
			}
		}
	}
	if len(out) == 0 {
		return nil, errors.New("404: it runs without certificates")
	}
	return out, nil
}

func (p *simulatedTransports) project(ctx context.Context, from corev1.VolumeProjection, into deliveredFiles) error {
	if from.ConfigMap != nil {
		var m corev1.ConfigMap
		if err := api.Get(ctx, types.NamespacedName{Namespace: p.play.Namespace, Name: from.ConfigMap.Name}, &m); err != nil {
			return err
		}
		for key, text := range m.Data {
			into[key] = []byte(text)
		}
		return nil
	}
	var secret corev1.Secret
	if err := api.Get(ctx, types.NamespacedName{Namespace: p.play.Namespace, Name: from.Secret.Name},
		&secret); err != nil {
		return err
	}
	for _, item := range from.Secret.Items {
		content, there := secret.Data[item.Key]
		switch {
		case there:
			into[item.Path] = content
		case from.Secret.Optional == nil || !*from.Secret.Optional:
			return fmt.Errorf("secret %s has no %s", secret.Name, item.Key)
		}
	}
	return nil
}

// secret reads a Secret in the namespace of the simulated cluster.
func (p *storePlay) secret(ctx context.Context, name string) *corev1.Secret {
	GinkgoHelper()
	secret := &corev1.Secret{}
	Expect(api.Get(ctx, types.NamespacedName{Namespace: p.Namespace, Name: name}, secret)).To(Succeed(), name)
	return secret
}

// uids returns the UIDs of the pods of a component, by name.
func (p *storePlay) uids(ctx context.Context, component string) map[string]types.UID {
	GinkgoHelper()
	var pods corev1.PodList
	Expect(api.List(ctx, &pods, client.InNamespace(p.Namespace),
		client.MatchingLabels{v1alpha1.LabelComponent: component})).To(Succeed())
	out := map[string]types.UID{}
	for i := range pods.Items {
		out[pods.Items[i].Name] = pods.Items[i].UID
	}
	return out
}

// until runs rounds, and stops once wanted returns true. After each round, it calls always, which checks what must hold
// at any time.
func (p *storePlay) until(ctx context.Context, always func(*v1alpha1.RecordStore),
	wanted func(*v1alpha1.TLSStatus) bool) {
	GinkgoHelper()
	for range 60 {
		_ = p.round(ctx) // the error may be a conflict, which a later round resolves
		store := p.get(ctx)
		if always != nil {
			always(store)
		}
		if wanted(store.Status.TLS) {
			return
		}
	}
	Expect(p.words(ctx)).To(BeEmpty(), "it does not come to that: %+v", p.get(ctx).Status.TLS)
}

// atRest returns a function that reports whether all processes use the given transport and no change is in progress.
func atRest(in v1alpha1.TLSTransport) func(*v1alpha1.TLSStatus) bool {
	return func(s *v1alpha1.TLSStatus) bool {
		return s.Phase == v1alpha1.TLSReady && s.Transport == in && s.Reported == s.Processes && s.Processes > 0
	}
}

// withoutField removes a field from the CRD RecordStore, as if the CRD were of an earlier version, until restore is
// called.
func (p *storePlay) withoutField(ctx context.Context, path ...string) (restore func()) {
	GinkgoHelper()
	kind := &unstructured.Unstructured{}
	kind.SetAPIVersion("apiextensions.k8s.io/v1")
	kind.SetKind("CustomResourceDefinition")
	key := types.NamespacedName{Name: "recordstores.sheaf.dev"}
	Expect(api.Get(ctx, key, kind)).To(Succeed())
	whole := kind.DeepCopy()
	versions, _, err := unstructured.NestedSlice(kind.Object, "spec", "versions")
	Expect(err).NotTo(HaveOccurred())
	in := []string{"schema", "openAPIV3Schema"}
	for _, name := range path {
		in = append(in, "properties", name)
	}
	unstructured.RemoveNestedField(versions[0].(map[string]any), in...)
	Expect(unstructured.SetNestedSlice(kind.Object, versions, "spec", "versions")).To(Succeed())
	Expect(api.Update(ctx, kind)).To(Succeed())
	keeps := func() (bool, error) { // the API server takes a while to accept a changed kind
		store := &v1alpha1.RecordStore{}
		if err := api.Get(ctx, types.NamespacedName{Namespace: p.Namespace, Name: "quotes"}, store); err != nil {
			return false, err
		}
		store.Status.TLS = &v1alpha1.TLSStatus{Default: v1alpha1.TLSRequired}
		err := api.Status().Update(ctx, store, client.DryRunAll)
		return store.Status.TLS != nil, err
	}
	Eventually(keeps).Should(BeFalse())
	restored := false
	putBack := func() {
		GinkgoHelper()
		if restored {
			return
		}
		ctx := context.Background() // the context of the spec may have ended
		restored = true
		Expect(api.Get(ctx, key, kind)).To(Succeed())
		kind.Object["spec"] = whole.Object["spec"]
		Expect(api.Update(ctx, kind)).To(Succeed())
	}
	DeferCleanup(putBack)
	return func() {
		GinkgoHelper()
		putBack()
		Eventually(keeps).Should(BeTrue())
	}
}

// newNamespace creates a second namespace in the simulated cluster.
func newNamespace(ctx context.Context) string {
	namespace := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{GenerateName: "callers-"}}
	Expect(api.Create(ctx, namespace)).To(Succeed())
	return namespace.Name
}

func withTLS(mode v1alpha1.TLSMode) func(*v1alpha1.RecordStore) {
	return func(s *v1alpha1.RecordStore) { s.Spec.TLS = &v1alpha1.TLS{Mode: mode, Clients: []string{"reader"}} }
}

var _ = Describe("The certificates of a store", func() {
	It("are there before its processes, each in a Secret of its own, and say who each is", func(ctx context.Context) {
		p := newStorePlay(ctx)
		p.create(ctx, withTLS(v1alpha1.TLSRequired))
		p.pool(ctx, 2)
		p.settle(ctx)
		p.ready(ctx)
		p.expect(ctx, v1alpha1.ConditionCertificates, metav1.ConditionTrue, "Ready",
			"3 of 3 processes use transport required")
		status := p.get(ctx).Status
		Expect(status.TLS.Mode).To(Equal(v1alpha1.TLSRequired))
		told := &corev1.ConfigMap{}
		Expect(api.Get(ctx, types.NamespacedName{Namespace: p.Namespace, Name: "quotes-tls"}, told)).To(Succeed())
		base := "spiffe://cluster.local/ns/" + p.Namespace + "/store/" + status.StoreUID + "/"
		for name, want := range map[string]string{
			"quotes-gateway-tls": "gateway", "quotes-etcd-tls": "etcd", "ssd-0-tls": "shard/ssd-0", "ssd-1-tls": "shard/ssd-1",
			"quotes-admin-tls": "admin/admin", "quotes-client-reader-tls": "client/reader",
		} {
			secret := p.secret(ctx, name)
			files := map[string][]byte{
				certs.CertificateFile: secret.Data["tls.crt"], certs.KeyFile: secret.Data["tls.key"],
				certs.ModeFile:   []byte(told.Data["mode"]),
				certs.BundleFile: []byte(told.Data["ca.crt"]), certs.ClientBundleFile: []byte(told.Data["client-ca.crt"]),
			}
			source, err := certs.InMemory(certs.Config{}, files)
			Expect(err).NotTo(HaveOccurred(), name)
			Expect(source.Report().Identity).To(Equal(base+want), name)
			Expect(source.Report().Mode).To(Equal(certs.Required))
			source.Close()
			Expect(secret.Data["ca.crt"]).To(BeEquivalentTo(told.Data["ca.crt"]), "%s: a caller finds all in one place", name)
		}
		By("no pod seeing a key of an authority")
		p.secret(ctx, "quotes-authority")
		var pods corev1.PodList
		Expect(api.List(ctx, &pods, client.InNamespace(p.Namespace))).To(Succeed())
		for i := range pods.Items {
			Expect(fmt.Sprint(pods.Items[i].Spec)).NotTo(ContainSubstring("quotes-authority"))
			Expect(strings.Count(fmt.Sprint(pods.Items[i].Spec.Containers[0].Args), "--tls-dir=/etc/sheaf/tls")).
				To(Equal(1), pods.Items[i].Name)
		}
	})

	It("turn TLS on and off under processes that serve: step by step, and no shard restarts", func(ctx context.Context) {
		p := newStorePlay(ctx)
		p.create(ctx, func(s *v1alpha1.RecordStore) { s.Spec.Etcd.Managed.Members = 3 }, withTLS(v1alpha1.TLSDisabled))
		p.pool(ctx, 2)
		p.settle(ctx)
		p.ready(ctx)
		p.until(ctx, nil, atRest(v1alpha1.TransportPlaintext))
		shards, members := p.uids(ctx, workload.ContainerShard), p.uids(ctx, workload.ContainerEtcd)
		Expect(shards).To(HaveLen(2))

		By("waiting for a process that has not got its files")
		p.certs.held["ssd-1-0"] = true
		p.change(ctx, withTLS(v1alpha1.TLSRequired))
		p.until(ctx, nil, func(s *v1alpha1.TLSStatus) bool {
			return s.Transport == v1alpha1.TransportBoth && s.Reported == 4
		})
		for range 5 {
			Expect(p.round(ctx)).To(Succeed())
			Expect(p.get(ctx).Status.TLS.Transport).To(Equal(v1alpha1.TransportBoth))
		}
		p.expect(ctx, v1alpha1.ConditionCertificates, metav1.ConditionTrue, "Switching", "4 of 5 processes", "ssd-1-0")
		Expect(p.uids(ctx, workload.ContainerEtcd)).NotTo(ContainElements(values(members)),
			"its members read it at their start")

		By("going on when it has")
		members = p.uids(ctx, workload.ContainerEtcd)
		p.certs.held["ssd-1-0"] = false
		p.until(ctx, func(*v1alpha1.RecordStore) {
			Expect(len(p.uids(ctx, workload.ContainerEtcd))).To(BeNumerically(">=", 2), "members restart one at a time")
		}, atRest(v1alpha1.TransportRequired))
		Expect(p.uids(ctx, workload.ContainerEtcd)).NotTo(ContainElements(values(members)))

		By("going back")
		p.change(ctx, withTLS(v1alpha1.TLSDisabled))
		seen := map[v1alpha1.TLSTransport]bool{}
		p.until(ctx, func(s *v1alpha1.RecordStore) {
			seen[s.Status.TLS.Transport] = true
		}, atRest(v1alpha1.TransportPlaintext))
		Expect(seen).To(HaveKey(v1alpha1.TransportBoth))
		Expect(p.uids(ctx, workload.ContainerShard)).To(Equal(shards),
			"a shard restarts neither for the one nor for the other")
	})

	It("change their authorities in three steps, each when every process says that it is ready",
		func(ctx context.Context) {
			p := newStorePlay(ctx)
			now := time.Now()
			p.clock = func() time.Time { return now }
			p.create(ctx, withTLS(v1alpha1.TLSRequired))
			p.pool(ctx, 2)
			p.settle(ctx)
			p.until(ctx, nil, atRest(v1alpha1.TransportRequired))
			shards, first := p.uids(ctx, workload.ContainerShard), p.get(ctx).Status.TLS
			leaf := p.secret(ctx, "ssd-0-tls").Data["tls.crt"]
			phase := func(want v1alpha1.TLSPhase) func(*v1alpha1.TLSStatus) bool {
				return func(s *v1alpha1.TLSStatus) bool { return s.Phase == want }
			}
			p.certs.held["ssd-1-0"] = true
			p.change(ctx, func(s *v1alpha1.RecordStore) { s.Spec.TLS.Rotate = "1" })
			p.until(ctx, nil, phase(v1alpha1.TLSTrusting))
			By("a new operator going on where the one before was")
			p.operator(acting)
			now = now.Add(time.Hour)
			for range 4 {
				_ = p.round(ctx)
			}
			Expect(p.get(ctx).Status.TLS.Phase).To(Equal(v1alpha1.TLSTrusting),
				"a shard does not trust the next authorities yet")
			p.expect(ctx, v1alpha1.ConditionCertificates, metav1.ConditionTrue, "Trusting", "2 of 3", "ssd-1-0")
			Expect(p.secret(ctx, "ssd-0-tls").Data["tls.crt"]).To(Equal(leaf))
			p.certs.held["ssd-1-0"] = false
			p.until(ctx, nil, phase(v1alpha1.TLSIssuing))
			now = now.Add(time.Hour)
			p.until(ctx, nil, phase(v1alpha1.TLSDropping))
			Expect(p.secret(ctx, "ssd-0-tls").Data["tls.crt"]).NotTo(Equal(leaf))
			p.until(ctx, nil, atRest(v1alpha1.TransportRequired))
			last := p.get(ctx).Status.TLS
			Expect(last.Rotated).To(Equal("1"))
			Expect(last.Bundle).NotTo(Equal(first.Bundle))
			Expect(last.ClientBundle).NotTo(Equal(first.ClientBundle))
			Expect(p.secret(ctx, "quotes-authority").Data).To(HaveLen(4), "the next ones are the current ones now")
			Expect(p.uids(ctx, workload.ContainerShard)).To(Equal(shards))
		})

	It("are never made by other authorities than processes trust, but where somebody asks for new ones",
		func(ctx context.Context) {
			p := newStorePlay(ctx)
			now := time.Now()
			p.clock = func() time.Time { return now }
			p.create(ctx, withTLS(v1alpha1.TLSRequired))
			p.pool(ctx, 1)
			p.settle(ctx)
			p.until(ctx, nil, atRest(v1alpha1.TransportRequired))
			shards, bundle := p.uids(ctx, workload.ContainerShard), p.get(ctx).Status.TLS.Bundle
			Expect(api.Delete(ctx, p.secret(ctx, "quotes-authority"))).To(Succeed())
			for range 4 {
				_ = p.round(ctx)
			}
			p.expect(ctx, v1alpha1.ConditionCertificates, metav1.ConditionFalse, "AuthorityMissing", "quotes-authority",
				"spec.tls.rotate")
			err := api.Get(ctx, types.NamespacedName{Namespace: p.Namespace, Name: "quotes-authority"}, &corev1.Secret{})
			Expect(apierrors.IsNotFound(err)).To(BeTrue(), "%v", err)
			By("what was trusted being known from a caller's Secret alone")
			Expect(api.Delete(ctx, &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: p.Namespace,
				Name: "quotes-tls"}})).
				To(Succeed())

			p.change(ctx, func(s *v1alpha1.RecordStore) { s.Spec.TLS.Rotate = "lost" })
			p.until(ctx, func(*v1alpha1.RecordStore) { now = now.Add(time.Minute) }, func(s *v1alpha1.TLSStatus) bool {
				return s.Rotated == "lost" && atRest(v1alpha1.TransportRequired)(s)
			})
			Expect(p.get(ctx).Status.TLS.Bundle).NotTo(Equal(bundle))
			Expect(p.uids(ctx, workload.ContainerShard)).To(Equal(shards))
			p.expect(ctx, v1alpha1.ConditionCertificates, metav1.ConditionTrue, "Ready")
		})

	It("are renewed when two thirds of their time are over, by the authority that there is", func(ctx context.Context) {
		p := newStorePlay(ctx)
		now := time.Now()
		p.clock = func() time.Time { return now }
		p.create(ctx, withTLS(v1alpha1.TLSRequired))
		p.pool(ctx, 1)
		p.settle(ctx)
		p.until(ctx, nil, atRest(v1alpha1.TransportRequired))
		names := []string{"quotes-gateway-tls", "quotes-etcd-tls", "ssd-0-tls", "quotes-admin-tls",
			"quotes-client-reader-tls"}
		leaves := func() (all []string) {
			for _, name := range names {
				all = append(all, string(p.secret(ctx, name).Data["tls.crt"]))
			}
			return all
		}
		first, bundle := leaves(), p.get(ctx).Status.TLS.Bundle
		now = now.Add(19 * 24 * time.Hour)
		p.settle(ctx)
		Expect(leaves()).To(Equal(first), "after 19 of 30 days")
		now = now.Add(2 * 24 * time.Hour)
		p.settle(ctx)
		for i, leaf := range leaves() {
			Expect(leaf).NotTo(Equal(first[i]), names[i])
		}
		p.expect(ctx, v1alpha1.ConditionCertificates, metav1.ConditionTrue, "Ready")
		Expect(p.get(ctx).Status.TLS.Bundle).To(Equal(bundle))

		By("a process that is not brought its new files: it is told before its certificate ends")
		now = now.Add(time.Hour)
		p.settle(ctx) // the process reports its new files; the next line stops further deliveries
		p.certs.held["ssd-0-0"] = true
		now = now.Add(21 * 24 * time.Hour)
		p.settle(ctx)
		now = now.Add(6 * 24 * time.Hour)
		p.settle(ctx)
		p.expect(ctx, v1alpha1.ConditionCertificates, metav1.ConditionFalse, "Expiring", "ssd-0-0")
	})

	It("go on from where the processes are when the store's status is lost", func(ctx context.Context) {
		p := newStorePlay(ctx)
		p.create(ctx, withTLS(v1alpha1.TLSDisabled))
		p.pool(ctx, 1)
		p.settle(ctx)
		p.until(ctx, nil, atRest(v1alpha1.TransportPlaintext))
		bundle := p.get(ctx).Status.TLS.Bundle
		p.change(ctx, withTLS(v1alpha1.TLSRequired))
		store := p.get(ctx)
		store.Status.TLS = &v1alpha1.TLSStatus{}
		Expect(api.Status().Update(ctx, store)).To(Succeed())
		seen := map[v1alpha1.TLSTransport]bool{}
		p.until(ctx, func(s *v1alpha1.RecordStore) { seen[s.Status.TLS.Transport] = true },
			atRest(v1alpha1.TransportRequired))
		Expect(seen).To(HaveLen(3), "it goes over step by step, and not at once")
		Expect(p.get(ctx).Status.TLS.Bundle).To(Equal(bundle))
	})

	It("leave a Secret alone that somebody else has made", func(ctx context.Context) {
		p := newStorePlay(ctx)
		theirs := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: p.Namespace, Name: "quotes-client-reader-tls"},
			Data: map[string][]byte{"password": []byte("x")}}
		Expect(api.Create(ctx, theirs)).To(Succeed())
		p.create(ctx, withTLS(v1alpha1.TLSRequired))
		p.pool(ctx, 1)
		for range 10 {
			_ = p.round(ctx)
		}
		p.expect(ctx, v1alpha1.ConditionCertificates, metav1.ConditionFalse, "SecretTaken", "quotes-client-reader-tls")
		Expect(p.secret(ctx, "quotes-client-reader-tls").Data).To(Equal(theirs.Data))
		p.expect(ctx, v1alpha1.ConditionAvailable, metav1.ConditionTrue, "Available")
	})

	It("go with the caller or the shard that they were made for", both("rights on Secrets"), func(ctx context.Context) {
		p := newStorePlay(ctx)
		theirs := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: p.Namespace, Name: "quotes-client-writer-tls"},
			Data: map[string][]byte{"password": []byte("x")}}
		p.create(ctx, withTLS(v1alpha1.TLSRequired), func(s *v1alpha1.RecordStore) {
			s.Spec.TLS.Clients = []string{"reader", "loader"}
		})
		p.pool(ctx, 2)
		p.settle(ctx)
		Expect(p.get(ctx).Status.TLS.Clients).To(ConsistOf("loader", "reader"))
		Expect(p.secretNames(ctx)).To(ContainElements("quotes-client-loader-tls", "quotes-client-reader-tls", "ssd-0-tls",
			"ssd-1-tls"))

		Expect(api.Create(ctx, theirs)).To(Succeed())
		p.change(ctx, func(s *v1alpha1.RecordStore) { s.Spec.TLS.Clients = []string{"loader", "writer"} })
		p.rounds(ctx, 2)
		p.change(ctx, func(s *v1alpha1.RecordStore) { s.Spec.TLS.Clients = []string{"loader"} })
		pool := p.getPool(ctx)
		pool.Spec.Shards = new(int32(1))
		Expect(api.Update(ctx, pool)).To(Succeed())
		p.settle(ctx)
		Expect(p.get(ctx).Status.TLS.Clients).To(ConsistOf("loader"))
		Expect(p.secretNames(ctx)).To(ContainElements("quotes-client-loader-tls", "ssd-0-tls"))
		Expect(p.secretNames(ctx)).NotTo(ContainElements("quotes-client-reader-tls"))
		Expect(p.secretNames(ctx)).NotTo(ContainElements("ssd-1-tls"))
		Expect(p.secret(ctx, "quotes-client-writer-tls").Data).To(Equal(theirs.Data), "somebody else has made it")
	})

	It("are told in namespaces of callers, follow a rotation there, and leave what somebody else has made",
		both("rights on ConfigMaps and namespaces that are missing"), func(ctx context.Context) {
			p := newStorePlay(ctx)
			now := time.Now()
			p.clock = func() time.Time { return now }
			team, other := newNamespace(ctx), newNamespace(ctx)
			name := p.Namespace + ".quotes-ca"
			told := func(namespace string) *corev1.ConfigMap {
				var m corev1.ConfigMap
				err := api.Get(ctx, types.NamespacedName{Namespace: namespace, Name: name}, &m)
				if apierrors.IsNotFound(err) {
					return nil
				}
				Expect(err).NotTo(HaveOccurred())
				return &m
			}
			theirs := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: other, Name: name},
				Data: map[string]string{"ca.crt": "mine"}}
			Expect(api.Create(ctx, theirs)).To(Succeed())
			p.create(ctx, withTLS(v1alpha1.TLSRequired), func(s *v1alpha1.RecordStore) { s.Spec.TLS.PublishTo = []string{team} })
			p.pool(ctx, 1)
			p.settle(ctx)
			p.until(ctx, nil, atRest(v1alpha1.TransportRequired))
			first := p.secret(ctx, "quotes-admin-tls").Data["ca.crt"]
			Expect(told(team).Data).To(Equal(map[string]string{"ca.crt": string(first)}))
			Expect(p.get(ctx).Status.TLS.Published).To(ConsistOf(team))

			By("a rotation")
			p.change(ctx, func(s *v1alpha1.RecordStore) { s.Spec.TLS.Rotate = "1" })
			p.until(ctx, nil, func(s *v1alpha1.TLSStatus) bool { return s.Phase == v1alpha1.TLSTrusting })
			Expect(told(team).Data["ca.crt"]).To(And(ContainSubstring(string(first)), Not(Equal(string(first)))),
				"callers trust both authorities before any process shows a certificate of the next one")
			now = now.Add(time.Hour)
			p.until(ctx, nil, func(s *v1alpha1.TLSStatus) bool { return s.Phase == v1alpha1.TLSIssuing })
			now = now.Add(time.Hour)
			p.until(ctx, nil, func(s *v1alpha1.TLSStatus) bool { return s.Rotated == "1" && s.Phase == v1alpha1.TLSReady })
			Expect(told(team).Data["ca.crt"]).To(Equal(string(p.secret(ctx, "quotes-admin-tls").Data["ca.crt"])))
			Expect(told(team).Data["ca.crt"]).NotTo(ContainSubstring(string(first)))

			By("a ConfigMap of somebody else")
			p.change(ctx, func(s *v1alpha1.RecordStore) { s.Spec.TLS.PublishTo = []string{team, other} })
			_ = p.round(ctx)
			p.expect(ctx, v1alpha1.ConditionStalled, metav1.ConditionTrue, "ConfigMapTaken", other+"/"+name)
			p.expect(ctx, v1alpha1.ConditionAvailable, metav1.ConditionTrue, "Available")
			Expect(told(other).Data).To(Equal(theirs.Data))

			By("namespaces that leave the list")
			p.change(ctx, func(s *v1alpha1.RecordStore) { s.Spec.TLS.PublishTo = nil })
			p.settle(ctx)
			Expect(told(team)).To(BeNil())
			Expect(told(other).Data).To(Equal(theirs.Data))
			Expect(p.get(ctx).Status.TLS.Published).To(BeEmpty())

			if kubetest.Wanted() { // the fake accepts objects in namespaces that do not exist
				By("a namespace that does not exist")
				p.change(ctx, func(s *v1alpha1.RecordStore) { s.Spec.TLS.PublishTo = []string{"nowhere"} })
				_ = p.round(ctx)
				p.expect(ctx, v1alpha1.ConditionReconciling, metav1.ConditionTrue, "NamespaceMissing", "nowhere")
			}

			By("a store that is deleted")
			p.change(ctx, func(s *v1alpha1.RecordStore) { s.Spec.TLS.PublishTo = []string{team} })
			p.settle(ctx)
			Expect(told(team)).NotTo(BeNil())
			Expect(api.Delete(ctx, p.get(ctx))).To(Succeed())
			_ = p.round(ctx)
			Expect(told(team)).To(BeNil())
		})

	It("are not known to a kind of an earlier version: then nothing begins, and nothing is changed",
		needs("a CRD that is changed"), func(ctx context.Context) {
			p := newStorePlay(ctx)
			p.create(ctx, withTLS(v1alpha1.TLSRequired))
			p.pool(ctx, 1)
			p.settle(ctx)
			p.until(ctx, nil, atRest(v1alpha1.TransportRequired))
			before := p.picture(ctx)
			restore := p.withoutField(ctx, "status", "tls")
			p.rounds(ctx, 4)
			p.expect(ctx, v1alpha1.ConditionCertificates, metav1.ConditionFalse, "KindTooOld",
				"recordstores.sheaf.dev has no status.tls", "helm upgrade")
			Expect(p.get(ctx).Status.TLS).To(BeNil())
			Expect(p.picture(ctx)).To(Equal(before), "its pods go on with TLS")

			By("a new store, which speaks nothing rather than plaintext")
			second := newStorePlay(ctx)
			second.create(ctx, withTLS(v1alpha1.TLSRequired))
			second.pool(ctx, 1)
			second.rounds(ctx, 4)
			second.expect(ctx, v1alpha1.ConditionCertificates, metav1.ConditionFalse, "KindTooOld")
			Expect(second.hasProcesses(ctx)).To(BeFalse())

			By("the kind of this version")
			restore()
			p.until(ctx, func(s *v1alpha1.RecordStore) {
				if s.Status.TLS != nil {
					Expect(s.Status.TLS.Transport).To(Equal(v1alpha1.TransportRequired), "it goes on from where it was")
				}
			}, atRest(v1alpha1.TransportRequired))
			p.settle(ctx)
			Expect(p.picture(ctx)).To(Equal(before))
			second.settle(ctx)
			second.until(ctx, nil, atRest(v1alpha1.TransportRequired))
		})

	It("come to a store that served before only with its next image, or when it is asked for", func(ctx context.Context) {
		p := newStorePlay(ctx)
		keeper := p.r.Trust
		p.r.Trust, p.pools.Trust = nil, nil // simulates an operator without TLS
		p.create(ctx)
		p.pool(ctx, 1)
		p.settle(ctx)
		shards := p.uids(ctx, workload.ContainerShard)
		p.r.Trust, p.pools.Trust = keeper, keeper
		p.settle(ctx)
		Expect(p.uids(ctx, workload.ContainerShard)).To(Equal(shards), "a new operator restarts nothing")
		p.expect(ctx, v1alpha1.ConditionCertificates, metav1.ConditionTrue, "WithoutTLS", "set spec.tls")
		Expect(p.get(ctx).Status.TLS.Default).To(Equal(v1alpha1.TLSDisabled))

		p.change(ctx, withTLS(v1alpha1.TLSRequired))
		seen := map[v1alpha1.TLSTransport]bool{}
		p.until(ctx, func(s *v1alpha1.RecordStore) { seen[s.Status.TLS.Transport] = true },
			atRest(v1alpha1.TransportRequired))
		Expect(seen).To(HaveLen(3), "it goes over step by step, and not at once")
	})

	It("never come to a process whose image may not know of them", func(ctx context.Context) {
		p := newStorePlay(ctx)
		keeper := p.r.Trust
		p.r.Trust, p.pools.Trust = nil, nil // simulates an operator without TLS
		p.create(ctx)
		p.pool(ctx, 1)
		p.settle(ctx)
		p.operator(acting)
		p.r.Trust, p.pools.Trust = keeper, keeper
		p.r.Image, p.pools.Image = "sheaf:2", "sheaf:2"
		mounted := map[string]bool{}
		p.until(ctx, func(*v1alpha1.RecordStore) {
			var pods corev1.PodList
			Expect(api.List(ctx, &pods, client.InNamespace(p.Namespace))).To(Succeed())
			for i := range pods.Items {
				spec := &pods.Items[i].Spec
				mounted[pods.Items[i].Name] = workload.MountsTLS(spec)
				Expect(workload.MountsTLS(spec)).To(Equal(spec.Containers[0].Image == "sheaf:2"), pods.Items[i].Name)
			}
		}, atRest(v1alpha1.TransportPlaintext))
		p.settle(ctx)
		Expect(mounted).To(Equal(map[string]bool{"quotes-etcd-0": true, "ssd-0-0": true}))
	})
})

func values[K comparable, V any](m map[K]V) (out []any) {
	for _, v := range m {
		out = append(out, v)
	}
	return out
}
