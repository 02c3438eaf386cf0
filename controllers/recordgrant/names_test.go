package recordgrant

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/go-jose/go-jose/v4"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"sheaf.dev/sheaf/api/v1alpha1"
	"sheaf.dev/sheaf/controllers/fleet"
	"sheaf.dev/sheaf/controllers/step"
	"sheaf.dev/sheaf/internal/security/access"
	"sheaf.dev/sheaf/internal/test/must"
)

// longName is the longest name that an object may have.
var longName = strings.Repeat("a234567.", 31) + "a2345"

// oddNames are valid object names that mean something else in another part of a table.
var oddNames = []string{longName, "0", "a.b.c", "get", "admin-write", "all", "anybody", "reader", "p001",
	"kubernetes.default.svc", "sheaf", "a--b", "name", "1.2.3.4"}

// fakeAPI simulates an API server that has a store named quotes in each namespace. It keeps the grant tables of these
// stores, by namespace.
type fakeAPI struct {
	grants   []v1alpha1.RecordGrant
	tenants  []v1alpha1.RecordTenant
	tables   map[string][]byte
	statuses map[string]client.Object // keyed by kind, namespace and name
	refuses  string                   // the API server refuses to write the status of the object with this name
	answer   error                    // the error with which it refuses
	writes   int                      // attempts to write a status, including failed ones
	issuers  []v1alpha1.TokenIssuer   // issuers of each store
	keys     []byte                   // the keys of every issuer, as they are in a ConfigMap
	noKeys   error                    // error of reading the ConfigMap; nil if it can be read
	noTable  error                    // error of writing a table; nil if it can be written
}

func newPlays(t *testing.T) *fakeAPI {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	must.OK(t, err)
	keys, err := json.Marshal(jose.JSONWebKeySet{Keys: []jose.JSONWebKey{{Key: key.Public(), KeyID: "k"}}})
	must.OK(t, err)
	return &fakeAPI{tables: map[string][]byte{}, statuses: map[string]client.Object{}, keys: keys}
}

func (p *fakeAPI) Table(_ context.Context, store *v1alpha1.RecordStore) (text []byte, revision int64, err error) {
	return p.tables[store.Namespace], 0, nil
}

func (p *fakeAPI) PutTable(_ context.Context, store *v1alpha1.RecordStore, text []byte, _ int64) error {
	if p.noTable != nil {
		return p.noTable
	}
	p.tables[store.Namespace] = text
	return nil
}

func (p *fakeAPI) client() client.Client {
	return interceptor.NewClient(nil, interceptor.Funcs{
		List: func(_ context.Context, _ client.WithWatch, list client.ObjectList, opts ...client.ListOption) error {
			in := (&client.ListOptions{}).ApplyOptions(opts).Namespace
			switch list := list.(type) {
			case *v1alpha1.RecordGrantList:
				for i := range p.grants {
					if p.grants[i].Namespace == in {
						list.Items = append(list.Items, *p.grants[i].DeepCopy())
					}
				}
			case *v1alpha1.RecordTenantList:
				for i := range p.tenants {
					if p.tenants[i].Namespace == in {
						list.Items = append(list.Items, *p.tenants[i].DeepCopy())
					}
				}
			default:
				return fmt.Errorf("nobody lists %T", list)
			}
			return nil
		},
		Get: func(_ context.Context, _ client.WithWatch, key client.ObjectKey, o client.Object, _ ...client.GetOption) error {
			switch o := o.(type) {
			case *v1alpha1.RecordStore:
				o.Namespace, o.Name = key.Namespace, key.Name
				o.Spec.Groups.Routing, o.Spec.Access = v1alpha1.RoutingNamed, &v1alpha1.Access{Issuers: p.issuers}
				o.Status.StoreUID, o.Status.PlacementInitialized = "uid", true
			case *corev1.ConfigMap:
				if p.noKeys != nil {
					return p.noKeys
				}
				o.Data = map[string]string{jwksKey: string(p.keys)}
			default:
				return fmt.Errorf("nobody reads %T", o)
			}
			return nil
		},
		SubResourcePatch: func(_ context.Context, _ client.Client, _ string, o client.Object, _ client.Patch,
			_ ...client.SubResourcePatchOption) error {
			if p.writes++; o.GetName() == p.refuses {
				return p.answer
			}
			p.statuses[fmt.Sprintf("%T %s", o, client.ObjectKeyFromObject(o))] = o
			return nil
		},
	})
}

