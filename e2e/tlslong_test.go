//go:build e2e

package e2e

import (
	"bytes"
	"cmp"
	"context"
	"crypto/x509"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	"google.golang.org/grpc"

	"sheaf.dev/sheaf/api/v1alpha1"
	"sheaf.dev/sheaf/client"
	"sheaf.dev/sheaf/internal/security/certs"
)

// These constants say how often the scenario below changes certificates and tokens. All certificates are replaced 5
// times while the authorities stay the same, and once more with each of the E2E_LONG changes of authorities. Tokens
// change twice with each change of authorities.
const (
	longRenewals = 5
	longTokens   = 2
)

// Certificates, authorities and tokens keep changing during every kind of call and stream, while groups move from
// pool to pool and back. A change of authorities takes 6 minutes, because callers get 3 minutes to load their new
// files. Therefore the scenario runs only if E2E_LONG is set. Its value is the number of changes of authorities. With
// 10 such changes, about a hundred certificates are replaced.
var _ = Describe("TLS, again and again", Serial, func() {
	It("no call fails, no shard restarts, and who was not told is refused", func() {
		rotations, err := strconv.Atoi(cmp.Or(os.Getenv("E2E_LONG"), "0"))
		Expect(err).NotTo(HaveOccurred(), "E2E_LONG is a number of changes of the authorities")
		if rotations == 0 {
			Skip("E2E_LONG is not set")
		}
		s := newSpace("tlslong")
		s.makeStore(s.threeDisks())
		kubectl("patch", "recordstore", "q", "-n", s.name, "--type=merge", "-p", `{"spec": {"gateway": {"replicas": 2}}}`)
		for _, pool := range []string{"main", "next"} {
			class := s.name + "-" + pool
			s.diskSet(class, "ext4", diskSpec{"n1", s.disk("n1", class+"-a", "256M"), "240Mi"},
				diskSpec{"n2", s.disk("n2", class+"-b", "256M"), "240Mi"})
			s.makePool(pool, class, 2)
		}
		s.awaitStore("q", 3*time.Minute)
		s.client()
		shards := s.pods("sheaf.dev/pool")
		Expect(shards).To(HaveLen(4))
		files := s.adminFiles("q")
		before := copyOfFiles(files)

		w := s.streams(files)
		stop := w.start()
		mover := s.moveToAndFro()
		seen := map[string]bool{} // serial numbers of the certificates seen so far
		s.noteSerials(seen)
		tokens := 0
		for n := range rotations {
			word := fmt.Sprintf("long-%d", n)
			kubectl("patch", "recordstore", "q", "-n", s.name, "--type=merge", "-p",
				fmt.Sprintf(`{"spec": {"tls": {"rotate": %q}}}`, word))
			for tokens < (n+1)*longTokens {
				w.newToken()
				tokens++
			}
			s.awaitTLS(20*time.Minute, func(now *v1alpha1.TLSStatus) bool { return now.Rotated == word })
			s.noteSerials(seen)
			w.awaitTurns()
			GinkgoWriter.Printf("%s authorities %d: %d certificates so far, %d moves\n", time.Now().Format(time.TimeOnly), n+1,
				len(seen), mover.turns.Load())
		}
		By("an old client is refused")
		s.checkAdminRefused(before)

		By("certificates alone")
		for n := range longRenewals {
			s.renewAll(seen)
			w.awaitTurns()
			GinkgoWriter.Printf("%s renewal %d: %d certificates so far\n", time.Now().Format(time.TimeOnly), n+1, len(seen))
		}
		mover.stop()
		stop()
		AddReportEntry(fmt.Sprintf("%d certificates, %d authorities, %d tokens, %d turns of all groups from pool to pool; %s",
			len(seen), rotations, tokens,
			mover.turns.Load(), w.counts()))
		Expect(w.failed).To(BeEmpty())
		Expect(len(seen)).To(BeNumerically(">=", 6*(rotations+longRenewals)))
		Expect(mover.turns.Load()).To(BeNumerically(">=", 2))
		for name, p := range s.pods("sheaf.dev/pool") {
			Expect(p.Metadata.UID).To(Equal(shards[name].Metadata.UID), "%s was made anew", name)
			Expect(p.Status.ContainerStatuses[0].RestartCount).To(Equal(shards[name].Status.ContainerStatuses[0].RestartCount),
				"%s has restarted", name)
		}
	})
})

// awaitTLS waits until all processes of the store q have reported the wanted state, and the status shows it.
func (s *space) awaitTLS(timeout time.Duration, there func(*v1alpha1.TLSStatus) bool) {
	GinkgoHelper()
	Eventually(func(g Gomega) {
		store := s.storeQ(g)
		now := store.Status.TLS
		g.Expect(now.Phase == v1alpha1.TLSReady && now.Reported == now.Processes && there(now)).To(BeTrue(), "%+v: %v", now,
			condition(store.Status.Conditions, v1alpha1.ConditionCertificates))
	}).WithTimeout(timeout).Should(Succeed())
}

