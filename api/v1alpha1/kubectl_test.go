package v1alpha1_test

import (
	"context"
	"path/filepath"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"sheaf.dev/sheaf/internal/test/kubetest"
	"sheaf.dev/sheaf/internal/test/must"
)

func update(t *testing.T, object *unstructured.Unstructured) *unstructured.Unstructured {
	t.Helper()
	got, err := client(object.GetKind()).Update(context.Background(), object,
		metav1.UpdateOptions{FieldValidation: metav1.FieldValidationStrict})
	must.OK(t, err)
	return got
}

func kubectl(t *testing.T, args ...string) string {
	t.Helper()
	out, err := server.Kubectl(context.Background(), args...)
	must.OK(t, err)
	return out
}

// field returns the value at a path, or nil if it is absent.
func field(object *unstructured.Unstructured, path ...string) any {
	value, _, _ := unstructured.NestedFieldNoCopy(object.Object, path...)
	return value
}

// The status is a subresource: updates of the object by people do not change it, and updates of the status by the
// operator do not change the spec.
func TestStatusSubresource(t *testing.T) {
	kubetest.Only(t)
	for kind := range kinds {
		t.Run(kind, func(t *testing.T) {
			number := "observedGeneration" // no new object has this field
			if kind == "Shard" {
				number = "records"
			}
			object := create(t, build(t, kind, fields{"status/" + number: 7}))
			if seen := field(object, "status", number); seen != nil {
				t.Fatalf("a person has set status.%s of a new object to %v", number, seen)
			}
			counts := map[string]fields{
				"RecordStore": {"status/observedGeneration": 1, "status/load": "62% 1.9GiB/s ETA 2m"},
				"ShardPool":   {"status/observedGeneration": 1, "status/shards": 1, "status/serving": 1, "status/updated": 1},
				"Shard": {"status/records": 1, "status/name": "quotes-ssd-0", "status/number": 0,
					"status/state": "Serving"},
				"DiskSet":       {"status/observedGeneration": 1, "status/total": 1, "status/free": 1, "status/bound": 0},
				"RecordGrant":   {"status/observedGeneration": 1, "status/tableVersion": 1},
				"RecordTenant":  {"status/observedGeneration": 1, "status/tableVersion": 1},
				"RecordArchive": {"status/observedGeneration": 1, "status/groups": 1, "status/holes": 0},
				"RecordBackup":  {"status/observedGeneration": 1, "status/point": "quotes-6a204bd8"},
			}[kind]
			apply(t, object, counts)
			apply(t, object, fields{"metadata/labels": fields{"a": "b"}})
			got, err := client(kind).UpdateStatus(context.Background(), object,
				metav1.UpdateOptions{FieldValidation: metav1.FieldValidationStrict})
			must.OK(t, err)
			if field(got, "status", number) != int64(1) || got.GetLabels()["a"] != "" || got.GetGeneration() != 1 {
				t.Errorf("after an update of the status: %v", got)
			}
			apply(t, got, fields{"status": nil})
			if got = update(t, got); field(got, "status", number) != int64(1) {
				t.Errorf("an update of the object changed its status: %v", got)
			}
		})
	}
}