func (p *fakeAPI) add(namespace, name string, number int) {
	made := metav1.ObjectMeta{Namespace: namespace, Name: name, Generation: int64(number),
		CreationTimestamp: metav1.NewTime(time.Unix(int64(number), 0))}
	to := v1alpha1.StoreReference{Name: "quotes"}
	p.grants = append(p.grants, v1alpha1.RecordGrant{ObjectMeta: made, Spec: v1alpha1.RecordGrantSpec{StoreRef: to,
		Verbs: []v1alpha1.GrantVerb{"get"}, Groups: v1alpha1.GrantGroups{All: true},
		Subjects: []v1alpha1.GrantSubject{{Kind: v1alpha1.GrantCertificate, Name: "reader"}}}})
	p.tenants = append(p.tenants, v1alpha1.RecordTenant{ObjectMeta: made, Spec: v1alpha1.RecordTenantSpec{StoreRef: to,
		Prefix: v1alpha1.GrantGroupText(fmt.Sprintf("p%03d-", number)),
		Quotas: v1alpha1.TenantQuotas{Records: new(int64(1))}}})
}

// compiledOf returns the condition Compiled of an object as last written.
func (p *fakeAPI) compiledOf(o client.Object) metav1.Condition {
	return p.condition(o, v1alpha1.ConditionCompiled)
}

// condition returns a condition of an object as last written, or an empty one.
func (p *fakeAPI) condition(o client.Object, kind string) metav1.Condition {
	var conditions []metav1.Condition
	switch written := p.statuses[fmt.Sprintf("%T %s", o, client.ObjectKeyFromObject(o))].(type) {
	case *v1alpha1.RecordGrant:
		conditions = written.Status.Conditions
	case *v1alpha1.RecordTenant:
		conditions = written.Status.Conditions
	}
	c := meta.FindStatusCondition(conditions, kind)
	if c == nil {
		return metav1.Condition{}
	}
	return *c
}

func (p *fakeAPI) reconciler() *Reconciler {
	keys := func(context.Context) (access.Issuer, error) {
		return access.Issuer{URL: "https://kubernetes.default.svc", ServiceAccounts: true, Keys: p.keys}, nil
	}
	return &Reconciler{Client: p.client(), Live: p.client(), Tables: p, Keys: keys}
}