// leafSecrets returns the certificates in the Secrets of the store q's processes, by Secret name.
func (s *space) leafSecrets() map[string]*x509.Certificate {
	GinkgoHelper()
	var list struct {
		Items []struct {
			Metadata struct{ Name string }
			Data     map[string][]byte
		}
	}
	Expect(get(&list, "secrets", "-n", s.name, "-l", "sheaf.dev/store=q")).To(Succeed())
	leaves := map[string]*x509.Certificate{}
	for _, item := range list.Items {
		block, _ := pem.Decode(item.Data["tls.crt"])
		if block == nil {
			continue // a Secret without a certificate holds the authorities
		}
		leaf, err := x509.ParseCertificate(block.Bytes)
		Expect(err).NotTo(HaveOccurred(), item.Metadata.Name)
		leaves[item.Metadata.Name] = leaf
	}
	Expect(len(leaves)).To(BeNumerically(">=", 6), "%v", leaves)
	return leaves
}

func (s *space) noteSerials(seen map[string]bool) {
	GinkgoHelper()
	for _, leaf := range s.leafSecrets() {
		seen[leaf.SerialNumber.String()] = true
	}
}

// renewAll renews all certificates. It deletes their Secrets, and restarts the operators, because an operator checks
// all certificates immediately after its start. It waits until each shard and gateway reports that it uses its new
// certificate.
func (s *space) renewAll(seen map[string]bool) {
	GinkgoHelper()
	old := s.leafSecrets()
	for name := range old {
		kubectl("delete", "secret", name, "-n", s.name)
	}
	kubectl("delete", "pods", "-n", operatorNamespace, "-l", "app.kubernetes.io/name=sheaf-operator", "--wait=true",
		"--timeout=60s")
	Eventually(func(g Gomega) {
		now := map[string]*x509.Certificate{}
		for name := range old {
			content, err := s.secret(name)
			g.Expect(err).NotTo(HaveOccurred())
			block, _ := pem.Decode(content["tls.crt"])
			g.Expect(block).NotTo(BeNil(), name)
			leaf, err := x509.ParseCertificate(block.Bytes)
			g.Expect(err).NotTo(HaveOccurred())
			g.Expect(leaf.SerialNumber).NotTo(Equal(old[name].SerialNumber), name)
			now[name] = leaf
		}
		for port, selector := range map[int]string{7611: "sheaf.dev/pool",
			7601: "app.kubernetes.io/component=gateway,sheaf.dev/store=q"} {
			var list struct {
				Items []struct{ Status struct{ PodIP string } }
			}
			g.Expect(get(&list, "pods", "-n", s.name, "-l", selector)).To(Succeed())
			g.Expect(list.Items).NotTo(BeEmpty())
			for _, item := range list.Items {
				report, err := tlsReport(item.Status.PodIP, port)
				g.Expect(err).NotTo(HaveOccurred())
				uses := false
				for _, leaf := range now {
					uses = uses || len(leaf.URIs) == 1 && leaf.URIs[0].String() == report.Identity &&
						leaf.NotAfter.Equal(report.NotAfter)
				}
				g.Expect(uses).To(BeTrue(), "%+v", report)
			}
		}
	}).WithTimeout(5 * time.Minute).WithPolling(2 * time.Second).Should(Succeed())
	s.noteSerials(seen)
}

// tlsReport asks a process which certificates it uses.
func tlsReport(ip string, port int) (report certs.Report, err error) {
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	request, err := http.NewRequestWithContext(ctx, http.MethodGet,
		fmt.Sprintf("http://%s:%d%s", ip, port, certs.ReportPath), nil)
	if err != nil {
		return report, err
	}
	answer, err := http.DefaultClient.Do(request)
	if err != nil {
		return report, err
	}
	defer answer.Body.Close()
	return report, json.NewDecoder(answer.Body).Decode(&report)
}

// copyOfFiles returns copies of the files. The copies do not follow the Secret.
func copyOfFiles(files client.TLSFiles) client.TLSFiles {
	GinkgoHelper()
	dir := GinkgoT().TempDir()
	copied := func(from string) string {
		content, err := os.ReadFile(from)
		Expect(err).NotTo(HaveOccurred())
		to := filepath.Join(dir, filepath.Base(from))
		Expect(os.WriteFile(to, content, 0o600)).To(Succeed())
		return to
	}
	return client.TLSFiles{CA: copied(files.CA), Cert: copied(files.Cert), Key: copied(files.Key)}
}

