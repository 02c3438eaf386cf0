package v1alpha1_test

import (
	"bufio"
	"bytes"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	utilyaml "k8s.io/apimachinery/pkg/util/yaml"
	"sigs.k8s.io/yaml"

	"sheaf.dev/sheaf/api/v1alpha1"
	"sheaf.dev/sheaf/internal/test/must"
)

const sampleFolder = "../../config/samples"

// samples are the objects of config/samples, by kind. Objects of built-in kinds are left out.
type samples struct {
	stores   []v1alpha1.RecordStore
	pools    []v1alpha1.ShardPool
	shards   []v1alpha1.Shard
	disks    []v1alpha1.DiskSet
	grants   []v1alpha1.RecordGrant
	tenants  []v1alpha1.RecordTenant
	archives []v1alpha1.RecordArchive
	backups  []v1alpha1.RecordBackup
}

// add decodes a document into its kind's list. It fails if the Go type lacks a field or if a field occurs twice.
func (s *samples) add(document []byte) (kind string, err error) {
	var head struct {
		APIVersion string `json:"apiVersion"`
		Kind       string `json:"kind"`
	}
	if err := yaml.Unmarshal(document, &head); err != nil {
		return "", err
	}
	if head.APIVersion != v1alpha1.GroupVersion.String() {
		return "", nil
	}
	switch head.Kind {
	case "RecordStore":
		err = appendStrict(&s.stores, document)
	case "ShardPool":
		err = appendStrict(&s.pools, document)
	case "Shard":
		err = appendStrict(&s.shards, document)
	case "DiskSet":
		err = appendStrict(&s.disks, document)
	case "RecordGrant":
		err = appendStrict(&s.grants, document)
	case "RecordTenant":
		err = appendStrict(&s.tenants, document)
	case "RecordArchive":
		err = appendStrict(&s.archives, document)
	case "RecordBackup":
		err = appendStrict(&s.backups, document)
	default:
		err = errors.New("there is no kind " + head.Kind)
	}
	return head.Kind, err
}

func appendStrict[T any](to *[]T, document []byte) error {
	var object T
	err := yaml.UnmarshalStrict(document, &object)
	*to = append(*to, object)
	return err
}

// readSamples reads all files of config/samples. It also returns the kinds in each file, by the file's name.
func readSamples(t *testing.T) (all samples, kindsOf map[string][]string) {
	t.Helper()
	files, err := filepath.Glob(sampleFolder + "/*.yaml")
	must.OK(t, err)
	kindsOf = map[string][]string{}
	for _, file := range files {
		text, err := os.ReadFile(file)
		must.OK(t, err)
		documents := utilyaml.NewYAMLReader(bufio.NewReader(bytes.NewReader(text)))
		for {
			document, err := documents.Read()
			if errors.Is(err, io.EOF) {
				break
			}
			if err != nil {
				t.Fatalf("%s: %v", file, err)
			}
			kind, err := all.add(document)
			if err != nil {
				t.Errorf("%s: %v", file, err)
			}
			if kind != "" {
				name := filepath.Base(file)
				kindsOf[name] = append(kindsOf[name], kind)
			}
		}
	}
	return all, kindsOf
}

// TestEveryKindHasASample checks that each kind has a file config/samples/KIND.yaml with no other object, because
// docs/reference.md shows that file. TestSamples asks the API server whether it accepts the samples, and
// hack/charts/test.sh checks them against the schemas without an API server.
func TestEveryKindHasASample(t *testing.T) {
	_, kindsOf := readSamples(t)
	page, err := os.ReadFile("../../docs/reference.md")
	must.OK(t, err)
	for kind := range kinds {
		name := strings.ToLower(kind) + ".yaml"
		if got := strings.Join(kindsOf[name], " "); got != kind {
			t.Errorf("%s holds %q, and should hold one %s", name, got, kind)
			continue
		}
		text, err := os.ReadFile(filepath.Join(sampleFolder, name))
		must.OK(t, err)
		if !strings.Contains(string(page), "```yaml\n"+strings.TrimSpace(string(text))+"\n```") {
			t.Errorf("docs/reference.md does not show %s as it is: run make generate", name)
		}
	}
}

// TestSamplesFitTogether checks that each sample refers only to other samples, so that a reader who applies all of them
// gets a store.
func TestSamplesFitTogether(t *testing.T) {
	all, _ := readSamples(t)
	store, named, pool, class := map[string]bool{}, map[string]bool{}, map[string]bool{}, map[string]bool{}
	for _, s := range all.stores {
		store[s.Name] = true
		named[s.Name] = s.Spec.Groups.Routing == v1alpha1.RoutingNamed
	}
	for _, d := range all.disks {
		class[d.Name] = true
	}
	for _, p := range all.pools {
		pool[p.Name] = true
		if name := p.Spec.StoreRef.Name; !store[name] {
			t.Errorf("ShardPool %s: no sample is its store %s", p.Name, name)
		}
		if name := p.Spec.Storage.StorageClassName; !class[name] {
			t.Errorf("ShardPool %s: no sample makes its class %s", p.Name, name)
		}
	}
	for _, s := range all.shards {
		if !pool[s.Spec.Pool] {
			t.Errorf("Shard %s: no sample is its pool %s", s.Name, s.Spec.Pool)
		}
	}
	// Groups have names of their own only in Named routing.
	for _, g := range all.grants {
		if name := g.Spec.StoreRef.Name; !store[name] || !g.Spec.Groups.All && !named[name] {
			t.Errorf("RecordGrant %s: its store %s is no sample, or has no such groups", g.Name, name)
		}
	}
	for _, r := range all.tenants {
		if name := r.Spec.StoreRef.Name; !named[name] {
			t.Errorf("RecordTenant %s: its store %s is no sample of Named routing", r.Name, name)
		}
	}
	for _, a := range all.archives {
		if name := a.Spec.StoreRef.Name; !store[name] {
			t.Errorf("RecordArchive %s: no sample is its store %s", a.Name, name)
		}
	}
}