func TestScaleSubresource(t *testing.T) {
	kubetest.Only(t)
	pool := create(t, build(t, "ShardPool"))
	kubectl(t, "scale", "shardpool", pool.GetName(), "--replicas=4")
	got, err := client("ShardPool").Get(context.Background(), pool.GetName(), metav1.GetOptions{})
	must.OK(t, err)
	if shards := field(got, "spec", "shards"); shards != int64(4) {
		t.Errorf("spec.shards is %v, want 4", shards)
	}
	apply(t, got, fields{"status": fields{"shards": 3, "serving": 2, "updated": 3,
		"selector": "sheaf.dev/pool=" + pool.GetName()}})
	if _, err := client("ShardPool").UpdateStatus(context.Background(), got, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	scale, err := client("ShardPool").Get(context.Background(), pool.GetName(), metav1.GetOptions{}, "scale")
	must.OK(t, err)
	if field(scale, "spec", "replicas") != int64(4) || field(scale, "status", "replicas") != int64(3) ||
		field(scale, "status", "selector") != "sheaf.dev/pool="+pool.GetName() {
		t.Errorf("scale is %v", scale.Object)
	}
	if out, err := server.Kubectl(context.Background(), "scale", "shardpool", pool.GetName(),
		"--replicas=2000"); err == nil || !strings.Contains(out, "less than or equal to 1000") {
		t.Errorf("scale to 2000: %v %s", err, out)
	}
}

// kubectl get accepts the short names and the category, and prints the expected columns.
func TestPrinted(t *testing.T) {
	kubetest.Only(t)
	want := map[string]struct{ short, header, wide string }{
		"RecordStore": {"recstore", "NAME READY STATUS AVAILABLE GROUPS SERVING SHARDS LOAD AGE",
			"NAME READY STATUS AVAILABLE GROUPS SERVING SHARDS LOAD RECORDS COPIES ETCD VERSION AGE"},
		"ShardPool": {"shpool", "NAME STORE READY STATUS SHARDS SERVING FS RESIDENCY LOAD AGE",
			"NAME STORE READY STATUS SHARDS SERVING FS RESIDENCY LOAD RECORDS NODES VERSION AGE"},
		"Shard": {"shd", "NAME POOL STATE NODE GROUPS SERVING LOAD AGE",
			"NAME POOL STATE NODE GROUPS SERVING LOAD RECORDS STORED VERSION MESSAGE AGE"},
		"DiskSet":     {"dset", "NAME READY FS DISKS FREE BOUND TROUBLE AGE", "NAME READY FS DISKS FREE BOUND TROUBLE AGE"},
		"RecordGrant": {"rgrant", "NAME STORE READY VERBS TROUBLE AGE", "NAME STORE READY VERBS TABLE TROUBLE AGE"},
		"RecordTenant": {"rtenant", "NAME STORE PREFIX READY STORED TROUBLE AGE",
			"NAME STORE PREFIX READY STORED RECORDS GROUPS CALLS/S BYTES/S TABLE TROUBLE AGE"},
		"RecordArchive": {"rarchive", "NAME STORE READY CURRENT ARCHIVED PROVEN HOLES TROUBLE AGE",
			"NAME STORE READY CURRENT ARCHIVED PROVEN HOLES GROUPS URL TROUBLE AGE"},
		"RecordBackup": {"rbackup", "NAME ARCHIVE READY POINT TIME TROUBLE AGE",
			"NAME ARCHIVE READY POINT TIME UNTIL TROUBLE AGE"},
	}
	names := map[string]string{}
	for kind, w := range want {
		names[kind] = create(t, build(t, kind)).GetName()
		for output, want := range map[string]string{"": w.header, "wide": w.wide} {
			lines := strings.SplitN(kubectl(t, "get", w.short, names[kind], "-o", output), "\n", 2)
			if header := strings.Join(strings.Fields(lines[0]), " "); header != want {
				t.Errorf("%s: columns %s, want %s", kind, header, want)
			}
		}
	}
	all := kubectl(t, "get", "sheaf", "-A")
	for kind, name := range names {
		if !strings.Contains(all, name) {
			t.Errorf("kubectl get sheaf -A does not show the %s:\n%s", kind, all)
		}
	}
}

// kubectl explain shows the comments of the Go types for every field.
func TestExplain(t *testing.T) {
	kubetest.Only(t)
	want := map[string][]string{
		"recordstore": {"says what is stored", "Spec describes the wanted store."},
		"recordstore.spec": {"Cannot be changed",
			"AdoptStoreUID makes this store adopt the data of a deleted store"},
		"recordstore.spec.groups": {"Hash (ids are spread over count groups)", "-required-",
			"enum: Hash, Named"},
		"recordstore.spec.etcd.managed.storage": {"from 64Mi to 4Pi"},
		"recordstore.status.groups":             {"the first 20 groups with a problem"},
		"shardpool": {
			"the same storage class, file system, medium, residency and resources"},
		"shardpool.spec.storage":                {"such as 500Gi", "the name of a DiskSet"},
		"shardpool.spec.update":                 {"enum: OneByOne, Paused"},
		"shardpool.status.shardStatuses":        {"the worst 20 shards", "kubectl get shards"},
		"shard":                                 {"only the operator"},
		"shard.spec":                            {"Only the operator writes it, and it cannot be changed"},
		"shardpool.status.shardStatuses.volume": {"UUID from the volume's superblock"},
		"diskset": {"which raw disks of which nodes become volumes",
			"for administrators"},
		"diskset.spec.disks":                          {"a raw block device on that node", "kubernetes.io/hostname"},
		"diskset.spec.fileSystem":                     {"ext4, xfs or btrfs", "Each is one option, without commas"},
		"diskset.status.disks":                        {"Message says what is wrong and what to do"},
		"recordstore.spec.gateway.scheduling":         {"Tolerations in addition to those that the operator sets"},
		"recordstore.spec.etcd.external.endpoints":    {"such as https://etcd-0.example:2379"},
		"recordstore.spec.etcd.external.tlsSecretRef": {"names a Secret of this namespace"},
	}
	for path, texts := range want {
		got := strings.Join(strings.Fields(kubectl(t, "explain", path)), " ")
		for _, text := range texts {
			if !strings.Contains(got, text) {
				t.Errorf("kubectl explain %s does not say %q:\n%s", path, text, got)
			}
		}
	}
	for kind, resource := range kinds {
		if out := kubectl(t, "explain", resource.Resource, "--recursive"); strings.Contains(out, "<no description>") ||
			!strings.Contains(out, kind) {
			t.Errorf("kubectl explain %s:\n%s", resource.Resource, out)
		}
	}
}

// Each field of Sheaf has a description. Types of Kubernetes have their own descriptions.
func TestEveryFieldIsDescribed(t *testing.T) {
	for kind := range kinds {
		for name, part := range crdSchema(t, kind)["properties"].(map[string]any) {
			if name != "metadata" {
				described(t, kind+" "+name, part.(map[string]any))
			}
		}
	}
}

func described(t *testing.T, path string, part map[string]any) {
	t.Helper()
	if text, _ := part["description"].(string); text == "" {
		t.Errorf("%s has no description", path)
	}
	if items, ok := part["items"].(map[string]any); ok {
		part = items
	}
	properties, _ := part["properties"].(map[string]any)
	for name, child := range properties {
		described(t, path+"."+name, child.(map[string]any))
	}
}

// The samples are accepted unchanged and without a warning.
func TestSamples(t *testing.T) {
	kubetest.Only(t)
	files, err := filepath.Glob("../../config/samples/*.yaml")
	if err != nil || len(files) < 4 {
		t.Fatalf("%d samples, %v", len(files), err)
	}
	for _, file := range files {
		t.Run(filepath.Base(file), func(t *testing.T) {
			if filepath.Base(file) == "kustomization.yaml" {
				t.Skip("not an object")
			}
			out := kubectl(t, "apply", "--dry-run=server", "--validate=strict", "-f", file)
			if strings.Contains(strings.ToLower(out), "warning") {
				t.Error(out)
			}
		})
	}
	if out := kubectl(t, "kustomize", "../../config/samples"); !strings.Contains(out, "kind: RecordStore") {
		t.Error(out)
	}
	if all := warnings.all(); len(all) > 0 {
		t.Errorf("the API server warns: %q", all)
	}
}