// The names of RecordGrants and RecordTenants have no meaning. A grant, a tenant and objects in other namespaces may
// even share a name. The table is always valid and contains each object once, and each condition describes its own
// object.
func TestNamesOfGrantsAndTenantsAreOnlyNames(t *testing.T) {
	for _, bad := range oddNames {
		p := newPlays(t)
		for n, name := range oddNames {
			p.add("prod", name, n+1)
			p.add("test", name, n+1)
		}
		// The grant with this name is invalid in namespace prod, and the tenant with this name is invalid in namespace
		// test.
		for i := range p.grants {
			if p.grants[i].Name == bad && p.grants[i].Namespace == "prod" {
				p.grants[i].Spec.Verbs = []v1alpha1.GrantVerb{"dream"}
			}
			if p.tenants[i].Name == bad && p.tenants[i].Namespace == "test" {
				p.tenants[i].Spec.Quotas = v1alpha1.TenantQuotas{Records: new(int64(-1))}
			}
		}
		r := p.reconciler()
		for _, namespace := range []string{"prod", "test"} {
			key := types.NamespacedName{Namespace: namespace, Name: "quotes"}
			if _, err := r.Reconcile(t.Context(), ctrl.Request{NamespacedName: key}); err != nil {
				t.Fatal(err)
			}
			table, err := access.ParseTable(p.tables[namespace])
			must.OK(t, err)
			grants, tenants := slices.Sorted(slices.Values(oddNames)), slices.Sorted(slices.Values(oddNames))
			is := func(name string) bool { return name == bad }
			if namespace == "prod" {
				grants = slices.DeleteFunc(grants, is)
			} else {
				tenants = slices.DeleteFunc(tenants, is)
			}
			if !slices.EqualFunc(table.Grants, grants, func(g access.Grant, name string) bool { return g.Name == name }) ||
				!slices.EqualFunc(table.Tenants, tenants, func(g access.Tenant, name string) bool { return g.Name == name }) {
				t.Fatalf("%s: without %q, there are %+v, %+v", namespace, bad, table.Grants, table.Tenants)
			}
		}
		for i := range p.grants {
			for o, refused := range map[client.Object]bool{
				&p.grants[i]:  p.grants[i].Name == bad && p.grants[i].Namespace == "prod",
				&p.tenants[i]: p.tenants[i].Name == bad && p.tenants[i].Namespace == "test",
			} {
				c := p.compiledOf(o)
				if (c.Reason == "Refused") != refused || (c.Status == metav1.ConditionTrue) == refused ||
					c.ObservedGeneration != o.GetGeneration() || len(c.Message) > step.MessageMax {
					t.Errorf("%T %s/%s, while %s is bad: %+v", o, o.GetNamespace(), o.GetName(), bad, c)
				}
			}
		}
	}
}

// If the API server refuses the status of one object, for example because a later version of its kind created the
// object, the statuses of the other objects are still written. If the API server does not answer, the operator does not
// try to write the other statuses.
func TestRefusedStatusDoesNotBlockOthers(t *testing.T) {
	kind := schema.GroupKind{Group: "sheaf.dev", Kind: "RecordGrant"}
	for name, c := range map[string]struct {
		answer          error
		writes, written int
	}{
		// The field written is 6 if the statuses of b, c and d are written for both kinds.
		"it is refused":               {apierrors.NewInvalid(kind, "a", nil), 10, 6},
		"a policy refuses it":         {apierrors.NewForbidden(schema.GroupResource{}, "a", nil), 10, 6},
		"nobody answers":              {context.DeadlineExceeded, 1, 0},
		"the API server is ill":       {apierrors.NewInternalError(errors.New("etcd")), 1, 0},
		"the API server is too busy":  {apierrors.NewTooManyRequests("later", 1), 1, 0},
		"it is gone, and that is all": {apierrors.NewNotFound(schema.GroupResource{}, "a"), 10, 6},
	} {
		p := newPlays(t)
		p.refuses, p.answer = "a", c.answer
		for n, name := range []string{"a", "b", "c"} {
			p.add("prod", name, n+1)
		}
		gone := metav1.NewTime(time.Unix(1, 0))
		for _, name := range []string{"a", "d"} {
			p.add("prod", name, 7)
			last := len(p.grants) - 1
			for _, made := range []*metav1.ObjectMeta{&p.grants[last].ObjectMeta, &p.tenants[last].ObjectMeta} {
				made.DeletionTimestamp, made.Finalizers = &gone, []string{"example.org/holds-it"}
			}
		}
		_, err := p.reconciler().Reconcile(t.Context(), ctrl.Request{NamespacedName: types.NamespacedName{Namespace: "prod",
			Name: "quotes"}})
		if (err == nil) != apierrors.IsNotFound(c.answer) || err != nil && !errors.Is(err, c.answer) {
			t.Errorf("%s: %v", name, err)
		}
		if p.writes != c.writes || len(p.statuses) != c.written {
			t.Errorf("%s: %d writes, %d statuses", name, p.writes, len(p.statuses))
		}
	}
}

