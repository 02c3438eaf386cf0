package controllers

import (
	"bytes"
	"context"
	"io"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	authorizationv1 "k8s.io/api/authorization/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/apiutil"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"
	"sigs.k8s.io/yaml"

	"sheaf.dev/sheaf/api/v1alpha1"
	"sheaf.dev/sheaf/internal/test/must"
)

// operatorUser is the user of the controllers in these tests. It is bound only to the generated roles.
const operatorUser = "system:serviceaccount:sheaf-system:sheaf-operator"

// right is a verb on a resource, such as {"", "pods", "delete"} or {"sheaf.dev", "shardpools/status", "patch"}.
type right struct{ group, resource, verb string }

func (r right) String() string {
	return strings.TrimPrefix(r.group+"/", "/") + r.resource + ": " + r.verb
}

// rights records the requests of a client to the API server.
type rights struct {
	mu      sync.Mutex
	own     map[string]bool // the namespaces in which the operator itself runs
	used    map[right]bool  // outside of these namespaces
	usedOwn map[right]bool  // in these namespaces
	refused map[string]bool // descriptions of requests that the roles do not allow
}

func newRights() *rights {
	return &rights{own: map[string]bool{}, used: map[right]bool{}, usedOwn: map[right]bool{}, refused: map[string]bool{}}
}

// usedRights records the rights that the operator has used in all specs.
var usedRights = newRights()

func (r *rights) isOwn(namespace string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.own[namespace] = true
}

func (r *rights) use(namespace, group, resource string, verbs ...string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, verb := range verbs {
		if r.own[namespace] {
			r.usedOwn[right{group, resource, verb}] = true
		} else {
			r.used[right{group, resource, verb}] = true
		}
	}
}

// roundTripper turns a function into an http.RoundTripper.
type roundTripper func(*http.Request) (*http.Response, error)

func (f roundTripper) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }

// watch records the requests of a transport.
func (r *rights) watch(next http.RoundTripper) http.RoundTripper {
	return roundTripper(func(request *http.Request) (*http.Response, error) {
		answer, err := next.RoundTrip(request)
		if err != nil {
			return answer, err
		}
		if answer.StatusCode == http.StatusForbidden {
			return answer, r.refuse(answer)
		}
		r.note(request, answer.StatusCode)
		return answer, nil
	})
}

// refuse records a request that the role does not allow. It ignores refusals for a namespace that is being deleted,
// because the API server uses the same code for them.
func (r *rights) refuse(answer *http.Response) error {
	body, err := io.ReadAll(answer.Body)
	if err != nil {
		return err
	}
	if err := answer.Body.Close(); err != nil {
		return err
	}
	answer.Body = io.NopCloser(bytes.NewReader(body))
	if bytes.Contains(body, []byte(operatorUser)) || bytes.Contains(body, []byte("cannot set")) {
		r.mu.Lock()
		defer r.mu.Unlock()
		r.refused[string(body)] = true
	}
	return nil
}

func (r *rights) note(request *http.Request, code int) {
	namespace, group, resource, named, ok := resourceOf(request.URL)
	if ok {
		r.use(namespace, group, resource, verbsOf(request, named, code)...)
	}
}

// verbsOf returns the verbs that a request needs.
func verbsOf(request *http.Request, named bool, code int) []string {
	switch request.Method {
	case http.MethodGet:
		switch {
		case request.URL.Query().Get("watch") != "":
			// An informer may also send a list request, because not every API server sends the list as part of the watch.
			return []string{"watch", "list"}
		case named:
			return []string{"get"}
		}
		return []string{"list"}
	case http.MethodPost:
		return []string{"create"}
	case http.MethodPut:
		return []string{"update"}
	case http.MethodPatch:
		if code == http.StatusCreated { // server-side apply created the object, which also requires the right to create
			return []string{"patch", "create"}
		}
		return []string{"patch"}
	case http.MethodDelete:
		if named {
			return []string{"delete"}
		}
		return []string{"deletecollection"}
	}
	return []string{"unknown method " + request.Method}
}

