package v1alpha1_test

import (
	"fmt"
	"slices"
	"strings"
)

func letters(n int) string { return strings.Repeat("a", n) }

// keys returns a map with n entries.
func keys(n int) fields {
	out := fields{}
	for i := range n {
		out[fmt.Sprintf("k%d", i)] = "v"
	}
	return out
}

const uid = "6a204bd8-9a53-4a6e-8a38-6a4c1e6f0d5b"

var (
	certManager = fields{"spec/tls": fields{"source": "CertManager",
		"certManager": fields{"issuerRef": fields{"name": "ca"}}}}
	provided   = fields{"spec/tls": fields{"source": "Provided", "provided": fields{"secretPrefix": "given-"}}}
	issuedFrom = fields{"spec/access/issuers": []fields{{"url": "https://id.example.org",
		"keysFrom": fields{"configMapName": "a"}}}}
	issued   = fields{"spec/access/issuers": issuer()}
	named    = fields{"spec/groups": fields{"routing": "Named"}}
	restored = fields{"spec/restore": fields{"url": "s3://backups/quotes", "storeUID": uid}}
	someOf   = fields{"spec/groups": named["spec/groups"], "spec/restore": restored["spec/restore"]}
	external = fields{"spec/etcd": fields{"external": fields{"endpoints": []string{"https://etcd-0.example:2379"},
		"tlsSecretRef": fields{"name": "etcd-client"}}}}
)

