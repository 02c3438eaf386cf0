package recordgrant

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"sheaf.dev/sheaf/api/v1alpha1"
	"sheaf.dev/sheaf/controllers/fleet"
	"sheaf.dev/sheaf/controllers/step"
	"sheaf.dev/sheaf/internal/security/access"
)

const (
	// issuerEvery is the interval at which the keys of an issuer are read. issuerPause is the time until the next
	// attempt after a failure, or after a process has received a token signed by an unknown key.
	issuerEvery = time.Hour
	issuerPause = time.Minute
	// jwksKey is the key of the JSON Web Key Set in a ConfigMap.
	jwksKey = "jwks.json"
)

// Reasons of condition IssuersReady, and of grants that name an issuer that is not in the table.
const (
	reasonIssuersReady = "KeysRead"
	// reasonIssuerSilent means that the keys of an issuer cannot be read.
	reasonIssuerSilent = "IssuerSilent"
	// reasonIssuerRefused means that an issuer of spec.access would make the table invalid, for example by its URL.
	reasonIssuerRefused = "IssuerRefused"
	// reasonIssuerUnknown means that the spec of the store does not name an issuer, or that the keys of the issuer are
	// not known.
	reasonIssuerUnknown = "IssuerUnknown"
)

// keySource holds the keys of one issuer. Stores whose specs describe the issuer identically share a keySource.
type keySource struct {
	mu sync.Mutex // guards all fields below
	// keys is nil until keys have been read. It is empty if all keys of the issuer were removed.
	keys  json.RawMessage
	read  time.Time // when keys were last read; zero if never
	tried time.Time
	// failed is the first error since the last successful read. It is empty if the last attempt succeeded.
	failed string
	since  time.Time // when failed was set
	wanted bool      // a process received a token signed by an unknown key
}

// storeIssuers holds what was known about the issuers of a store when its table was last compiled.
type storeIssuers struct {
	issuers []access.Issuer
	truth   fleet.GrantsInForce
	sources []*keySource
	byURL   map[string]*keySource
	refused map[string]string // why an issuer is refused, by URL
}

// tokenIssuers returns the issuers of spec.access whose keys are known, for the new table. The argument there is the
// table that is in etcd now. If the operator has just started and an issuer does not answer, tokenIssuers takes the
// issuer's keys from that table. The argument cluster is the issuer of ServiceAccounts.
func (r *Reconciler) tokenIssuers(ctx context.Context, store *v1alpha1.RecordStore, there *access.Table,
	cluster string) []access.Issuer {
	out := &storeIssuers{byURL: map[string]*keySource{}, refused: map[string]string{}}
	key := client.ObjectKeyFromObject(store)
	defer r.issuers.Store(key, out)
	out.truth.Good = true
	if store.Spec.Access == nil {
		return nil
	}
	var trouble []string
	refuse := func(url, why string) {
		trouble, out.refused[url] = append(trouble, url+" "+why), why
	}
	for i := range store.Spec.Access.Issuers {
		spec := &store.Spec.Access.Issuers[i]
		if spec.URL == cluster {
			refuse(spec.URL, "is the issuer of the cluster's ServiceAccounts, which needs no naming: take it out of "+
				"spec.access.issuers, and name subjects of kind ServiceAccount")
			continue
		}
		source := r.sourceOf(store.Namespace, spec)
		out.sources, out.byURL[spec.URL] = append(out.sources, source), source
		keys, failed := source.current(ctx, r, store.Namespace, spec)
		if keys == nil {
			keys = keysIn(there, spec.URL)
		}
		if failed != "" {
			words := "and none are known: its tokens are not taken"
			if len(keys) > 0 {
				words = "and those that were read last stay in use"
			}
			trouble = append(trouble, fmt.Sprintf("the keys of %s cannot be read, %s: %s", spec.URL, words, failed))
		}
		if len(keys) == 0 {
			continue
		}
		issuer := access.Issuer{URL: spec.URL, Audiences: spec.Audiences, GroupsClaim: spec.GroupsClaim, Keys: keys}
		one := access.Table{Audience: audience(store.Namespace, store.Name), Issuers: []access.Issuer{issuer}}
		if err := check(&one, nil, nil); err != nil { // the issuer would make the whole table invalid
			refuse(spec.URL, fmt.Sprintf("is refused, so that its tokens are not taken: %v", err))
			continue
		}
		out.issuers = append(out.issuers, issuer)
	}
	out.truth = fleet.GrantsInForce{Good: true, Reason: reasonIssuersReady,
		Message: fmt.Sprintf("the keys of %s are known", step.Count(len(out.issuers), "issuer", "issuers"))}
	if len(trouble) > 0 {
		out.truth = fleet.GrantsInForce{Reason: reasonIssuerSilent, Message: strings.Join(trouble, "; ")}
		// An issuer was refused; this reason is more important, because only an administrator can change the spec.
		if len(out.refused) > 0 {
			out.truth.Reason = reasonIssuerRefused
		}
	}
	return out.issuers
}

