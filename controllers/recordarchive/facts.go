package recordarchive

import (
	"context"
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/yaml"

	"sheaf.dev/sheaf/api/v1alpha1"
	"sheaf.dev/sheaf/controllers/step"
	"sheaf.dev/sheaf/internal/kube/workload"
	"sheaf.dev/sheaf/internal/status/archiving"
)

const (
	// factsBytesMax is the maximum size of all facts together. A ConfigMap has at most 1 MiB.
	factsBytesMax = 512 << 10
	// factsAgain is how long the operator does not compare a ConfigMap that it has applied with what it should be. The
	// operator reads ConfigMaps from the API server.
	factsAgain = 10 * time.Minute
)

// appliedFacts remembers what was applied for each archive, by its UID. Safe for concurrent use.
type appliedFacts struct{ sync.Map }

// applied is what was applied for one archive.
type applied struct {
	hash [sha256.Size]byte
	at   time.Time
}

// applyFacts writes the ConfigMap with the points of RecordBackups, and with the objects that describe the store, which
// the archiver stores in each new point.
func applyFacts(ctx context.Context, c client.Client, seen *observed, memory *appliedFacts) step.Outcome {
	facts, err := collectFacts(ctx, c, seen)
	if err != nil {
		return step.Retry(err)
	}
	var backups v1alpha1.RecordBackupList
	if err := c.List(ctx, &backups, client.InNamespace(seen.archive.Namespace)); err != nil {
		return step.Retry(fmt.Errorf("list RecordBackups: %w", err))
	}
	text, err := json.Marshal(archiving.Wanted{Facts: facts,
		Points: wantedPoints(backups.Items, seen.archive.Name, seen.now)})
	if err != nil {
		return step.Retry(err)
	}
	is := applied{hash: sha256.Sum256(text), at: seen.now}
	if last, ok := memory.Load(seen.archive.UID); ok {
		if was, _ := last.(applied); was.hash == is.hash && seen.now.Sub(was.at).Abs() < factsAgain {
			return step.Complete()
		}
	}
	if _, err := step.Apply(ctx, c, seen.archive, workload.ArchivePointsMap(seen.store, text)); err != nil {
		return step.Retry(err)
	}
	memory.Store(seen.archive.UID, is)
	return step.Complete()
}

// collectFacts returns the objects that describe a store: the RecordStore, its archive, pools, tenants and grants.
func collectFacts(ctx context.Context, c client.Reader, seen *observed) ([]archiving.Fact, error) {
	objects := []client.Object{seen.store, seen.archive}
	for _, list := range []client.ObjectList{&v1alpha1.ShardPoolList{}, &v1alpha1.RecordTenantList{},
		&v1alpha1.RecordGrantList{}} {
		if err := c.List(ctx, list, client.InNamespace(seen.store.Namespace)); err != nil {
			return nil, fmt.Errorf("list what describes store %s: %w", seen.store.Name, err)
		}
		objects = append(objects, ofStore(list, seen.store.Name)...)
	}
	var all []archiving.Fact
	for _, o := range objects {
		fact, err := factOf(o)
		if err != nil {
			return nil, err
		}
		all = append(all, fact)
	}
	return fitting(all), nil
}

// ofStore returns the objects of a list that belong to a store, by name.
func ofStore(list client.ObjectList, store string) (of []client.Object) {
	switch list := list.(type) {
	case *v1alpha1.ShardPoolList:
		for i := range list.Items {
			if o := &list.Items[i]; o.Spec.StoreRef.Name == store {
				of = append(of, o)
			}
		}
	case *v1alpha1.RecordTenantList:
		for i := range list.Items {
			if o := &list.Items[i]; o.Spec.StoreRef.Name == store {
				of = append(of, o)
			}
		}
	case *v1alpha1.RecordGrantList:
		for i := range list.Items {
			if o := &list.Items[i]; o.Spec.StoreRef.Name == store {
				of = append(of, o)
			}
		}
	}
	slices.SortFunc(of, func(a, b client.Object) int { return strings.Compare(a.GetName(), b.GetName()) })
	return of
}

// factOf returns an object as YAML that kubectl can apply: without its status and what the API server adds, without
// annotations, which may be anything, and without the values of environment variables, which may be secrets.
func factOf(o client.Object) (fact archiving.Fact, err error) {
	fields, err := runtime.DefaultUnstructuredConverter.ToUnstructured(o)
	if err != nil {
		return fact, err
	}
	kind := kindOf(o)
	u := &unstructured.Unstructured{Object: map[string]any{}}
	u.SetAPIVersion(v1alpha1.GroupVersion.String())
	u.SetKind(kind)
	u.SetNamespace(o.GetNamespace())
	u.SetName(o.GetName())
	if labels := o.GetLabels(); len(labels) > 0 {
		u.SetLabels(labels)
	}
	if spec, ok := fields["spec"]; ok {
		u.Object["spec"] = withoutValues("", spec)
	}
	text, err := yaml.Marshal(u.Object)
	return archiving.Fact{Name: kind + "/" + o.GetName(), YAML: string(text)}, err
}

// kindOf returns the kind of an object. Objects of the cache do not say it.
func kindOf(o client.Object) string {
	switch o.(type) {
	case *v1alpha1.RecordStore:
		return "RecordStore"
	case *v1alpha1.RecordArchive:
		return "RecordArchive"
	case *v1alpha1.ShardPool:
		return "ShardPool"
	case *v1alpha1.RecordTenant:
		return "RecordTenant"
	case *v1alpha1.RecordGrant:
		return "RecordGrant"
	}
	return "Unknown"
}

// leftOut stands in facts for the value of an environment variable.
const leftOut = "LEFT-OUT"

// withoutValues returns v without the values of environment variables. The argument key is the name of the field that
// holds v.
func withoutValues(key string, v any) any {
	switch v := v.(type) {
	case map[string]any:
		for name, value := range v {
			v[name] = withoutValues(name, value)
		}
	case []any:
		for i, item := range v {
			if variable, ok := item.(map[string]any); ok && (key == "env" || key == "extraEnv") && variable["value"] != nil {
				variable["value"] = leftOut
			}
			v[i] = withoutValues("", item)
		}
	}
	return v
}

// fitting returns the first facts that have at most factsBytesMax together, and one that names the others.
func fitting(all []archiving.Fact) (facts []archiving.Fact) {
	sum, missing := 0, []string{}
	for _, f := range all {
		if sum += len(f.Name) + len(f.YAML); sum > factsBytesMax {
			missing = append(missing, f.Name)
			continue
		}
		facts = append(facts, f)
	}
	if len(missing) > 0 {
		text := strings.Join(missing, " ")
		facts = append(facts, archiving.Fact{Name: "left out", YAML: fmt.Sprintf(
			"# %d objects are left out, because a point has room for %d bytes: %s\n", len(missing), factsBytesMax,
			step.Tail(text, 4096))})
	}
	return facts
}