// If there are more tenants than a table can hold, only the youngest are left out. The other tenants, and every change
// of a grant, such as the removal of a right, still reach the table.
func TestYoungestTenantsAreLeftOut(t *testing.T) {
	p := newPlays(t)
	for n := range 1003 {
		p.add("prod", fmt.Sprintf("t-%d", n), n)
	}
	p.grants = p.grants[:1]
	// The oldest tenants have the last names, so that a choice by name would differ from a choice by age.
	slices.Reverse(p.tenants)
	in, refused := tenantsOf(v1alpha1.RoutingNamed, p.tenants)
	table := compile("prod", "quotes", p.grants, access.Issuer{})
	table.Version, table.Issuers, table.Tenants = 1, nil, in
	if _, err := table.Encode(); err != nil {
		t.Fatal("the table is refused: ", err)
	}
	if len(in) != 1000 || len(refused) != 3 {
		t.Fatalf("%d are in the table, and %d are refused", len(in), len(refused))
	}
	for _, name := range []string{"t-1000", "t-1001", "t-1002"} {
		if out := refused[name]; out.Reason() != "TooManyTenants" || !strings.Contains(out.Message(), "1,000") {
			t.Errorf("%s: %s: %s", name, out.Reason(), out.Message())
		}
	}
}

// A grant without a subject is refused, and the message says why. An earlier version left such a grant out of the
// table, as if its issuers were unknown, but its condition said that it was in the table.
func TestGrantWithoutSubjectIsRefused(t *testing.T) {
	p := newPlays(t)
	p.add("prod", "empty", 1)
	p.add("prod", "good", 2)
	p.grants[0].Spec.Subjects = nil
	if _, err := p.reconciler().Reconcile(t.Context(), ctrl.Request{NamespacedName: types.NamespacedName{
		Namespace: "prod", Name: "quotes"}}); err != nil {
		t.Fatal(err)
	}
	if c := p.compiledOf(&p.grants[0]); c.Reason != "Refused" || !strings.Contains(c.Message, "say whom") {
		t.Errorf("%+v", c)
	}
	if c := p.compiledOf(&p.grants[1]); c.Status != metav1.ConditionTrue {
		t.Errorf("%+v", c)
	}
}

// An issuer that would make the whole table invalid is left out. Other grants still reach the table, and so does the
// removal of a right. Only grants for that issuer have to wait.
func TestInvalidIssuerDoesNotBlockOtherGrants(t *testing.T) {
	p := newPlays(t)
	from := &v1alpha1.KeysFrom{ConfigMapName: "keys"}
	p.issuers = []v1alpha1.TokenIssuer{{URL: "https://idp.example.org/%zz", KeysFrom: from},
		{URL: "https://idp.example.org", KeysFrom: from}}
	for n, name := range []string{"bad", "good", "other"} {
		p.add("prod", name, n+1)
	}
	for n := range p.issuers {
		p.grants[n].Spec.Subjects = []v1alpha1.GrantSubject{{Kind: v1alpha1.GrantOIDC, Issuer: p.issuers[n].URL, Name: "x"}}
	}
	r, key := p.reconciler(), types.NamespacedName{Namespace: "prod", Name: "quotes"}
	r.Book = &fleet.GrantBook{}
	if _, err := r.Reconcile(t.Context(), ctrl.Request{NamespacedName: key}); err != nil {
		t.Fatal(err)
	}
	for n, want := range []string{"IssuerRefused", "Compiled", "Compiled"} {
		if c := p.compiledOf(&p.grants[n]); c.Reason != want || n == 0 &&
			!strings.Contains(c.Message, "its issuer https://idp.example.org/%zz is refused, so that") {
			t.Errorf("%s: %s: %s", p.grants[n].Name, c.Reason, c.Message)
		}
	}
	truth, known := r.Book.IssuersOf(key)
	if !known || truth.Good || truth.Reason != "IssuerRefused" ||
		!strings.Contains(truth.Message, "https://idp.example.org/%zz is refused, so that its tokens are not taken") {
		t.Errorf("%+v", truth)
	}
}