var recordStoreCases = append(append(append([]badCase{
	{field: "metadata/name", value: letters(41), at: "<nil>", says: "at most 40 characters"},
	{field: "metadata/name", value: letters(253), at: "<nil>", says: "at most 40 characters"},
	{field: "metadata/name", value: "1quotes", at: "<nil>", says: "must begin with a letter"},
	{field: "metadata/name", value: "quo.tes", at: "<nil>", says: "a-z, 0-9 and -"},
	{field: "metadata/name", value: "株価", says: "lowercase RFC 1123"},
	{field: "metadata/name", value: "Quotes", says: "lowercase RFC 1123"},
	{field: "spec", value: nil, says: "Required value"},

	{field: "spec/groups", value: nil, says: "Required value"},
	{field: "spec/groups/routing", value: nil, says: "Required value"},
	{field: "spec/groups/routing", value: "hash", says: `supported values: "Hash", "Named"`},
	{field: "spec/groups/routing", value: "", says: "supported values"},
	{field: "spec/groups/count", value: nil, says: "routing Hash needs groups.count"},
	{field: "spec/groups/count", value: 0, says: "greater than or equal to 1"},
	{field: "spec/groups/count", value: -1, says: "greater than or equal to 1"},
	{field: "spec/groups/count", value: 65537, says: "less than or equal to 65536"},
	{field: "spec/groups/count", value: 16, with: named, says: "routing Named has no groups.count: remove it"},
	{field: "spec/groups/max", value: 10, says: "routing Hash has no groups.max: remove it"},
	{field: "spec/groups/max", value: 0, with: named, says: "greater than or equal to 1"},
	{field: "spec/groups/max", value: 100001, with: named, says: "less than or equal to 100000"},
	{field: "spec/groups/count", value: 512, update: true, says: "groups.count cannot be changed: make a new RecordStore"},
	{field: "spec/groups", value: fields{"routing": "Named"}, update: true, at: "spec.groups.routing",
		says: "groups.routing cannot be changed: make a new RecordStore"},

	{field: "spec/replication/copies", value: 0, says: "greater than or equal to 1"},
	{field: "spec/replication/copies", value: 2, says: "copies must be odd (1, 3 or 5)"},
	{field: "spec/replication/copies", value: 4, says: "copies must be odd (1, 3 or 5)"},
	{field: "spec/replication/copies", value: 7, says: "less than or equal to 5"},
	{field: "spec/replication/topologyKey", value: "", says: "supported values"},
	{field: "spec/replication/topologyKey", value: "example.org/rack",
		says: `supported values: "kubernetes.io/hostname", "topology.kubernetes.io/zone", "topology.kubernetes.io/region"`},

	{field: "spec/access/issuers", value: issuers(9), says: "must have at most 8 items"},
	{field: "spec/access/issuers", value: append(issuers(1), issuers(1)...), at: "spec.access.issuers[1]",
		says: "Duplicate value"},
	{field: "spec/access/issuers/0", value: fields{}, at: "spec.access.issuers[0].url", says: "Required value"},
	{field: "spec/access/issuers/0/url", value: "http://id.example.org", with: issued, says: "must begin with https://"},
	{field: "spec/access/issuers/0/url", value: "https://", with: issued, says: "must be https://HOST"},
	{field: "spec/access/issuers/0/url", value: "https://ada@id.example.org", with: issued,
		says: "no user, query or fragment"},
	{field: "spec/access/issuers/0/url", value: "https://id.example.org/?a", with: issued,
		says: "no user, query or fragment"},
	{field: "spec/access/issuers/0/url", value: "https://id.example.org/#a", with: issued,
		says: "no user, query or fragment"},
	{field: "spec/access/issuers/0/url", value: "https://id example.org", with: issued,
		says: "no user, query or fragment"},
	{field: "spec/access/issuers/0/url", value: "https://" + letters(505), with: issued, says: "may not be more than 512"},
	{field: "spec/access/issuers/0/audiences", value: []string{}, with: issued, says: "at least 1 items"},
	{field: "spec/access/issuers/0/audiences", value: numbered("a%d", 9), with: issued, says: "must have at most 8 items"},
	{field: "spec/access/issuers/0/audiences/0", value: "", with: issued, says: "at least 1 chars long"},
	{field: "spec/access/issuers/0/audiences/0", value: "a b", with: issued, says: "an audience holds"},
	{field: "spec/access/issuers/0/audiences/0", value: letters(513), with: issued, says: "may not be more than 512"},
	{field: "spec/access/issuers/0/groupsClaim", value: "a b", with: issued, says: "groupsClaim holds"},
	{field: "spec/access/issuers/0/groupsClaim", value: "", with: issued, says: "at least 1 chars long"},
	{field: "spec/access/issuers/0/groupsClaim", value: letters(129), with: issued, says: "may not be more than 128"},
	{field: "spec/access/issuers/0/caBundle", value: "none", with: issued, says: "must hold certificates in PEM"},
	{field: "spec/access/issuers/0/caBundle", value: letters(65537), with: issued, says: "may not be more than 65536"},
	{field: "spec/access/issuers/0/keysFrom/configMapName", value: nil, with: issuedFrom, says: "Required value"},
	{field: "spec/access/issuers/0/keysFrom/configMapName", value: "", with: issuedFrom, says: "at least 1 chars long"},
	{field: "spec/access/issuers/0/keysFrom/configMapName", value: letters(254), with: issuedFrom,
		says: "may not be more than 253"},
	{field: "spec/access/issuers/0/keysFrom/configMapName", value: "A", with: issuedFrom,
		says: "must be the name of a ConfigMap"},
	{field: "spec/access/issuers/0/keysFrom", value: fields{"configMapName": "a"}, with: issued,
		at: "spec.access.issuers[0]", says: "or keysFrom"},
	{field: "spec/access/issuers/0/caBundle", value: nil, with: issued, at: "spec.access.issuers[0]",
		says: "give caBundle"},

	{field: "spec/networkPolicy/mode", value: "On", says: `supported values: "Managed", "None"`},
	{field: "spec/networkPolicy/directClients", value: "Nobody", says: `supported values: "Any", "Labelled"`},
	{field: "spec/retention/versions", value: 0, says: "greater than or equal to 1"},
	{field: "spec/retention/versions", value: 1001, says: "less than or equal to 1000"},
	{field: "spec/retention/minAge", value: "-1s", says: "from 0s to 87600h"},
	{field: "spec/retention/minAge", value: "1d", says: "such as 90s, 15m or 24h"},
	{field: "spec/retention/minAge", value: "87601h", says: "from 0s to 87600h"},
	{field: "spec/retention/minAge", value: "", says: "from 0s to 87600h"},
	{field: "spec/retention/minAge", value: letters(33), says: "may not be more than 32"},

	{field: "spec/compaction", value: fields{}, says: "should have at least 1 properties"},
	{field: "spec/compaction/supersededPercent", value: 0, says: "greater than or equal to 1"},
	{field: "spec/compaction/supersededPercent", value: 101, says: "less than or equal to 100"},
	{field: "spec/compaction/minSuperseded", value: "1023Ki", says: "from 1Mi to 1Ti"},
	{field: "spec/compaction/minSuperseded", value: "64MB", says: "such as 16Mi"},
	{field: "spec/compaction/minSuperseded", value: letters(33), says: "may not be more than 32"},
	{field: "spec/compaction/bytesPerSecond", value: "0", says: "from 1Mi to 1Ti"},
	{field: "spec/compaction/bytesPerSecond", value: "2Ti", says: "such as 64Mi"},
	{field: "spec/compaction/bytesPerSecond", value: letters(33), says: "may not be more than 32"},

	{field: "spec/views", value: fields{}, says: "should have at least 1 properties"},
	{field: "spec/views/maxHeld", value: "0", says: "from 64Mi to 1Pi"},
	{field: "spec/views/maxHeld", value: "65535Ki", says: "from 64Mi to 1Pi"},
	{field: "spec/views/maxHeld", value: "1025Ti", says: "from 64Mi to 1Pi"},
	{field: "spec/views/maxHeld", value: "10%", says: "such as 20Gi"},
	{field: "spec/views/maxHeld", value: letters(33), says: "may not be more than 32"},

	{field: "spec/replication/copies", value: 5, update: true, at: "spec.replication.copies",
		says: "replication.copies cannot be changed"},
	{field: "spec/etcd", value: fields{}, says: "exactly one of etcd.managed and etcd.external"},
	{field: "spec/etcd/managed", value: fields{"members": 1}, with: external, at: "spec.etcd",
		says: "exactly one of etcd.managed and etcd.external"},
	{field: "spec/etcd", value: fields{"external": fields{"endpoints": []string{"https://a:1"}}}, update: true,
		says: "cannot be changed between managed and external"},
	{field: "spec/etcd", value: fields{"managed": fields{"members": 3}}, with: external, update: true,
		says: "cannot be changed between managed and external"},
	{field: "spec/etcd/managed/members", value: 2, says: "supported values: \"1\", \"3\""},
	{field: "spec/etcd/managed/members", value: 5, says: "supported values: \"1\", \"3\""},
	{field: "spec/etcd/managed/members", value: 1, update: true, at: "spec.etcd.managed",
		says: "members cannot be changed"},
	{field: "spec/etcd/managed/storage/size", value: "1Mi", says: "from 64Mi to 4Pi"},
	{field: "spec/etcd/managed/storage/size", value: "5Pi", says: "from 64Mi to 4Pi"},
	{field: "spec/etcd/managed/storage/size", value: "lots", says: "such as 500Gi"},
	{field: "spec/etcd/managed/storage/size", value: "1Gi", update: true, says: "size can only grow"},
	{field: "spec/etcd/managed/storage/storageClassName", value: "", says: "at least 1 chars long"},
	{field: "spec/etcd/managed/storage/storageClassName", value: "Fast",
		says: "storageClassName must be the name of a StorageClass"},
	{field: "spec/etcd/managed/storage/storageClassName", value: letters(254), says: "may not be more than 253"},
	{field: "spec/etcd/managed/storage/storageClassName", value: "fast", update: true,
		says: "storageClassName cannot be changed"},
	{field: "spec/etcd/managed/snapshotEvery", value: "59s", says: "from 1m to 168h"},
	{field: "spec/etcd/managed/snapshotEvery", value: "169h", says: "from 1m to 168h"},
	{field: "spec/etcd/managed/snapshotEvery", value: "hourly", says: "such as 90s, 15m or 24h"},

	{field: "spec/etcd/external/endpoints", value: nil, with: fields{"spec/etcd/external/prefix": "/a"},
		says: "Required value"},
	{field: "spec/etcd/external/endpoints", value: []string{}, says: "should have at least 1 items"},
	{field: "spec/etcd/external/endpoints", value: numbered("https://a:%d", 10), says: "must have at most 9 items"},
	{field: "spec/etcd/external/endpoints", value: []string{"https://a:1", "https://a:1"},
		at: "spec.etcd.external.endpoints[1]", says: "Duplicate value"},
	{field: "spec/etcd/external/endpoints", value: []string{"https://a:1", "http://b:1"}, says: "all https or all http"},
	{field: "spec/etcd/external/endpoints/0", value: "etcd:2379", says: "such as https://etcd-0.example:2379"},
	{field: "spec/etcd/external/endpoints/0", value: "https://etcd", says: "a host and a port"},
	{field: "spec/etcd/external/endpoints/0", value: "https://me:secret@etcd:2379", says: "a host and a port"},
	{field: "spec/etcd/external/endpoints/0", value: "https://etcd:2379/path", says: "without a path"},
	{field: "spec/etcd/external/endpoints/0", value: "https://" + letters(600) + ":1", says: "may not be more than 512"},
	{field: "spec/etcd/external/tlsSecretRef/name", value: "", with: external, says: "must be the name of a Secret"},
	{field: "spec/etcd/external/tlsSecretRef/name", value: "My_Secret", with: external,
		says: "must be the name of a Secret"},
	{field: "spec/etcd/external/tlsSecretRef/name", value: letters(254), with: external,
		says: "must be the name of a Secret"},
	{field: "spec/etcd/external/tlsSecretRef", value: fields{"name": "a"},
		with: fields{"spec/etcd/external/endpoints": []string{"http://a:1"}},
		says: "tlsSecretRef needs endpoints that begin with https"},
	{field: "spec/etcd/external/endpoints", value: []string{"https://a:1"},
		says: "need tlsSecretRef: name a Secret with ca.crt"},
	{field: "spec/etcd/external/tlsSecretRef", value: nil, with: external, update: true,
		at: "spec.etcd.external.endpoints", says: "need tlsSecretRef"},
	{field: "spec/etcd/external/prefix", value: "teams/a", with: external, says: "must be a path"},
	{field: "spec/etcd/external/prefix", value: "/teams/", with: external, says: "without a / at its end"},
	{field: "spec/etcd/external/prefix", value: "/" + letters(128), with: external, says: "may not be more than 128"},
	{field: "spec/etcd/external/prefix", value: "/b", with: external, update: true, says: "prefix cannot be changed"},

	{field: "spec/gateway/replicas", value: -1, says: "greater than or equal to 0"},
	{field: "spec/gateway/replicas", value: 101, says: "less than or equal to 100"},
	{field: "spec/gateway/serviceType", value: "ExternalName",
		says: `supported values: "ClusterIP", "LoadBalancer", "NodePort"`},
	{field: "spec/gateway/serviceAnnotations", value: fields{"a b": "c"}, says: "a name of an annotation is letters"},
	{field: "spec/gateway/serviceAnnotations", value: fields{letters(64): "c"}, says: "at most 63"},
	{field: "spec/gateway/serviceAnnotations", value: keys(33), says: "must have at most 32 items"},
	{field: "spec/gateway/serviceAnnotations/a", value: 7, says: "must be of type string"},
	{field: "spec/gateway/recordsHTTP", value: "yes", says: "must be of type boolean"},

	{field: "spec/audit/mode", value: "All", says: `supported values: "None", "Refusals", "Writes"`},
	{field: "spec/audit", value: fields{"mode": "Writes"}, with: fields{"spec/tls": fields{"mode": "Disabled"}},
		says: "audit needs TLS"},
	{field: "spec/audit", value: fields{}, with: fields{"spec/tls": fields{"mode": "Disabled"}}, says: "audit needs TLS"},

	{field: "spec/tracing", value: fields{"sampleRatio": "0.5"}, at: "spec.tracing.endpoint", says: "Required value"},
	{field: "spec/tracing/endpoint", value: "collector:4317", says: "endpoint must be http, a host and a port"},
	{field: "spec/tracing/endpoint", value: "https://collector:4317", says: "endpoint must be http, a host and a port"},
	{field: "spec/tracing/endpoint", value: "http://" + letters(600) + ":1", says: "may not be more than 512"},
	{field: "spec/tracing/sampleRatio", value: "1.1", with: fields{"spec/tracing/endpoint": "http://a:1"},
		says: "a number from 0 to 1"},
	{field: "spec/tracing/sampleRatio", value: letters(17), with: fields{"spec/tracing/endpoint": "http://a:1"},
		says: "may not be more than 16"},

	{field: "spec/tls/mode", value: "On", says: `supported values: "Required", "Optional", "Disabled"`},
	{field: "spec/tls/source", value: "Vault", says: `supported values: "Operator", "CertManager", "Provided"`},
	{field: "spec/tls/source", value: "CertManager", at: "spec.tls",
		says: "certManager is for source CertManager, which needs it"},
	{field: "spec/tls/source", value: "Provided", at: "spec.tls", says: "provided is for source Provided, which needs it"},
	{field: "spec/tls/certManager", value: fields{"issuerRef": fields{"name": "ca"}}, at: "spec.tls",
		says: "certManager is for source CertManager"},
	{field: "spec/tls/certManager", value: fields{}, at: "spec.tls.certManager.issuerRef", says: "Required value"},
	{field: "spec/tls/certManager/issuerRef/name", value: "", with: certManager, says: "at least 1 chars long"},
	{field: "spec/tls/certManager/issuerRef/name", value: letters(254), with: certManager,
		says: "may not be more than 253"},
	{field: "spec/tls/certManager/issuerRef/name", value: "My Issuer", with: certManager,
		says: "issuerRef.name is the name of an issuer"},
	{field: "spec/tls/certManager/issuerRef/kind", value: "cluster-issuer", with: certManager,
		says: "issuerRef.kind is the kind of an issuer"},
	{field: "spec/tls/certManager/issuerRef/group", value: "Example.org", with: certManager,
		says: "issuerRef.group is the group of a kind"},
	{field: "spec/tls/certManager/issuerRef/kind", value: letters(64), with: certManager, says: "may not be more than 63"},
	{field: "spec/tls/certManager/issuerRef/group", value: letters(254), with: certManager,
		says: "may not be more than 253"},
	{field: "spec/tls/provided", value: fields{"secretPrefix": "given-"}, at: "spec.tls",
		says: "provided is for source Provided"},
	{field: "spec/tls/provided/secretPrefix", value: "", with: provided, says: "at least 1 chars long"},
	{field: "spec/tls/provided/secretPrefix", value: "Given", with: provided, says: "secretPrefix is lower case letters"},
	{field: "spec/tls/provided/secretPrefix", value: letters(101), with: provided, says: "may not be more than 100"},
	{field: "spec/tls/rotate", value: "1", with: certManager, at: "spec.tls", says: "rotate is for source Operator"},
	{field: "spec/tls/clients", value: []string{"a"}, with: provided, at: "spec.tls",
		says: "clients is for the sources Operator and CertManager"},
	{field: "spec/tls/publishTo", value: numbered("n%d", 65), says: "must have at most 64 items"},
	{field: "spec/tls/publishTo", value: []string{"a", "a"}, at: "spec.tls.publishTo[1]", says: "Duplicate value"},
	{field: "spec/tls/publishTo/0", value: "Team A", at: "spec.tls.publishTo[0]", says: "names of namespaces"},
	{field: "spec/tls/publishTo/0", value: letters(64), at: "spec.tls.publishTo[0]", says: "may not be more than 63"},
	{field: "spec/tls/clients", value: numbered("c%d", 65), says: "must have at most 64 items"},
	{field: "spec/tls/clients", value: []string{"a", "a"}, at: "spec.tls.clients[1]", says: "Duplicate value"},
	{field: "spec/tls/clients/0", value: "The Reader", at: "spec.tls.clients[0]",
		says: "lower case letters, digits and -"},
	{field: "spec/tls/clients/0", value: letters(64), at: "spec.tls.clients[0]", says: "may not be more than 63"},
	{field: "spec/tls/gatewayNames", value: numbered("g%d", 17), says: "must have at most 16 items"},
	{field: "spec/tls/gatewayNames", value: []string{"a", "a"}, at: "spec.tls.gatewayNames[1]", says: "Duplicate value"},
	{field: "spec/tls/gatewayNames/0", value: "https://quotes.example.org", at: "spec.tls.gatewayNames[0]",
		says: "a name of the gateway is a DNS name"},
	{field: "spec/tls/gatewayNames/0", value: letters(254), at: "spec.tls.gatewayNames[0]",
		says: "may not be more than 253"},
	{field: "spec/tls/rotate", value: "next week", says: "rotate holds letters, digits"},
	{field: "spec/tls/rotate", value: letters(65), says: "may not be more than 64"},

	{field: "spec/image", value: "", says: "at least 1 chars long"},
	{field: "spec/image", value: " example.org/sheaf:v1", says: "remove spaces"},
	{field: "spec/image", value: "--privileged", says: "must be an image's name"},
	{field: "spec/image", value: letters(513), says: "may not be more than 512"},
	{field: "spec/imagePullPolicy", value: "Sometimes", says: `supported values: "Always", "IfNotPresent", "Never"`},
	{field: "spec/imagePullSecrets", value: []fields{{"name": "a"}, {"name": "b"}, {"name": "c"}, {"name": "d"},
		{"name": "e"}}, says: "must have at most 4 items"},
	{field: "spec/imagePullSecrets", value: []fields{{"name": "a"}, {"name": "a"}}, at: "spec.imagePullSecrets[1]",
		says: "Duplicate value"},
	{field: "spec/imagePullSecrets/0/name", value: "", at: "spec.imagePullSecrets", says: "must be the name of a Secret"},
	{field: "spec/imagePullSecrets/0/name", value: letters(254), at: "spec.imagePullSecrets",
		says: "must be the name of a Secret"},
	{field: "spec/deletionPolicy", value: "Recycle", says: `supported values: "Retain", "Delete"`},
	{field: "spec/adoptStoreUID", value: "quotes", says: "storeUID that the status of the old RecordStore showed"},
	{field: "spec/adoptStoreUID", value: uid + "0", says: "may not be more than 36"},
	{field: "spec/adoptStoreUID", value: uid, update: true,
		says: "adoptStoreUID cannot be changed: make a new RecordStore"},
	{field: "spec/adoptStoreUID", value: nil, with: fields{"spec/adoptStoreUID": uid}, update: true,
		says: "adoptStoreUID cannot be changed"},

	{field: "spec/restore", value: fields{}, at: "spec.restore.url", says: "Required value"},
	{field: "spec/restore", value: fields{"url": "s3://backups"}, at: "spec.restore.storeUID", says: "Required value"},
	{field: "spec/restore", value: nil, with: restored, update: true, says: "restore cannot be changed"},
	{field: "spec/restore", value: restored["spec/restore"], update: true, says: "restore cannot be changed"},
	{field: "spec/restore/point", value: "other", with: restored, update: true, at: "spec.restore",
		says: "restore cannot be changed: make a new RecordStore"},
	{field: "spec/restore", value: restored["spec/restore"], with: fields{"spec/adoptStoreUID": uid},
		says: "give restore or adoptStoreUID, not both"},
	{field: "spec/restore/groups", value: []string{"eu"}, with: restored,
		says: "restore.groups to restore the whole store"},
	{field: "spec/restore/groups", value: []string{}, with: someOf, says: "should have at least 1 items"},
	{field: "spec/restore/groups", value: numbered("g%d", 101), with: someOf, says: "must have at most 100 items"},
	{field: "spec/restore/groups", value: []string{"a", "a"}, with: someOf, at: "spec.restore.groups[1]",
		says: "Duplicate value"},
	{field: "spec/restore/groups", value: []string{".a"}, with: someOf, at: "spec.restore.groups[0]",
		says: "should match"},
	{field: "spec/restore/groups", value: []string{letters(254)}, with: someOf, at: "spec.restore.groups[0]",
		says: "may not be more than 253"},
	{field: "spec/restore/groups/0", value: "", with: someOf, says: "should match"},
	{field: "spec/restore/first/0", value: "", with: restored, says: "should match"},
	{field: "spec/restore/first", value: numbered("g%d", 101), with: restored, says: "must have at most 100 items"},
	{field: "spec/restore/first", value: []string{"a", "a"}, with: restored, at: "spec.restore.first[1]",
		says: "Duplicate value"},
	{field: "spec/restore/first", value: []string{"a/b"}, with: restored, at: "spec.restore.first[0]",
		says: "should match"},
	{field: "spec/restore/first", value: []string{letters(254)}, with: restored, at: "spec.restore.first[0]",
		says: "may not be more than 253"},
	{field: "spec/restore/writes", value: "Never", with: restored,
		says: `supported values: "Redundant", "AtOnce"`},
	{field: "spec/restore/writes", value: "AtOnce", with: restored, update: true, at: "spec.restore",
		says: "restore cannot be changed"},
	{field: "spec/restore/url", value: "file:///backups", with: restored, says: "url must be s3://BUCKET/PATH"},
	{field: "spec/restore/url", value: "s3://key:secret@backups", with: restored, says: "without a user or a key"},
	{field: "spec/restore/url", value: "s3://" + letters(1024), with: restored, says: "may not be more than 1024"},
	{field: "spec/restore/credentialsSecretRef", value: fields{}, with: restored,
		at: "spec.restore.credentialsSecretRef.name", says: "Required value"},
	{field: "spec/restore/credentialsSecretRef/name", value: "", with: restored, says: "at least 1 chars long"},
	{field: "spec/restore/credentialsSecretRef/name", value: "other/secret", with: restored,
		says: "must be the name of a Secret"},
	{field: "spec/restore/credentialsSecretRef/name", value: letters(254), with: restored,
		says: "may not be more than 253"},
	{field: "spec/restore/encryption", value: fields{}, with: restored,
		at: "spec.restore.encryption.secretRef", says: "Required value"},
	{field: "spec/restore/encryption/secretRef", value: fields{}, with: restored,
		at: "spec.restore.encryption.secretRef.name", says: "Required value"},
	{field: "spec/restore/encryption/secretRef/name", value: "", with: restored, says: "at least 1 chars long"},
	{field: "spec/restore/encryption/secretRef/name", value: "other/secret", with: restored,
		says: "must be the name of a Secret"},
	{field: "spec/restore/encryption/secretRef/name", value: letters(254), with: restored,
		says: "may not be more than 253"},
	{field: "spec/restore/serviceAccountName", value: "default", with: restored,
		says: "the operator may use no other ServiceAccount"},
	{field: "spec/restore/serviceAccountName", value: "sheaf-archive-" + letters(50), with: restored,
		says: "may not be more than 63"},
	{field: "spec/restore/serviceAccountName", value: "sheaf-archive", with: fields{"spec/restore": fields{
		"url": "s3://backups/quotes", "storeUID": uid, "credentialsSecretRef": fields{"name": "a"}}},
		says: "give credentialsSecretRef or serviceAccountName, not both"},
	{field: "spec/restore/storeUID", value: "quotes", with: restored, says: "must be the UUID of the archived store"},
	{field: "spec/restore/storeUID", value: uid + "0", with: restored, says: "may not be more than 36"},
	{field: "spec/restore/time", value: "yesterday", with: restored, says: "time must be a time such as"},
	{field: "spec/restore/time", value: "2026-11-01 12:00:00", with: restored, says: "time must be a time such as"},
	{field: "spec/restore/time", value: letters(41), with: restored, says: "may not be more than 40"},
	{field: "spec/restore/point", value: "Before upgrade", with: restored, says: "must be the name of a point"},
	{field: "spec/restore/point", value: letters(64), with: restored, says: "may not be more than 63"},
	{field: "spec/restore/point", value: "p", with: fields{"spec/restore": fields{"url": "s3://backups/quotes",
		"storeUID": uid, "time": "2026-11-01T12:00:00Z"}}, says: "give time or point, not both"},
}, resourcesCases("spec/etcd/managed/resources")...),
	resourcesCases("spec/gateway/resources")...),
	slices.Concat(schedulingCases("spec/etcd/managed/scheduling"), schedulingCases("spec/gateway/scheduling"),
		podCases("spec/gateway"), podCases("spec/etcd/managed"))...)