// resourceOf reads the namespace, the group and the resource, including its subresource, from a path such as
// /apis/apps/v1/namespaces/a/statefulsets/b/scale. It returns true for named if the path is about a single object.
func resourceOf(u *url.URL) (namespace, group, resource string, named, ok bool) {
	parts := strings.Split(strings.Trim(u.Path, "/"), "/")
	switch {
	case len(parts) > 2 && parts[0] == "api":
		parts = parts[2:]
	case len(parts) > 3 && parts[0] == "apis":
		group, parts = parts[1], parts[3:]
	default:
		return "", "", "", false, false // a request for discovery
	}
	if len(parts) > 2 && parts[0] == "namespaces" {
		namespace, parts = parts[1], parts[2:]
	}
	resource = parts[0]
	if len(parts) > 2 {
		resource += "/" + parts[2]
	}
	return namespace, group, resource, len(parts) > 1, true
}

// These are the operator's accesses to the API server in these tests.
var (
	operatorConfig *rest.Config
	// operatorClient reads and writes without a cache.
	operatorClient client.WithWatch
	// acting writes as the operator. Its reads take the place of reads from the operator's cache: they require no right to
	// get objects, but always return the current state.
	acting client.WithWatch
)

// actOnFake creates the operator's clients for the fake API server. The fake does not check permissions, so these
// clients record the operator's requests.
func actOnFake() {
	operatorClient = usedRights.watchFake(api)
	acting = uncountedReads(operatorClient)
}

// uncountedReads returns a client whose reads do not count as requests of the operator.
func uncountedReads(writing client.WithWatch) client.WithWatch {
	return interceptor.NewClient(writing, interceptor.Funcs{
		Get: func(ctx context.Context, _ client.WithWatch, key client.ObjectKey, o client.Object,
			opts ...client.GetOption) error {
			return api.Get(ctx, key, o, opts...)
		},
		List: func(ctx context.Context, _ client.WithWatch, list client.ObjectList, opts ...client.ListOption) error {
			return api.List(ctx, list, opts...)
		},
	})
}

// watchFake records the calls of a client of the fake.
func (r *rights) watchFake(base client.WithWatch) client.WithWatch {
	return interceptor.NewClient(base, interceptor.Funcs{
		Get: func(ctx context.Context, c client.WithWatch, key client.ObjectKey, o client.Object,
			opts ...client.GetOption) error {
			r.noteKind(key.Namespace, o, "", "get")
			return c.Get(ctx, key, o, opts...)
		},
		List: func(ctx context.Context, c client.WithWatch, list client.ObjectList, opts ...client.ListOption) error {
			r.noteKind("", list, "", "list")
			return c.List(ctx, list, opts...)
		},
		Watch: func(ctx context.Context, c client.WithWatch, list client.ObjectList,
			opts ...client.ListOption) (watch.Interface, error) {
			r.noteKind("", list, "", "list", "watch")
			return c.Watch(ctx, list, opts...)
		},
		Create: func(ctx context.Context, c client.WithWatch, o client.Object, opts ...client.CreateOption) error {
			r.noteKind(o.GetNamespace(), o, "", "create")
			return c.Create(ctx, o, opts...)
		},
		Update: func(ctx context.Context, c client.WithWatch, o client.Object, opts ...client.UpdateOption) error {
			r.noteKind(o.GetNamespace(), o, "", "update")
			return c.Update(ctx, o, opts...)
		},
		Patch: func(ctx context.Context, c client.WithWatch, o client.Object, patch client.Patch,
			opts ...client.PatchOption) error {
			r.noteKind(o.GetNamespace(), o, "", "patch")
			return c.Patch(ctx, o, patch, opts...)
		},
		Apply: func(ctx context.Context, c client.WithWatch, o runtime.ApplyConfiguration, opts ...client.ApplyOption) error {
			wanted, ok := o.(client.Object)
			Expect(ok).To(BeTrue(), "%T is no object", o)
			r.noteKind(wanted.GetNamespace(), wanted, "", "patch")
			live, _, err := blank(wanted)
			Expect(err).NotTo(HaveOccurred())
			if apierrors.IsNotFound(api.Get(ctx, client.ObjectKeyFromObject(wanted), live.(client.Object))) {
				r.noteKind(wanted.GetNamespace(), wanted, "", "create")
			}
			return c.Apply(ctx, o, opts...)
		},
		Delete: func(ctx context.Context, c client.WithWatch, o client.Object, opts ...client.DeleteOption) error {
			r.noteKind(o.GetNamespace(), o, "", "delete")
			return c.Delete(ctx, o, opts...)
		},
		DeleteAllOf: func(ctx context.Context, c client.WithWatch, o client.Object, opts ...client.DeleteAllOfOption) error {
			r.noteKind(o.GetNamespace(), o, "", "deletecollection")
			return c.DeleteAllOf(ctx, o, opts...)
		},
		SubResourceCreate: func(ctx context.Context, c client.Client, sub string, o, of client.Object,
			opts ...client.SubResourceCreateOption) error {
			r.noteKind(o.GetNamespace(), o, sub, "create")
			return c.SubResource(sub).Create(ctx, o, of, opts...)
		},
		SubResourceUpdate: func(ctx context.Context, c client.Client, sub string, o client.Object,
			opts ...client.SubResourceUpdateOption) error {
			r.noteKind(o.GetNamespace(), o, sub, "update")
			return c.SubResource(sub).Update(ctx, o, opts...)
		},
		SubResourcePatch: func(ctx context.Context, c client.Client, sub string, o client.Object, patch client.Patch,
			opts ...client.SubResourcePatchOption) error {
			r.noteKind(o.GetNamespace(), o, sub, "patch")
			return c.SubResource(sub).Patch(ctx, o, patch, opts...)
		},
	})
}

