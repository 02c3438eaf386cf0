package controllers

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"encoding/json"
	"encoding/pem"
	"net/http"
	"net/http/httptest"
	"sync"
	"time"

	"github.com/go-jose/go-jose/v4"
	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"sheaf.dev/sheaf/api/v1alpha1"
	"sheaf.dev/sheaf/controllers/fleet"
	"sheaf.dev/sheaf/controllers/recordgrant"
	"sheaf.dev/sheaf/internal/security/access"
)

// IssuerKeys reads an issuer's keys in the same way as the operator. The external test package sets it.
var IssuerKeys func(ctx context.Context, url, caBundle string) (json.RawMessage, error)

// fakeIssuer simulates an issuer of tokens behind HTTPS.
type fakeIssuer struct {
	*httptest.Server
	mu    sync.Mutex // guards the fields below
	keys  map[string]*ecdsa.PrivateKey
	reads int  // number of times that the keys were read
	mute  bool // the issuer answers 503
}

func newPlayedIssuer() *fakeIssuer {
	p := &fakeIssuer{keys: map[string]*ecdsa.PrivateKey{}}
	mux := http.NewServeMux()
	mux.HandleFunc("GET /.well-known/openid-configuration", func(w http.ResponseWriter, _ *http.Request) {
		p.mu.Lock()
		defer p.mu.Unlock()
		if p.mute {
			http.Error(w, "not now", http.StatusServiceUnavailable)
			return
		}
		_ = json.NewEncoder(w).Encode(map[string]string{"issuer": p.URL, "jwks_uri": p.URL + "/keys"})
	})
	mux.HandleFunc("GET /keys", func(w http.ResponseWriter, _ *http.Request) {
		p.mu.Lock()
		defer p.mu.Unlock()
		p.reads++
		_, _ = w.Write(p.set())
	})
	p.Server = httptest.NewTLSServer(mux)
	DeferCleanup(p.Close)
	return p
}

// set returns the JSON Web Key Set. The caller holds p.mu.
func (p *fakeIssuer) set() []byte {
	var set jose.JSONWebKeySet
	for id, key := range p.keys {
		set.Keys = append(set.Keys, jose.JSONWebKey{Key: key.Public(), KeyID: id})
	}
	out, err := json.Marshal(set)
	Expect(err).NotTo(HaveOccurred())
	return out
}

// rotate replaces all keys with one key that has a new id.
func (p *fakeIssuer) rotate(id string) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	Expect(err).NotTo(HaveOccurred())
	p.mu.Lock()
	defer p.mu.Unlock()
	p.keys = map[string]*ecdsa.PrivateKey{id: key}
}

// readCount returns how many times the keys were read.
func (p *fakeIssuer) readCount() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.reads
}

func (p *fakeIssuer) silent(mute bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.mute = mute
}

// token issues a token for a user. It is signed with the key that has the given id.
func (p *fakeIssuer) token(id, user, audience string, ends time.Time) string {
	GinkgoHelper()
	p.mu.Lock()
	defer p.mu.Unlock()
	signer, err := jose.NewSigner(jose.SigningKey{Algorithm: jose.ES256, Key: jose.JSONWebKey{Key: p.keys[id], KeyID: id}},
		nil)
	Expect(err).NotTo(HaveOccurred())
	claims, err := json.Marshal(map[string]any{"iss": p.URL, "sub": user, "aud": audience, "exp": ends.Unix(),
		"roles": []string{"ops"}})
	Expect(err).NotTo(HaveOccurred())
	signed, err := signer.Sign(claims)
	Expect(err).NotTo(HaveOccurred())
	out, err := signed.CompactSerialize()
	Expect(err).NotTo(HaveOccurred())
	return out
}