// resourcesCases returns the bad cases of a field that holds requests and limits.
func resourcesCases(path string) []badCase {
	c := func(below string, value any, at, says string) badCase {
		out := badCase{field: path + "/" + below, value: value, says: says}
		if at != "" {
			out.at = formatPath(path) + at
		}
		return out
	}
	cases := []badCase{
		c("claims/0/name", "gpu", ".claims", "resources.claims is not supported: remove it"),
		{field: path + "/claims/0/request", value: "gpu", with: fields{path + "/claims/0/name": "a"},
			at: formatPath(path) + ".claims", says: "resources.claims is not supported: remove it"},
		c("limits", fields{"example.org/disk": "1"}, "",
			"limits may have cpu, memory and ephemeral-storage only: remove the others"),
		c("requests", fields{"hugepages-2Mi": "1Gi"}, "",
			"requests may have cpu, memory and ephemeral-storage only: remove the others"),
	}
	for _, name := range []string{"cpu", "memory", "ephemeral-storage"} {
		least := "above 0"
		if name == "memory" {
			least = "of at least 32Mi, below which no process of Sheaf starts"
			cases = append(cases, c("limits/memory", "1k", ".limits", least), c("limits/memory", "33554431", ".limits", least))
		}
		cases = append(cases,
			c("limits/"+name, "0", ".limits", name+" of limits must be a quantity "+least),
			c("limits/"+name, "-1", ".limits", name+" of limits must be a quantity "+least),
			c("limits/"+name, "1e1.5", ".limits", name+" of limits must be a quantity "+least),
			c("limits/"+name, "much", "", "should match"),
			c("requests/"+name, "-1", ".requests", name+" of requests must be a quantity not below 0"),
			c("requests/"+name, "1e1.5", ".requests", name+" of requests must be a quantity not below 0"),
			c("requests/"+name, "much", "", "should match"),
		)
		above := badCase{field: path + "/requests/" + name, value: "2Gi", with: fields{path + "/limits/" + name: "1Gi"},
			at:   formatPath(path) + ".requests",
			says: name + " of requests is above that of limits: lower the request or raise the limit"}
		cases = append(cases, above)
	}
	return cases
}

