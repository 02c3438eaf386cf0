package recordgrant

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"sheaf.dev/sheaf/api/v1alpha1"
	"sheaf.dev/sheaf/controllers/fleet"
	"sheaf.dev/sheaf/internal/security/access"
)

const (
	// issuerEvery is how often the keys of an issuer are read, issuerPause the time between two tries: where one has
	// failed, and where a process was shown a token by a key that is not known.
	issuerEvery = time.Hour
	issuerPause = time.Minute
	// keyOfKeys is the key of a ConfigMap with a JSON Web Key Set.
	keyOfKeys = "jwks.json"
)

// Reasons of condition IssuersReady.
const (
	reasonIssuersReady = "KeysRead"
	reasonIssuerSilent = "IssuerSilent"
)

// keySource is where the keys of one issuer come from. Stores that name it alike share it.
type keySource struct {
	mu     sync.Mutex // guards all below
	keys   json.RawMessage
	read   time.Time // when keys were read; zero: never
	tried  time.Time
	failed string    // why the tries since then failed, in the words of the first; empty: the last one did not
	since  time.Time // of failed
	wanted bool      // a process was shown a token by another key
}

// storeIssuers are the issuers of a store, as they were found when its table was made last.
type storeIssuers struct {
	issuers []access.Issuer
	truth   fleet.GrantsInForce
	sources []*keySource
	byURL   map[string]*keySource
}

// tokenIssuers gives those of spec.access whose keys are known, for the table. there is the table of now: where an
// operator has just started, and the issuer does not answer, its keys stay. cluster is the issuer of ServiceAccounts.
func (r *Reconciler) tokenIssuers(ctx context.Context, store *v1alpha1.RecordStore, there *access.Table,
	cluster string) []access.Issuer {
	out := &storeIssuers{byURL: map[string]*keySource{}}
	key := client.ObjectKeyFromObject(store)
	defer r.issuers.Store(key, out)
	out.truth.Good = true
	if store.Spec.Access == nil {
		return nil
	}
	var trouble []string
	for i := range store.Spec.Access.Issuers {
		spec := &store.Spec.Access.Issuers[i]
		if spec.URL == cluster {
			trouble = append(trouble,
				spec.URL+" is the issuer of the cluster's ServiceAccounts, which needs no naming: take it out")
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
			if keys != nil {
				words = "and those that were read last stay in use"
			}
			trouble = append(trouble, fmt.Sprintf("the keys of %s cannot be read, %s: %s", spec.URL, words, failed))
		}
		if keys != nil {
			out.issuers = append(out.issuers, access.Issuer{URL: spec.URL, Audiences: spec.Audiences,
				GroupsClaim: spec.GroupsClaim, Keys: keys})
		}
	}
	out.truth = fleet.GrantsInForce{Good: true, Reason: reasonIssuersReady,
		Message: fmt.Sprintf("the keys of %d issuers are known", len(out.issuers))}
	if len(trouble) > 0 {
		out.truth = fleet.GrantsInForce{Reason: reasonIssuerSilent, Message: strings.Join(trouble, "; ")}
	}
	return out.issuers
}

// keysIn gives the keys of an issuer in a table; nil: it has none.
func keysIn(there *access.Table, url string) json.RawMessage {
	for i := range there.Issuers {
		if there.Issuers[i].URL == url && !there.Issuers[i].ServiceAccounts {
			return there.Issuers[i].Keys
		}
	}
	return nil
}

// sourceOf gives the source of an issuer's keys.
func (r *Reconciler) sourceOf(namespace string, spec *v1alpha1.TokenIssuer) *keySource {
	name := spec.URL + "\x00" + spec.CABundle
	if spec.KeysFrom != nil {
		name = spec.URL + "\x00" + namespace + "/" + spec.KeysFrom.ConfigMapName
	}
	source, _ := r.sources.LoadOrStore(name, &keySource{})
	out, _ := source.(*keySource)
	return out
}

// every is how often the keys of an issuer are read where nothing is wrong.
func every(spec *v1alpha1.TokenIssuer) time.Duration {
	if spec.KeysFrom != nil {
		return issuerPause
	}
	return issuerEvery
}