var _ = Describe("Issuers of tokens", func() {
	It("have their keys in the table, which are read again when they change, and stay while the issuer is silent",
		needs("it issues tokens"), func(ctx context.Context) {
			issuer := newPlayedIssuer()
			issuer.rotate("one")
			bundle := string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: issuer.Certificate().Raw}))
			p := newStorePlay(ctx)
			keys, err := KeysOf()
			Expect(err).NotTo(HaveOccurred())
			now := time.Now()
			p.clock = func() time.Time { return now }
			book, unknown := &fleet.GrantBook{}, int64(0)
			p.r.Grants = book
			newReconciler := func() *recordgrant.Reconciler {
				return &recordgrant.Reconciler{Client: acting, Live: operatorClient, Tables: p.etcd.Tables(), Keys: keys,
					IssuerKeys: IssuerKeys,
					Transports: p.certs, Book: book, Now: p.clock}
			}
			r := newReconciler()
			store := p.running(ctx, 1, func(s *v1alpha1.RecordStore) {
				s.Spec.Access = &v1alpha1.Access{Issuers: []v1alpha1.TokenIssuer{{URL: issuer.URL, CABundle: bundle,
					Audiences: []string{"sheaf"}, GroupsClaim: "roles"}}}
			})
			table := func() *access.Table {
				GinkgoHelper()
				text, _, err := p.etcd.Tables().Table(ctx, p.get(ctx))
				Expect(err).NotTo(HaveOccurred())
				parsed, err := access.ParseTable(text)
				Expect(err).NotTo(HaveOccurred())
				return parsed
			}
			p.certs.grants = func(string) *int64 { return new(table().Version) }
			p.certs.unknown = func() map[string]int64 { return map[string]int64{issuer.URL: unknown, "https://foreign": 7} }
			reconcile := func() time.Duration {
				GinkgoHelper()
				out, err := r.Reconcile(ctx, ctrl.Request{NamespacedName: client.ObjectKeyFromObject(store)})
				Expect(err).NotTo(HaveOccurred())
				return out.RequeueAfter
			}
			who := func(id, user string) string {
				GinkgoHelper()
				compiled, err := access.Compile(table())
				Expect(err).NotTo(HaveOccurred())
				caller, err := compiled.Token(issuer.token(id, user, "sheaf", now.Add(time.Hour)), now)
				if err != nil {
					return err.Error()
				}
				if compiled.Decide(&caller, access.Get, "7") != nil {
					return "may not"
				}
				return "may"
			}
			grant := &v1alpha1.RecordGrant{ObjectMeta: metav1.ObjectMeta{Namespace: p.Namespace, Name: "people"}}
			grant.Spec = v1alpha1.RecordGrantSpec{StoreRef: v1alpha1.StoreReference{Name: "quotes"},
				Verbs: []v1alpha1.GrantVerb{"get"}, Groups: v1alpha1.GrantGroups{All: true},
				Subjects: []v1alpha1.GrantSubject{{Kind: v1alpha1.GrantOIDCGroup, Issuer: issuer.URL, Name: "ops"}}}
			Expect(api.Create(ctx, grant)).To(Succeed())
			Expect(reconcile()).To(BeNumerically("<=", time.Minute))
			p.settle(ctx)
			p.expect(ctx, v1alpha1.ConditionIssuersReady, metav1.ConditionTrue, "KeysRead", "keys of 1 issuer are")
			Expect(who("one", "ada|7@example.org")).To(Equal("may"))
			Expect(issuer.readCount()).To(Equal(1))

			By("another key: one read, not a storm")
			issuer.rotate("two")
			Expect(who("two", "ada")).To(ContainSubstring(`no key "two"`))
			for range 5 {
				unknown += 100
				reconcile()
			}
			Expect(issuer.readCount()).To(Equal(1), "read again within a minute")
			now = now.Add(time.Minute)
			reconcile()
			reconcile()
			Expect(issuer.readCount()).To(Equal(2))
			Expect(who("two", "ada")).To(Equal("may"))
			// Since the last read, no process has received a token signed with an unknown key, so the keys need not be read
			// again.
			for range 5 {
				now = now.Add(2 * time.Minute)
				reconcile()
			}
			Expect(issuer.readCount()).To(Equal(2))
			before := writeCount.Load()
			now = now.Add(time.Hour)
			reconcile()
			Expect(issuer.readCount()).To(Equal(3), "keys are read every hour")
			Expect(writeCount.Load()).To(Equal(before))

			By("it is silent, also for an operator that has just started")
			issuer.silent(true)
			since := now.Add(time.Hour)
			for _, fresh := range []bool{false, true} {
				if fresh {
					r = newReconciler()
				}
				now = now.Add(time.Hour)
				reconcile()
				p.settle(ctx)
				p.expect(ctx, v1alpha1.ConditionIssuersReady, metav1.ConditionFalse, "IssuerSilent", issuer.URL, "503",
					"stay in use")
				Expect(who("two", "ada")).To(Equal("may"))
			}
			before = writeCount.Load()
			for range 3 {
				now = now.Add(10 * time.Minute)
				reconcile()
			}
			Expect(writeCount.Load()).To(Equal(before), "nothing has changed, and something was written")
			// The condition says since when the keys cannot be read, and does not count the failed attempts.
			p.settle(ctx)
			p.expect(ctx, v1alpha1.ConditionIssuersReady, metav1.ConditionFalse, "IssuerSilent", "since "+since.Add(time.Hour).
				UTC().Format(time.RFC3339))
			issuer.silent(false)
			now = now.Add(time.Minute)
			reconcile()
			p.settle(ctx)
			p.expect(ctx, v1alpha1.ConditionIssuersReady, metav1.ConditionTrue, "KeysRead")

			By("keys of a ConfigMap, an issuer that is not there, and none")
			stalled := func() string {
				GinkgoHelper()
				Expect(api.Get(ctx, client.ObjectKeyFromObject(grant), grant)).To(Succeed())
				if c := meta.FindStatusCondition(grant.Status.Conditions, v1alpha1.ConditionStalled); c != nil {
					return c.Reason + ": " + c.Message
				}
				return ""
			}
			Expect(stalled()).To(BeEmpty())
			p.change(ctx, func(s *v1alpha1.RecordStore) {
				s.Spec.Access.Issuers = []v1alpha1.TokenIssuer{{URL: "https://unreachable.example.org",
					KeysFrom: &v1alpha1.KeysFrom{ConfigMapName: "keys"}}}
			})
			reconcile()
			Expect(stalled()).To(ContainSubstring("IssuerUnknown: subjects[0] is not in the table: its issuer " + issuer.URL +
				" is not in spec.access.issuers"))
			p.settle(ctx)
			p.expect(ctx, v1alpha1.ConditionIssuersReady, metav1.ConditionFalse, "IssuerSilent", "none are known",
				"ConfigMap keys")
			set := func() map[string]string {
				issuer.mu.Lock()
				defer issuer.mu.Unlock()
				return map[string]string{"jwks.json": string(issuer.set())}
			}
			config := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: p.Namespace, Name: "keys"}, Data: set()}
			Expect(api.Create(ctx, config)).To(Succeed())
			now = now.Add(time.Minute)
			reconcile()
			p.settle(ctx)
			p.expect(ctx, v1alpha1.ConditionIssuersReady, metav1.ConditionTrue, "KeysRead")
			Expect(table().Issuers).To(HaveLen(2))
			issuer.rotate("three")
			config.Data = set()
			Expect(api.Update(ctx, config)).To(Succeed())
			now = now.Add(time.Minute)
			reconcile()
			Expect(table().Issuers).To(ContainElement(HaveField("Keys", ContainSubstring(`"three"`))),
				"a ConfigMap is read every minute")
			p.change(ctx, func(s *v1alpha1.RecordStore) { s.Spec.Access = nil })
			reconcile()
			p.settle(ctx)
			p.expectAbsent(ctx, v1alpha1.ConditionIssuersReady)
			Expect(table().Issuers).To(HaveLen(1))
		})
})