// checkAdminRefused checks that a client with old files is refused. In its first attempt, the client has only its old
// authorities, so neither side trusts the other. In its second attempt, the client has the store's current
// authorities, but still its old certificate.
func (s *space) checkAdminRefused(files client.TLSFiles) {
	GinkgoHelper()
	for _, ca := range []string{files.CA, s.adminFiles("q").CA} {
		store := s.dial(client.TLSFiles{CA: ca, Cert: files.Cert, Key: files.Key})
		ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
		_, err := store.Put(ctx, client.Key{ID: 1}, []byte("old"), nil)
		cancel()
		Expect(err).To(HaveOccurred())
		GinkgoWriter.Println("an old client:", err)
	}
}

// dial connects to the gateways' Service with certificate files.
func (s *space) dial(files client.TLSFiles, options ...grpc.DialOption) *client.Client {
	GinkgoHelper()
	speaks, err := client.TLS(files)
	Expect(err).NotTo(HaveOccurred())
	host := kubectl("get", "service", "q-gateway", "-n", s.name, "-o", "jsonpath={.spec.clusterIP}:{.spec.ports[0].port}")
	store, err := client.New(client.Config{
		Addresses: []string{host}, Credentials: speaks, DialOptions: append(options,
			grpc.WithAuthority("q-gateway."+s.name+".svc")),
	})
	Expect(err).NotTo(HaveOccurred())
	DeferCleanup(func() { _ = store.Close() })
	return store
}

// movePause is the pause between two moves of all groups. It is more than twice as long as a slow upload takes.
const movePause = 45 * time.Second

// groupMover moves all groups from one pool to the other and back until it is stopped.
type groupMover struct {
	turns atomic.Int32
	stop  func()
}

func (s *space) moveToAndFro() *groupMover {
	m := &groupMover{}
	ctx, cancel := context.WithCancel(context.Background())
	var done sync.WaitGroup
	done.Go(func() {
		defer GinkgoRecover()
		for from, to := "main", "next"; ctx.Err() == nil; from, to = to, from {
			s.poolState(to, v1alpha1.PoolActive)
			s.poolState(from, v1alpha1.PoolDrained)
			Eventually(func() int {
				if ctx.Err() != nil {
					return 0
				}
				return s.copiesOn(from + "-")
			}).WithTimeout(5 * time.Minute).Should(BeZero())
			m.turns.Add(1)
			select { // the pause is long enough for slow uploads, which start again when their group moves
			case <-time.After(movePause):
			case <-ctx.Done():
			}
		}
	})
	m.stop = func() { cancel(); done.Wait() }
	DeferCleanup(m.stop)
	return m
}

// streams makes all kinds of calls to the store q concurrently. It uses a certificate, and for some reads a token.
type streams struct {
	space *space
	token string // path of the token's file
	known *client.Client
	named *client.Client // client that uses the token

	mu     sync.Mutex
	turns  map[string]int // number of finished calls of each kind; guarded by mu
	failed []string       // guarded by mu
}

func (s *space) streams(files client.TLSFiles) *streams {
	GinkgoHelper()
	w := &streams{space: s, token: filepath.Join(GinkgoT().TempDir(), "token"), turns: map[string]int{}}
	kubectl("create", "serviceaccount", "reader", "-n", s.name)
	apply(fmt.Sprintf(`
apiVersion: sheaf.dev/v1alpha1
kind: RecordGrant
metadata: {name: reader, namespace: %[1]s}
spec:
  storeRef: {name: q}
  subjects: [{kind: ServiceAccount, namespace: %[1]s, name: reader}]
  verbs: [get]
  groups: {all: true}
`, s.name))
	kubectl("wait", "-n", s.name, "--for=condition=Ready", "recordgrant/reader", "--timeout=30s")
	w.newToken()
	w.known = s.dial(files)
	w.named = s.dial(client.TLSFiles{CA: files.CA}, grpc.WithPerRPCCredentials(client.Token(w.token)))
	return w
}

// newToken replaces the token in the file with a new one.
func (w *streams) newToken() {
	GinkgoHelper()
	token := kubectl("create", "token", "reader", "-n", w.space.name, "--audience=sheaf/"+w.space.name+"/q",
		"--duration=10m")
	next := w.token + ".next"
	Expect(os.WriteFile(next, []byte(token), 0o600)).To(Succeed())
	Expect(os.Rename(next, w.token)).To(Succeed())
}