// current gives the keys that were read last, and reads them where it is time; failed says since when and why that does
// not succeed.
func (s *keySource) current(ctx context.Context, r *Reconciler, namespace string,
	spec *v1alpha1.TokenIssuer) (keys json.RawMessage, failed string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if now := r.now(); s.due(now, every(spec)) {
		s.tried, s.wanted = now, false
		found, err := r.readKeys(ctx, namespace, spec)
		switch {
		case err == nil:
			s.keys, s.read, s.failed = found, now, ""
		case s.failed == "": // later tries may say it in other words, and a condition is not written for that
			s.failed, s.since = err.Error(), now
		}
	}
	if s.failed != "" {
		failed = fmt.Sprintf("%s, since %s", s.failed, s.since.UTC().Format(time.RFC3339))
	}
	return s.keys, failed
}

// due tells whether keys are to be read now. s.mu is held.
func (s *keySource) due(now time.Time, every time.Duration) bool {
	return s.next(every).Before(now.Add(1))
}

// next is when keys are to be read next. s.mu is held.
func (s *keySource) next(every time.Duration) time.Time {
	switch {
	case s.tried.IsZero():
		return time.Time{}
	case s.failed != "" || s.wanted:
		return s.tried.Add(issuerPause)
	}
	return s.read.Add(every)
}

// readKeys reads the keys of an issuer that tokens may be signed by, from where its spec says.
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
			&in); err != nil {
			return nil, fmt.Errorf("read ConfigMap %s: %w", spec.KeysFrom.ConfigMapName, err)
		}
		if encoded = json.RawMessage(in.Data[keyOfKeys]); len(encoded) == 0 {
			return nil, fmt.Errorf("ConfigMap %s has no %s", spec.KeysFrom.ConfigMapName, keyOfKeys)
		}
	}
	return access.UsableKeys(encoded)
}

// issuersPause is how long the issuers of a store can wait for the next look; 0: it has none.
func (r *Reconciler) issuersPause(key types.NamespacedName) time.Duration {
	found, _ := r.issuers.Load(key)
	of, _ := found.(*storeIssuers)
	if of == nil || len(of.sources) == 0 {
		return 0
	}
	pause := issuerPause // processes are asked for tokens by unknown keys
	for _, s := range of.sources {
		s.mu.Lock()
		pause = min(pause, max(s.next(issuerEvery).Sub(r.now()), time.Second))
		s.mu.Unlock()
	}
	return pause
}

// heardUnknown notes which issuers' keys a process was shown that are not known: counts, since the process began. Keys
// are read again for that, at most once a minute for all processes and stores.
func (r *Reconciler) heardUnknown(key types.NamespacedName, pod types.UID, counts map[string]int64) {
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

// dropUnknown leaves out of a table the subjects that an issuer would have to name which is not in it, and grants that
// have no other subjects: nobody could be one of them, and the table would be refused.
func dropUnknown(table *access.Table) {
	foreign := func(s access.Subject) bool {
		return s.Issuer != "" && !slices.ContainsFunc(table.Issuers, func(i access.Issuer) bool {
			return i.URL == s.Issuer && !i.ServiceAccounts
		})
	}
	for i := range table.Grants {
		table.Grants[i].Subjects = slices.DeleteFunc(table.Grants[i].Subjects, foreign)
	}
	table.Grants = slices.DeleteFunc(table.Grants, func(g access.Grant) bool { return len(g.Subjects) == 0 })
}

// lacksIssuer says which subject of a grant is not in the table, as its issuer is not; empty: none.
func (r *Reconciler) lacksIssuer(key types.NamespacedName, g *v1alpha1.RecordGrant) string {
	found, _ := r.issuers.Load(key)
	of, _ := found.(*storeIssuers)
	for i := range g.Spec.Subjects {
		url := g.Spec.Subjects[i].Issuer
		if url == "" || of == nil || slices.ContainsFunc(of.issuers, func(known access.Issuer) bool {
			return known.URL == url
		}) {
			continue
		}
		why := "is not in spec.access.issuers of the RecordStore: add it there, or name another one"
		if of.byURL[url] != nil {
			why = "has told no keys yet: see condition IssuersReady of the RecordStore"
		}
		return fmt.Sprintf("subjects[%d] is not in the table: its issuer %s %s", i, url, why)
	}
	return ""
}

// tellIssuers tells the status of the store of its issuers.
func (r *Reconciler) tellIssuers(key types.NamespacedName) {
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

// soonest of two pauses, of which 0 is none.
func soonest(a, b time.Duration) time.Duration {
	if a == 0 || b == 0 {
		return cmp.Or(a, b)
	}
	return min(a, b)
}