// podCases returns the bad cases of a field that holds labels, annotations and environment variables of pods.
func podCases(path string) []badCase {
	c := func(below string, value any, says string) badCase {
		return badCase{field: path + "/" + below, value: value, says: says}
	}
	return []badCase{
		c("podLabels", keys(17), "must have at most 16 items"),
		c("podLabels", fields{"a b": "c"}, "a name of podLabels is letters"),
		c("podLabels", fields{"sheaf.dev/pool": "c"}, "podLabels must not hold names of sheaf.dev or kubernetes.io"),
		c("podLabels", fields{"app.kubernetes.io/name": "c"}, "but for app.kubernetes.io/part-of and /version"),
		c("podLabels", fields{"topology.kubernetes.io/zone": "c"}, "podLabels must not hold names"),
		c("podLabels/a", letters(64), "may not be more than 63"),
		c("podLabels/a", "b c", "should match"),
		c("podAnnotations", keys(17), "must have at most 16 items"),
		c("podAnnotations", fields{"a b": "c"}, "a name of podAnnotations is letters"),
		c("podAnnotations", fields{"sheaf.dev/template": "c"}, "podAnnotations must not hold names of sheaf.dev"),
		c("podAnnotations/a", 7, "must be of type string"),
		c("extraEnv", envVars(33), "must have at most 32 items"),
		{field: path + "/extraEnv", value: []fields{{"name": "A"}, {"name": "A", "value": "b"}},
			at: formatPath(path) + ".extraEnv[1]", says: "Duplicate value"},
		c("extraEnv/0/name", "", "a name of extraEnv is letters"),
		c("extraEnv/0/name", "A=B", "a name of extraEnv is letters"),
		c("extraEnv/0/name", "1A", "begins with no digit"),
		c("extraEnv/0/name", letters(129), "may not be more than 128"),
		c("extraEnv/0/name", "SHEAF_TLS_DIR", "extraEnv must not hold names that the operator sets"),
		c("extraEnv/0/name", "EXPECT_VOLUME", "extraEnv must not hold names that the operator sets"),
		c("extraEnv/0/name", "OTEL_TRACES_SAMPLER", "and those of spec.tracing"),
		{field: path + "/extraEnv/0/value", value: letters(4097), with: fields{path + "/extraEnv": []fields{{"name": "A"}}},
			says: "may not be more than 4096"},
		{field: path + "/extraEnv/0/value", value: "a\x00b", with: fields{path + "/extraEnv": []fields{{"name": "A"}}},
			says: "must not hold the byte 0"},
	}
}