// start starts the calls. The returned function stops them.
func (w *streams) start() (stop func()) {
	ctx, cancel := context.WithCancel(context.Background())
	var done sync.WaitGroup
	again := func(kind string, every time.Duration, do func(ctx context.Context, turn int) error) {
		done.Go(func() {
			for turn := 0; ctx.Err() == nil; turn++ {
				err := do(context.WithoutCancel(ctx), turn)
				w.note(kind, err)
				select {
				case <-time.After(every): // wait before the next call
				case <-ctx.Done():
				}
			}
		})
	}
	large := bytes.Repeat([]byte("0123456789abcdef"), 256<<10) // 4 MiB
	again("batch put", 100*time.Millisecond, w.batchPut)
	again("upload", time.Second, func(ctx context.Context, turn int) error {
		_, err := w.known.Upload(ctx, client.Key{ID: int64(3_000_000 + turn%4)}, bytes.NewReader(large), nil)
		return err
	})
	again("download", time.Second, func(ctx context.Context, turn int) error {
		var got bytes.Buffer
		_, err := w.known.Download(ctx, client.Key{ID: int64(3_000_000 + turn%4)}, &got, nil)
		switch {
		case errors.Is(err, client.ErrNotFound) && turn < 100:
			return nil // the record has not been uploaded yet
		case err == nil && !bytes.Equal(got.Bytes(), large):
			return errors.New("other data")
		}
		return err
	})
	// The upload stays open for 20 s, so certificates change during uploads.
	again("slow upload", time.Second, func(ctx context.Context, turn int) error {
		ctx, cancel := context.WithTimeout(ctx, 3*time.Minute) // the upload may have to start again when its group moves
		defer cancel()
		_, err := w.known.Upload(ctx, client.Key{ID: int64(3_100_000 + turn%2)},
			&slowReader{Reader: *bytes.NewReader(large[:1<<20])}, nil)
		return err
	})
	again("scan", time.Second, func(ctx context.Context, _ int) error {
		for _, err := range w.known.Scan(ctx, &client.ScanOptions{MetadataOnly: true}) {
			if err != nil {
				return err
			}
		}
		return nil
	})
	again("get by token", 200*time.Millisecond, func(ctx context.Context, _ int) error {
		_, err := w.named.Get(ctx, client.Key{ID: 2_000_000}, nil)
		if errors.Is(err, client.ErrNotFound) {
			return nil
		}
		return err
	})
	groups, err := w.known.PlanScan(ctx, nil)
	w.note("plan", err)
	watching := map[string]bool{}
	for _, split := range groups {
		if watching[split.Group] {
			continue
		}
		watching[split.Group] = true
		done.Go(func() {
			for _, err := range w.known.Watch(ctx, split.Group, nil) {
				if ctx.Err() == nil {
					w.note("watch", err)
				}
			}
		})
	}
	stop = func() { cancel(); done.Wait() }
	DeferCleanup(stop)
	return stop
}

func (w *streams) batchPut(ctx context.Context, turn int) error {
	items := make([]client.PutItem, 32)
	for n := range items {
		items[n] = client.PutItem{Key: client.Key{ID: int64(2_000_000 + n)}, Data: fmt.Appendf(nil, "turn %d", turn)}
	}
	var failed error
	for _, outcome := range w.known.BatchPut(ctx, items) {
		failed = errors.Join(failed, outcome.Err)
	}
	return failed
}

func (w *streams) note(kind string, err error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.turns[kind]++
	if err != nil && len(w.failed) < 100 {
		w.failed = append(w.failed, fmt.Sprintf("%s %s: %v", time.Now().Format(time.TimeOnly), kind, err))
	}
}

func (w *streams) counts() string {
	w.mu.Lock()
	defer w.mu.Unlock()
	return fmt.Sprint(w.turns)
}

// awaitTurns waits until further calls of each kind have been answered.
func (w *streams) awaitTurns() {
	GinkgoHelper()
	w.mu.Lock()
	before := map[string]int{}
	for kind, n := range w.turns {
		before[kind] = n
	}
	w.mu.Unlock()
	delete(before, "plan")
	Expect(len(before)).To(BeNumerically(">=", 6), "%v", before)
	Eventually(func(g Gomega) {
		w.mu.Lock()
		defer w.mu.Unlock()
		for kind, n := range before {
			g.Expect(w.turns[kind]).To(BeNumerically(">", n), kind)
		}
	}).WithTimeout(3 * time.Minute).Should(Succeed())
	w.mu.Lock()
	defer w.mu.Unlock()
	Expect(w.failed).To(BeEmpty())
}

// slowReader is a reader that supplies 1 MiB in 20 s. The reader can be rewound, so that an upload can be retried.
type slowReader struct{ bytes.Reader }

func (r *slowReader) Read(p []byte) (int, error) {
	n, err := r.Reader.Read(p[:min(len(p), 64<<10)])
	time.Sleep(20 * time.Second * time.Duration(n) >> 20) // simulates a slow caller
	return n, err
}