// noteKind records the use of verbs on the resource of an object or list. It names a subresource as the API server
// does. The namespace is empty for lists, which are of all namespaces.
func (r *rights) noteKind(namespace string, o runtime.Object, sub string, verbs ...string) {
	gvk, err := apiutil.GVKForObject(o, envScheme)
	Expect(err).NotTo(HaveOccurred())
	gvk.Kind = strings.TrimSuffix(gvk.Kind, "List")
	gvr, _ := meta.UnsafeGuessKindToResource(gvk)
	if sub != "" {
		gvr.Resource += "/" + sub
	}
	r.use(namespace, gvr.Group, gvr.Resource, verbs...)
}

// actAsOperator gives the operator's account the generated ClusterRole, and creates its clients.
func actAsOperator(ctx context.Context) {
	role, _ := operatorRoles()
	binding := &rbacv1.ClusterRoleBinding{
		ObjectMeta: metav1.ObjectMeta{Name: role.Name}, RoleRef: rbacv1.RoleRef{APIGroup: rbacv1.GroupName,
			Kind: "ClusterRole", Name: role.Name},
		Subjects: []rbacv1.Subject{{APIGroup: rbacv1.GroupName, Kind: rbacv1.UserKind, Name: operatorUser}},
	}
	Expect(api.Create(ctx, role)).To(Succeed())
	Expect(api.Create(ctx, binding)).To(Succeed())
	// The API server takes some time to apply a new role.
	awaitAllowed(ctx, authorizationv1.ResourceAttributes{Group: v1alpha1.GroupVersion.Group, Resource: "shardpools",
		Verb: "patch"})
	fenceOperator(ctx)
	operatorConfig = rest.CopyConfig(envConfig)
	operatorConfig.Impersonate = rest.ImpersonationConfig{UserName: operatorUser}
	operatorConfig.Wrap(usedRights.watch)
	var err error
	operatorClient, err = client.NewWithWatch(operatorConfig, client.Options{Scheme: envScheme})
	Expect(err).NotTo(HaveOccurred())
	acting = uncountedReads(operatorClient)
}

