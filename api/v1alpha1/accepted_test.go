package v1alpha1_test

import (
	"fmt"
	"reflect"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/yaml"

	"sheaf.dev/sheaf/internal/test/kubetest"
	"sheaf.dev/sheaf/internal/test/must"
)

// goodCase is an input that the API server must accept although it is at the limit of what the rules allow.
type goodCase struct {
	kind   string
	set    fields
	with   fields
	update bool
}

var goodCases = []goodCase{
	{kind: "RecordStore", set: fields{"metadata/name": letters(40)}},
	{kind: "RecordStore", set: fields{"spec/groups/count": 1}},
	{kind: "RecordStore", set: fields{"spec/groups/count": 65536}},
	{kind: "RecordStore", set: named},
	{kind: "RecordStore", set: fields{"spec/groups": fields{"routing": "Named", "max": 100000}}},
	{kind: "RecordStore", set: fields{"spec/groups/max": 500}, with: named, update: true},
	{kind: "RecordStore", set: fields{"spec/replication": fields{"copies": 5,
		"topologyKey": "topology.kubernetes.io/zone"}}},
	{kind: "RecordStore", set: fields{"spec/replication/topologyKey": "topology.kubernetes.io/zone"}, update: true},
	{kind: "RecordStore", set: fields{"spec/retention": fields{"versions": 1000, "minAge": "87600h"}}},
	{kind: "RecordStore", set: fields{"spec/retention/minAge": "0s"}},
	{kind: "RecordStore", set: fields{"spec/retention/minAge": "1h30m"}, update: true},
	{kind: "RecordStore", set: fields{"spec/compaction": fields{"supersededPercent": 100, "minSuperseded": "1Ti",
		"bytesPerSecond": "1Mi"}}},
	{kind: "RecordStore", set: fields{"spec/compaction": fields{"minSuperseded": "16Mi"}}, update: true},
	{kind: "RecordStore", set: fields{"spec/views": fields{"maxHeld": "64Mi"}}},
	{kind: "RecordStore", set: fields{"spec/views": fields{"maxHeld": "1Pi"}}, update: true},
	{kind: "RecordStore", set: fields{"spec/etcd/managed": fields{"members": 1, "snapshotEvery": "1m",
		"storage": fields{"size": "64Mi", "storageClassName": "fast"}}}},
	{kind: "RecordStore", set: fields{"spec/etcd/managed/storage/size": "4Gi"}, update: true},
	{kind: "RecordStore", set: external},
	{kind: "RecordStore", set: fields{"spec/etcd/external": fields{"endpoints": numbered("https://etcd-%d.example:2379",
		9), "tlsSecretRef": fields{"name": "etcd.client"}, "prefix": "/teams/a"}}},
	{kind: "RecordStore", set: fields{"spec/etcd/external/endpoints": []string{"http://[::1]:2379", "http://10.0.0.1:1"}}},
	{kind: "RecordStore", set: fields{"spec/etcd/external/endpoints/0": "https://other:2379"}, with: external,
		update: true},
	{kind: "RecordStore", set: fields{"spec/gateway": fields{"replicas": 0, "serviceType": "LoadBalancer",
		"serviceAnnotations": fields{"example.org/lb": "内部 text"}}}},
	{kind: "RecordStore", set: fields{"spec/image": "registry.example:5000/team/sheaf@sha256:" + letters(64),
		"spec/imagePullPolicy": "Never", "spec/imagePullSecrets": []fields{{"name": "a"}, {"name": "b.c"}}}},
	{kind: "RecordStore", set: fields{"spec/deletionPolicy": "Delete"}, update: true},
	{kind: "RecordStore", set: fields{"spec/adoptStoreUID": uid}},
	{kind: "RecordStore", set: restored},
	{kind: "RecordStore", set: fields{"spec/restore/time": "2026-11-01T12:00:00.123456789+01:00",
		"spec/restore/credentialsSecretRef": fields{"name": "quotes-bucket"}, "spec/restore/partly": true}, with: restored},
	{kind: "RecordStore", set: fields{"spec/restore/point": "2026-11-01.before-upgrade",
		"spec/restore/serviceAccountName": "sheaf-archive-quotes", "spec/restore/first": numbered("eu.%d", 100)},
		with: restored},
	{kind: "RecordStore", set: fields{"spec/restore/groups": []string{"eu", "us"}}, with: someOf},
	{kind: "RecordStore", set: fields{"spec/gateway/replicas": 3}, with: restored, update: true},
	{kind: "RecordStore", set: fields{"spec/tracing": fields{"endpoint": "http://[::1]:4317", "sampleRatio": "1.0"}},
		update: true},
	{kind: "RecordStore", set: fields{"spec/audit": fields{}}, update: true},
	{kind: "RecordStore", set: fields{"spec/audit": fields{"mode": "Writes"}, "spec/tls": fields{"mode": "Optional"}},
		update: true},
	{kind: "RecordStore", set: fields{"spec/audit": fields{"mode": "None"}, "spec/tls": fields{"mode": "Disabled"}},
		update: true},
	{kind: "RecordStore", set: fields{"spec/tls": fields{}}, update: true},
	{kind: "RecordStore", set: fields{"spec/tls": fields{"publishTo": []string{"team-a", "1"}}}, update: true},
	{kind: "RecordStore", set: certManager, update: true},
	{kind: "RecordStore", set: fields{"spec/tls": fields{
		"source": "CertManager", "certManager": fields{"issuerRef": fields{"name": "ca", "kind": "ClusterIssuer",
			"group": "example.org"}}, "clients": []string{"a"}, "rotate": "",
	}}, update: true},
	{kind: "RecordStore", set: provided, update: true},
	{kind: "RecordStore", set: fields{"spec/tls": fields{"mode": "Optional", "clients": []string{"a", "b-1"},
		"gatewayNames": []string{"*.example.org", "q"}, "rotate": "2026-11"}}, update: true},
	{kind: "RecordStore", set: fields{
		"spec/gateway/extraEnv":      []fields{{"name": "_a1", "value": "内部\n$(A)"}, {"name": "B"}},
		"spec/etcd/managed/extraEnv": envVars(32)}},
	{kind: "ShardPool", set: fields{"spec/extraEnv": []fields{{"name": letters(128), "value": letters(4096)}}}},
	{kind: "RecordStore", set: fields{"spec/gateway/podAnnotations": fields{"Example.org/A": "内部"},
		"spec/gateway/podLabels": fields{"app.kubernetes.io/part-of": "x"}}, update: true},

	{kind: "ShardPool", set: fields{"metadata/name": letters(45)}},
	{kind: "ShardPool", set: fields{"spec/shards": 0}},
	{kind: "ShardPool", set: fields{"spec/shards": 1000}, update: true},
	{kind: "ShardPool", set: fields{"spec/remove": upTo(1000), "spec/parked": []int{1000}}},
	{kind: "ShardPool", set: fields{"spec/state": "Drained", "spec/medium": "HDD", "spec/update/mode": "Paused"},
		update: true},
	{kind: "ShardPool", set: fields{"spec/residency": "Resident", "spec/resources/limits/memory": "8Gi"}, update: true},
	{kind: "ShardPool", set: fields{"spec/storage/size": "64Mi"}},
	{kind: "ShardPool", set: fields{"spec/storage/size": "4Pi"}, update: true},
	{kind: "ShardPool", set: xfs, update: true},
	{kind: "ShardPool", set: fields{"spec/fileSystem/mountOptions": []string{"noatime", "logbufs=8", "compress=zstd:3"}},
		with: xfs, update: true},
	{kind: "ShardPool", set: fields{"spec/resources": fields{"requests": fields{"cpu": 0, "memory": "1Gi"},
		"limits": fields{"cpu": 2, "memory": "1Gi", "ephemeral-storage": "1G"}}}},
	{kind: "ShardPool", set: fields{"spec/resources/requests/cpu": "500m"}},
	{kind: "ShardPool", set: fields{"spec/scheduling": fields{
		"nodeSelector":      fields{"kubernetes.io/arch": "amd64", "disk": ""},
		"priorityClassName": "system-cluster-critical",
		"tolerations": []fields{
			{"operator": "Exists"}, {"key": "dedicated", "value": "sheaf", "effect": "NoSchedule"},
			{"key": "example.org/a", "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 60},
		},
	}}},

	{kind: "RecordGrant", set: fields{"spec/subjects": subjects(64),
		"spec/verbs": []string{"get", "put", "delete", "scan", "watch", "admin-read", "admin-write"}}},
	{kind: "RecordGrant", set: fields{"spec/subjects": []fields{{"kind": "Anybody"},
		{"kind": "ServiceAccount", "namespace": "prod", "name": "a.b-c"}}}, update: true},
	{kind: "RecordGrant", set: fields{"spec/groups": fields{"all": true}}, update: true},
	{kind: "RecordGrant", set: fields{"spec/groups": fields{"names": numbered("g%d", 256),
		"prefixes": []string{letters(253), "_a."}}}},

	{kind: "RecordTenant", set: fields{"spec/prefix": letters(253),
		"spec/quotas": fields{"storedBytes": "1Ei", "records": 1, "groups": 1, "callsPerSecond": 1, "bytesPerSecond": "1.5Gi",
			"callsAtOnce": 1}}},
	{kind: "RecordTenant", set: fields{"spec/quotas": fields{"records": 1000000000}}, update: true},

	{kind: "RecordArchive", set: fields{"spec/url": "s3://b-1.c/?region=eu&endpoint=https://s3.example:9000",
		"spec/credentialsSecretRef": fields{"name": "a.b"}, "spec/interval": "1s", "spec/hold": fields{"maxBytes": "64Mi"},
		"spec/image": "a/b:c"}},
	{kind: "RecordArchive", set: fields{"spec/url": "gs://other/a/b_c", "spec/interval": "1h",
		"spec/serviceAccountName": "sheaf-archive", "spec/hold": fields{"maxBytes": "1Pi"}}, update: true},
	{kind: "RecordArchive", set: fields{"spec/url": "azblob://c?storage_account=a",
		"spec/serviceAccountName": "sheaf-archive-" + letters(49)}},
	{kind: "RecordArchive", set: fields{"spec/points": fields{"schedule": "59 */6 1,15 JAN-DEC ?"},
		"spec/keep": fields{"window": "1h", "points": 1}, "spec/prune": "Delete"}, update: true},
	{kind: "RecordArchive", set: fields{"spec/points": fields{"schedule": "0 3 * * *"},
		"spec/keep": fields{"window": "87600h", "points": 10000}, "spec/prune": "Never"}},
	{kind: "RecordArchive", set: fields{"spec/drill": fields{"schedule": "59 */6 1,15 JAN-DEC ?", "groups": 1000,
		"storage": fields{"size": "1Pi", "className": "fast"}}}, update: true},
	{kind: "RecordArchive", set: fields{"spec/drill": fields{"schedule": "0 4 * * *",
		"storage": fields{"size": "1Gi"}}}},
	{kind: "RecordBackup", set: fields{"spec/ttl": "876000h", "spec/archiveRef": fields{"name": "a.b-c"}}},

	{kind: "DiskSet", set: fields{"metadata/name": letters(63)}},
	{kind: "DiskSet", set: fields{"spec/disks": disks(512)}},
	{kind: "DiskSet", set: fields{"spec/disks": disks(2)}, update: true},
	{kind: "DiskSet", set: fields{"spec/disks/0/size": "600Gi", "spec/disks/0/medium": "SSD"}, update: true},
	{kind: "DiskSet", set: fields{"spec/disks/0/device": "/dev/loop0", "spec/allowUnstablePaths": true}},
	{kind: "DiskSet", set: fields{"spec/disks/0/device": "/dev/disk/by-id/scsi-0QEMU_HARDDISK:a#b=c+d\\x20e"}},
	{kind: "RecordStore", set: fields{"spec/access/issuers": issuer("url", "https://id.example.org:8443/realms/a~b/",
		"audiences", []string{"sheaf/prod/quotes"}, "groupsClaim", "https://example.org/roles")}},
	{kind: "RecordStore", set: fields{"spec/access/issuers": []fields{{"url": "https://id.example.org",
		"keysFrom": fields{"configMapName": "keys"}}}}, update: true},
	{kind: "RecordGrant", set: fields{"spec/subjects/0": fields{"kind": "OIDC", "issuer": "https://id.example.org",
		"name": "auth0|7 of repo:a/b@株価"}}},
	{kind: "DiskSet", set: fields{"spec/namespaces": numbered("n%d", 64)}, update: true},
	{kind: "DiskSet", set: fields{"spec/fileSystem/mountOptions": []string{"noatime"}}, update: true},
}

func TestGoodInput(t *testing.T) {
	kubetest.Only(t)
	for i, c := range goodCases {
		t.Run(fmt.Sprintf("%d %s", i, c.kind), func(t *testing.T) {
			object := build(t, c.kind, c.with)
			try := tryCreate
			if c.update {
				object = create(t, object)
				try = tryUpdate
			}
			apply(t, object, c.set)
			got, err := try(object)
			must.OK(t, err)
			decode(t, got)
		})
	}
}

// TestNumbersOfShards checks which shard numbers the API server accepts in spec.remove and spec.parked. It must
// accept numbers up to status.highestNumber and numbers that the list already contains, whatever the value of
// spec.shards, and refuse higher ones.
func TestNumbersOfShards(t *testing.T) {
	kubetest.Only(t)
	pool := create(t, build(t, "ShardPool", fields{"spec/shards": 5, "spec/remove": []int{4}}))
	apply(t, pool, fields{"status": fields{"observedGeneration": 1, "shards": 3, "serving": 3, "updated": 3,
		"highestNumber": 12}})
	pool, err := client("ShardPool").UpdateStatus(t.Context(), pool, metav1.UpdateOptions{})
	must.OK(t, err)
	apply(t, pool, fields{"spec/shards": 2})
	pool = update(t, pool)
	for _, test := range []struct {
		field   string
		numbers []int
		refused string
	}{
		{"remove", []int{4, 12}, ""},
		{"remove", []int{13}, "remove names a shard that is not there"},
		{"remove", []int{4, 99}, "remove names a shard that is not there"},
		{"parked", []int{12, 1}, ""},
		{"parked", []int{77}, "parked names a shard that is not there"},
	} {
		changed := pool.DeepCopy()
		apply(t, changed, fields{"spec/" + test.field: test.numbers})
		_, err := tryUpdate(changed)
		if test.refused == "" {
			if err != nil {
				t.Errorf("%s %v: %v", test.field, test.numbers, err)
			}
			continue
		}
		if err == nil {
			t.Errorf("%s %v: accepted", test.field, test.numbers)
			continue
		}
		met := false
		for _, got := range fieldErrors(t, err) {
			seenMessages.Store(got.message, true)
			met = met || got.field == "spec."+test.field && strings.Contains(got.message, test.refused)
		}
		if !met {
			t.Errorf("%s %v: %v", test.field, test.numbers, err)
		}
	}
	// A number above the limit that the list already contains does not prevent other changes to the pool.
	apply(t, pool, fields{"status/highestNumber": 3})
	if pool, err = client("ShardPool").UpdateStatus(t.Context(), pool, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	apply(t, pool, fields{"spec/state": "Cordoned"})
	update(t, pool)
}

// Every change can be undone, except those that the docs call permanent.
func TestChangeBack(t *testing.T) {
	kubetest.Only(t)
	for i, c := range goodCases {
		if !c.update || i == 0 {
			continue
		}
		for path := range c.set {
			if grows := map[string]bool{"spec/etcd/managed/storage/size": true, "spec/storage/size": true,
				"spec/disks/0/size": true, "spec/fileSystem/type": true}; grows[path] {
				continue
			}
			t.Run(c.kind+" "+path, func(t *testing.T) {
				before := create(t, build(t, c.kind, c.with))
				after := before.DeepCopy()
				apply(t, after, fields{path: c.set[path]})
				if path == "spec/residency" {
					apply(t, after, fields{"spec/resources/limits/memory": "8Gi"})
				}
				after = update(t, after)
				back := after.DeepCopy()
				back.Object["spec"] = before.Object["spec"]
				back = update(t, back)
				if !reflect.DeepEqual(back.Object["spec"], before.Object["spec"]) {
					t.Errorf("spec is %v, was %v", back.Object["spec"], before.Object["spec"])
				}
			})
		}
	}
}

// TestDefaults checks the defaults that the API server sets in a minimal object. docs/reference.md and the charts
// repeat these defaults.
func TestDefaults(t *testing.T) {
	kubetest.Only(t)
	want := map[string]string{
		"RecordStore": `
groups: {routing: Hash, count: 256}
replication: {copies: 1, topologyKey: kubernetes.io/hostname}
retention: {versions: 1}
etcd: {managed: {members: 3, snapshotEvery: 1h, storage: {size: 2Gi}}}
gateway: {replicas: 2, serviceType: ClusterIP}
imagePullPolicy: IfNotPresent
deletionPolicy: Retain
networkPolicy: {mode: Managed, directClients: Any}
`,
		"ShardPool": `
storeRef: {name: quotes}
shards: 1
state: Active
medium: Auto
residency: Index
storage: {storageClassName: local-xfs, size: 500Gi}
update: {mode: OneByOne}
`,
		"DiskSet": `
fileSystem: {type: xfs}
namespaces: [prod]
disks: [{node: n1, device: /dev/disk/by-id/nvme-1, size: 500Gi, medium: Auto}]
`,
	}
	for kind, text := range want {
		got, err := tryCreate(build(t, kind))
		must.OK(t, err)
		spec, err := yaml.Marshal(got.Object["spec"])
		must.OK(t, err)
		var wantSpec, gotSpec any
		must.OK(t, yaml.Unmarshal([]byte(text), &wantSpec))
		must.OK(t, yaml.Unmarshal(spec, &gotSpec))
		if !reflect.DeepEqual(gotSpec, wantSpec) {
			t.Errorf("%s: spec is\n%s\nwant%s", kind, spec, text)
		}
		decode(t, got)
	}
}