// keysIn returns the keys of an issuer from a table, or nil if the table has none.
func keysIn(there *access.Table, url string) json.RawMessage {
	for i := range there.Issuers {
		if there.Issuers[i].URL == url && !there.Issuers[i].ServiceAccounts {
			return there.Issuers[i].Keys
		}
	}
	return nil
}

// sourceOf returns the keySource of an issuer.
func (r *Reconciler) sourceOf(namespace string, spec *v1alpha1.TokenIssuer) *keySource {
	name := spec.URL + "\x00" + spec.CABundle
	if spec.KeysFrom != nil {
		name = spec.URL + "\x00" + namespace + "/" + spec.KeysFrom.ConfigMapName
	}
	source, _ := r.sources.LoadOrStore(name, &keySource{})
	out, _ := source.(*keySource)
	return out
}

// readInterval returns the interval at which the keys of an issuer are read while there is no problem.
func readInterval(spec *v1alpha1.TokenIssuer) time.Duration {
	if spec.KeysFrom != nil {
		return issuerPause
	}
	return issuerEvery
}

// current reads the keys again if that is due, and returns the keys that were last read. The result is nil if no keys
// have been read yet. It is empty if the last answer was that the issuer has no keys, because removed keys must not
// remain in use. If the last attempts failed, current also says why, and since when.
func (s *keySource) current(ctx context.Context, r *Reconciler, namespace string,
	spec *v1alpha1.TokenIssuer) (keys json.RawMessage, failed string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if now := r.Now.Time(); !s.next(readInterval(spec)).After(now) {
		s.tried, s.wanted = now, false
		found, err := r.readKeys(ctx, namespace, spec)
		if errors.Is(err, access.ErrNoKeys) && (s.keys == nil || len(s.keys) > 0) {
			s.keys, s.failed = json.RawMessage{}, "" // the text of an earlier error does not say that there are no keys
		}
		switch {
		case err == nil:
			s.keys, s.read, s.failed = found, now, ""
		// Keep the text of the first error, because a different text is not worth another write of the condition.
		case s.failed == "":
			s.failed, s.since = err.Error(), now
		}
	}
	if s.failed != "" {
		failed = fmt.Sprintf("%s, since %s", s.failed, s.since.UTC().Format(time.RFC3339))
	}
	return s.keys, failed
}

// next returns the time at which the keys have to be read again. The caller holds s.mu.
func (s *keySource) next(every time.Duration) time.Time {
	switch {
	case s.tried.IsZero():
		return time.Time{}
	case s.failed != "" || s.wanted:
		return s.tried.Add(issuerPause)
	}
	return s.read.Add(every)
}

// readKeys reads the keys that sign an issuer's tokens, from the source in the issuer's spec.
func (r *Reconciler) readKeys(ctx context.Context, namespace string, spec *v1alpha1.TokenIssuer) (json.RawMessage,
	error) {
	var encoded json.RawMessage
	if spec.KeysFrom == nil {
		if r.IssuerKeys == nil {
			return nil, fmt.Errorf("this operator reads no keys from issuers")
		}
		found, err := r.IssuerKeys(ctx, spec.URL, spec.CABundle)
		if err != nil {
			return nil, err
		}
		encoded = found
	} else {
		var in corev1.ConfigMap
		if err := r.Live.Get(ctx, client.ObjectKey{Namespace: namespace, Name: spec.KeysFrom.ConfigMapName},
			&in); apierrors.IsNotFound(err) {
			return nil, fmt.Errorf("%w: there is no ConfigMap %s in this namespace", access.ErrNoKeys,
				spec.KeysFrom.ConfigMapName)
		} else if err != nil {
			return nil, fmt.Errorf("read ConfigMap %s: %w", spec.KeysFrom.ConfigMapName, err)
		}
		if encoded = json.RawMessage(in.Data[jwksKey]); len(encoded) == 0 {
			return nil, fmt.Errorf("%w: ConfigMap %s has no %s", access.ErrNoKeys, spec.KeysFrom.ConfigMapName, jwksKey)
		}
	}
	return access.UsableKeys(encoded)
}

// issuersPause returns the time until the store has to be reconciled for its issuers, or 0 if the store has no issuers.
func (r *Reconciler) issuersPause(key types.NamespacedName) time.Duration {
	found, _ := r.issuers.Load(key)
	of, _ := found.(*storeIssuers)
	if of == nil || len(of.sources) == 0 {
		return 0
	}
	pause := issuerPause // reconcile at least this often, to collect the processes' reports about unknown keys
	for _, s := range of.sources {
		s.mu.Lock()
		pause = min(pause, max(s.next(issuerEvery).Sub(r.Now.Time()), time.Second))
		s.mu.Unlock()
	}
	return pause
}