// runIn makes a namespace one in which the operator itself runs. Its account gets the generated Role there.
func runIn(ctx context.Context, namespace string) {
	GinkgoHelper()
	usedRights.isOwn(namespace)
	if operatorConfig == nil {
		return // the fake does not check permissions
	}
	_, role := operatorRoles()
	role.Namespace = namespace
	binding := &rbacv1.RoleBinding{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: role.Name},
		RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "Role", Name: role.Name},
		Subjects:   []rbacv1.Subject{{APIGroup: rbacv1.GroupName, Kind: rbacv1.UserKind, Name: operatorUser}},
	}
	Expect(api.Create(ctx, role)).To(Succeed())
	Expect(api.Create(ctx, binding)).To(Succeed())
	awaitAllowed(ctx, authorizationv1.ResourceAttributes{Namespace: namespace, Resource: "events", Verb: "create"})
}

// operatorRoles returns the generated roles: the one for all namespaces, and the one for the operator's own namespace.
func operatorRoles() (*rbacv1.ClusterRole, *rbacv1.Role) {
	GinkgoHelper()
	text, err := os.ReadFile(filepath.Join("..", "config", "rbac", "role.yaml"))
	Expect(err).NotTo(HaveOccurred())
	documents := strings.Split(strings.TrimPrefix(string(text), "---\n"), "\n---\n")
	Expect(documents).To(HaveLen(2), "a ClusterRole and a Role")
	all, own := &rbacv1.ClusterRole{}, &rbacv1.Role{}
	Expect(yaml.UnmarshalStrict([]byte(documents[0]), all)).To(Succeed())
	Expect(yaml.UnmarshalStrict([]byte(documents[1]), own)).To(Succeed())
	Expect([]string{all.Kind, own.Kind}).To(Equal([]string{"ClusterRole", "Role"}))
	return all, own
}

// unseen lists the rights that no recorded request uses, and why the role has them nevertheless.
var unseen = map[right]string{
	{"sheaf.dev", "recordstores/finalizers",
		"update"}: "the admission plugin OwnerReferencesPermissionEnforcement asks for it where a store becomes an owner",
	{"sheaf.dev", "shardpools/finalizers", "update"}:     "so does it for pools",
	{"sheaf.dev", "recordarchives/finalizers", "update"}: "and for archives",
}

// notUsed is the prefix of the messages in which compareRights reports rights that were not used.
const notUsed = "granted and not used: "

// compareRights returns the rights that are granted but were not used, and those that were used but are not granted.
// Rules for all namespaces also hold in the operator's own namespace.
func compareRights(everywhere, own []rbacv1.PolicyRule, seen *rights) (wrong []string) {
	granted, grantedOwn := rightsOf(everywhere), rightsOf(own)
	for r := range seen.used {
		if !granted[r] {
			wrong = append(wrong, "used and not granted: "+r.String())
		}
	}
	for r := range seen.usedOwn {
		if !granted[r] && !grantedOwn[r] {
			wrong = append(wrong, "used in the own namespace and not granted: "+r.String())
		}
	}
	for r := range granted {
		used := seen.used[r] || seen.usedOwn[r]
		if used && unseen[r] != "" {
			wrong = append(wrong, "used, but listed as unseen: "+r.String())
		}
		if !used && unseen[r] == "" {
			wrong = append(wrong, notUsed+r.String())
		}
	}
	for r := range grantedOwn {
		if !seen.usedOwn[r] {
			wrong = append(wrong, notUsed+"in the own namespace: "+r.String())
		}
	}
	return wrong
}

func rightsOf(rules []rbacv1.PolicyRule) map[right]bool {
	granted := map[right]bool{}
	for _, rule := range rules {
		for _, group := range rule.APIGroups {
			for _, resource := range rule.Resources {
				for _, verb := range rule.Verbs {
					granted[right{group, resource, verb}] = true
				}
			}
		}
	}
	return granted
}