// envVars returns n environment variables.
func envVars(n int) (out []fields) {
	for i := range n {
		out = append(out, fields{"name": fmt.Sprintf("V%d", i)})
	}
	return out
}

// schedulingCases returns the bad cases of a field that says where pods may run.
func schedulingCases(path string) []badCase {
	c := func(below string, value any, at, says string) badCase {
		out := badCase{field: path + "/" + below, value: value, says: says}
		if at != "" {
			out.at = formatPath(path) + at
		}
		return out
	}
	return []badCase{
		c("nodeSelector", keys(9), "", "must have at most 8 items"),
		c("nodeSelector", fields{"a b": "c"}, "", "nodeSelector must hold labels of nodes"),
		c("nodeSelector/a", "b c", ".nodeSelector", "nodeSelector must hold values of labels"),
		c("nodeSelector/a", letters(64), ".nodeSelector", "at most 63"),
		c("tolerations", tolerations(9), "", "must have at most 8 items"),
		c("tolerations/0/key", "a b", ".tolerations", "tolerations[].key must be the key of a taint"),
		c("tolerations/0/key", "", ".tolerations", "tolerations[] without a key needs operator: Exists"),
		c("tolerations/0/operator", "NotEqual", ".tolerations", "tolerations[].operator must be Exists or Equal"),
		c("tolerations/0", fields{"key": "a", "operator": "Exists", "value": "b"}, ".tolerations",
			"not allowed beside operator: Exists"),
		c("tolerations/0/value", "b c", ".tolerations", "tolerations[].value must be the value of a taint"),
		c("tolerations/0/effect", "Evict", ".tolerations",
			"tolerations[].effect must be NoSchedule, PreferNoSchedule or NoExecute"),
		c("tolerations/0/tolerationSeconds", 60, ".tolerations", "tolerations[].tolerationSeconds needs effect: NoExecute"),
		c("priorityClassName", "Very High", "", "priorityClassName must be the name of a PriorityClass"),
		c("priorityClassName", letters(254), "", "may not be more than 253"),
		c("affinity", fields{"podAntiAffinity": fields{"requiredDuringSchedulingIgnoredDuringExecution": []fields{{}}}},
			".affinity.podAntiAffinity.requiredDuringSchedulingIgnoredDuringExecution[0].topologyKey", "Required value"),
		c("topologySpreadConstraints", []fields{spread("a", 1), spread("a", 1)}, ".topologySpreadConstraints[1]",
			"Duplicate value"),
		c("topologySpreadConstraints", []fields{spread("a", 0)}, "", "maxSkew must be at least 1"),
		c("topologySpreadConstraints", []fields{{"maxSkew": 1, "topologyKey": "a", "whenUnsatisfiable": "Never"}}, "",
			"must be DoNotSchedule or ScheduleAnyway"),
	}
}

func spread(key string, skew int) fields {
	return fields{"maxSkew": skew, "topologyKey": key, "whenUnsatisfiable": "DoNotSchedule"}
}

func tolerations(n int) []fields {
	out := make([]fields, n)
	for i := range out {
		out[i] = fields{"key": fmt.Sprintf("k%d", i)}
	}
	return out
}

func numbered(format string, n int) []string {
	out := make([]string, n)
	for i := range out {
		out[i] = fmt.Sprintf(format, i)
	}
	return out
}

// issuer returns one issuer of tokens, with the given fields.
func issuer(with ...any) []fields {
	out := fields{"url": "https://id.example.org", "caBundle": "-----BEGIN CERTIFICATE-----"}
	for i := 0; i < len(with); i += 2 {
		out[with[i].(string)] = with[i+1]
	}
	return []fields{out}
}

func issuers(n int) (all []fields) {
	for _, url := range numbered("https://id-%d.example.org", n) {
		all = append(all, issuer("url", url)...)
	}
	return all
}