// reportedUnknown records the issuers for which a process received tokens signed by unknown keys. The argument counts
// holds the number of such tokens since the process started. An increase causes the keys to be read again, at most once
// a minute for all processes and stores.
func (r *Reconciler) reportedUnknown(key types.NamespacedName, pod types.UID, counts map[string]int64) {
	found, _ := r.issuers.Load(key)
	of, _ := found.(*storeIssuers)
	if of == nil {
		return
	}
	for url, n := range counts {
		source := of.byURL[url]
		if source == nil {
			continue
		}
		before, _ := r.unknown.Swap(string(pod)+" "+url, n)
		if last, _ := before.(int64); n != last && n > 0 {
			source.mu.Lock()
			source.wanted = true
			source.mu.Unlock()
		}
	}
}

// dropUnknown removes from a table the subjects of issuers that are not in the table, and the grants that have only
// such subjects. No caller could match such a subject, and the table would be refused.
func dropUnknown(table *access.Table) {
	foreign := func(s access.Subject) bool {
		return s.Issuer != "" && !slices.ContainsFunc(table.Issuers, func(i access.Issuer) bool {
			return i.URL == s.Issuer && !i.ServiceAccounts
		})
	}
	table.Grants = slices.DeleteFunc(table.Grants, func(g access.Grant) bool {
		return len(g.Subjects) > 0 && !slices.ContainsFunc(g.Subjects, func(s access.Subject) bool { return !foreign(s) })
	})
	for i := range table.Grants {
		table.Grants[i].Subjects = slices.DeleteFunc(table.Grants[i].Subjects, foreign)
	}
}

// lacksIssuer names the first of a grant's subjects that are missing from the table because their issuer is missing. It
// also says why the issuer is missing. Both results are empty if there is no such subject.
func (r *Reconciler) lacksIssuer(key types.NamespacedName, g *v1alpha1.RecordGrant) (reason, words string) {
	found, _ := r.issuers.Load(key)
	of, _ := found.(*storeIssuers)
	for i := range g.Spec.Subjects {
		url := g.Spec.Subjects[i].Issuer
		if url == "" || of == nil || slices.ContainsFunc(of.issuers, func(known access.Issuer) bool {
			return known.URL == url
		}) {
			continue
		}
		reason, why := reasonIssuerUnknown,
			"is not in spec.access.issuers of the RecordStore: add it there, or name another one"
		if refused := of.refused[url]; refused != "" {
			reason, why = reasonIssuerRefused, refused
		} else if of.byURL[url] != nil {
			why = "has no known keys: see condition IssuersReady of the RecordStore"
		}
		return reason, fmt.Sprintf("subjects[%d] is not in the table: its issuer %s %s", i, url, why)
	}
	return "", ""
}

// reportIssuers records the state of the store's issuers in the Book, for the status of the store.
func (r *Reconciler) reportIssuers(key types.NamespacedName) {
	found, _ := r.issuers.Load(key)
	of, _ := found.(*storeIssuers)
	if of == nil || r.Book == nil {
		return
	}
	if len(of.sources) == 0 && of.truth.Good {
		r.Book.PutIssuers(key, nil)
		return
	}
	r.Book.PutIssuers(key, &of.truth)
}

// soonest returns the shorter of two pauses. A pause of 0 means that there is none.
func soonest(a, b time.Duration) time.Duration {
	if a == 0 || b == 0 {
		return cmp.Or(a, b)
	}
	return min(a, b)
}

// accountsKept is how long the keys of ServiceAccounts are reused before they are read again. All stores share these
// keys, and each store is reconciled every few minutes.
const accountsKept = time.Minute

// accounts caches the issuer of the cluster's ServiceAccounts.
type accounts struct {
	mu     sync.Mutex // guards all fields below
	issuer access.Issuer
	read   time.Time // zero if never
}

// serviceAccounts returns the issuer of the cluster's ServiceAccounts with its keys.
func (r *Reconciler) serviceAccounts(ctx context.Context) (access.Issuer, error) {
	r.accounts.mu.Lock()
	defer r.accounts.mu.Unlock()
	if now := r.Now.Time(); r.accounts.read.IsZero() || now.Sub(r.accounts.read) >= accountsKept {
		issuer, err := r.Keys(ctx)
		if err != nil {
			return access.Issuer{}, err
		}
		r.accounts.issuer, r.accounts.read = issuer, now
	}
	return r.accounts.issuer, nil
}