func TestRightsAreComparedBothWays(t *testing.T) {
	seen := newRights()
	seen.isOwn("system")
	ask := func(method, url string, code int) {
		request, err := http.NewRequestWithContext(t.Context(), method, "https://api"+url, nil)
		must.OK(t, err)
		answer := &http.Response{StatusCode: code, Body: io.NopCloser(strings.NewReader("User \"" + operatorUser +
			"\" cannot patch"))}
		next := roundTripper(func(*http.Request) (*http.Response, error) { return answer, nil })
		got, err := seen.watch(next).RoundTrip(request)
		must.OK(t, err)
		must.OK(t, got.Body.Close())
	}
	ask(http.MethodGet, "/api/v1/pods?watch=true", http.StatusOK)
	ask(http.MethodGet, "/api/v1/namespaces/a/secrets/b", http.StatusOK)
	ask(http.MethodPatch, "/apis/apps/v1/namespaces/a/statefulsets/b?force=true", http.StatusCreated)
	ask(http.MethodPatch, "/apis/sheaf.dev/v1alpha1/namespaces/a/shardpools/b/status", http.StatusOK)
	ask(http.MethodDelete, "/api/v1/namespaces/a", http.StatusOK)
	ask(http.MethodGet, "/apis/apps/v1", http.StatusOK) // a request for discovery
	ask(http.MethodPatch, "/api/v1/namespaces/a/pods/b", http.StatusForbidden)
	ask(http.MethodPost, "/apis/batch/v1/namespaces/system/jobs", http.StatusCreated)
	ask(http.MethodGet, "/apis/batch/v1/namespaces/a/jobs/b", http.StatusOK)
	ask(http.MethodDelete, "/api/v1/namespaces/system/configmaps/b", http.StatusOK)
	ask(http.MethodGet, "/api/v1/namespaces/system/secrets/b", http.StatusOK)
	got := compareRights([]rbacv1.PolicyRule{
		{APIGroups: []string{""}, Resources: []string{"pods"}, Verbs: []string{"list", "watch", "delete"}},
		{APIGroups: []string{"apps"}, Resources: []string{"statefulsets"}, Verbs: []string{"create", "patch"}},
		{APIGroups: []string{"sheaf.dev"}, Resources: []string{"shardpools/status"}, Verbs: []string{"patch"}},
		{APIGroups: []string{"sheaf.dev"}, Resources: []string{"shardpools/finalizers"}, Verbs: []string{"update"}},
		{APIGroups: []string{""}, Resources: []string{"configmaps"}, Verbs: []string{"delete"}},
	}, []rbacv1.PolicyRule{
		{APIGroups: []string{"batch"}, Resources: []string{"jobs"}, Verbs: []string{"create", "get"}},
	}, seen)
	slices.Sort(got)
	want := []string{"granted and not used: in the own namespace: batch/jobs: get", "granted and not used: pods: delete",
		"used and not granted: batch/jobs: get", "used and not granted: namespaces: delete",
		"used and not granted: secrets: get", "used in the own namespace and not granted: secrets: get"}
	if !slices.Equal(got, want) || len(seen.refused) != 1 {
		t.Errorf("%q, refused %v; want %q and one refusal", got, seen.refused, want)
	}
}

// allRights is true if the specs of this run use every right that the roles grant. This is the case in `make test-api`
// and in larger runs.
var allRights bool

// The roles grant exactly the rights that the operator uses in these specs. Not all rights are used if specs run on the
// fake, or if only some specs run.
var _ = ginkgo.ReportAfterSuite("The operator's roles are what it uses", func(report ginkgo.Report) {
	if !report.SuiteSucceeded {
		return // some specs did not run, so rights may seem unused
	}
	usedRights.mu.Lock()
	defer usedRights.mu.Unlock()
	all, own := operatorRoles()
	wrong := compareRights(all.Rules, own.Rules, usedRights)
	if !allRights {
		wrong = slices.DeleteFunc(wrong, func(words string) bool { return strings.HasPrefix(words, notUsed) })
	}
	for words := range usedRights.refused {
		wrong = append(wrong, "refused: "+words)
	}
	slices.Sort(wrong)
	Expect(wrong).To(BeEmpty(),
		"correct the markers +kubebuilder:rbac and run make generate charts, or use what they grant")
})
