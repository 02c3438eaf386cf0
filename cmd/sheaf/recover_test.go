package main

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"

	"sheaf.dev/sheaf/client/recordv1"
	"sheaf.dev/sheaf/internal/test/loopback"
)

// cluster is a store of real processes: etcd, shards and a gateway.
type cluster struct {
	t        *testing.T
	etcdDir  string
	endpoint string
	dirs     map[string]string
	address  map[string]string
	etcd     *process
	gateway  *process
	shards   map[string]*process
}

func newCluster(t *testing.T) *cluster {
	return newClusterOf(t, []string{"a", "b"}, "--shards-min", "2")
}

func newClusterOf(t *testing.T, shards []string, gateway ...string) *cluster {
	c := &cluster{
		t: t, etcdDir: filepath.Join(t.TempDir(), "etcd"), endpoint: loopback.Free(t), dirs: map[string]string{},
		address: map[string]string{},
		shards:  map[string]*process{},
	}
	for _, name := range shards {
		c.dirs[name], c.address[name] = t.TempDir(), loopback.Free(t)
	}
	c.startEtcd("new")
	c.startGateway(append([]string{"--create", "--groups", "4"}, gateway...)...)
	for _, name := range shards {
		c.startShard(name)
	}
	c.putAll()
	return c
}

var clusterIDs = strings.Fields("1 2 3 4 5 6 7 8 9 10 11 12")

// putAll stores a record for each id in clusterIDs. It retries each put until the shard that has the record's group
// accepts it.
func (c *cluster) putAll() {
	c.t.Helper()
	for _, id := range clusterIDs {
		eventually(c.t, func() bool {
			return sheaf(c.t, strings.NewReader("r"+id), "put", id, "--server", c.gateway.server).Code == 0
		})
	}
}

func (c *cluster) startEtcd(state string) {
	c.t.Helper()
	http := loopback.Free(c.t)
	c.etcd = serve(c.t, "etcd", "--name", "e", "--dir", c.etcdDir, "--listen-client", c.endpoint, "--listen-peer",
		loopback.Free(c.t),
		"--initial-cluster-state", state, "--http", http)
	c.etcd.http = http
	c.etcd.waitReady(c.t)
}

func (c *cluster) startGateway(more ...string) {
	c.t.Helper()
	server, http := loopback.Free(c.t), loopback.Free(c.t)
	c.gateway = serve(c.t, append([]string{"gateway", "--listen", server, "--http", http, "--etcd", c.endpoint, "--store",
		"quotes"}, more...)...)
	c.gateway.server, c.gateway.http = server, http
	c.gateway.waitReady(c.t)
}

func (c *cluster) startShard(name string, more ...string) {
	c.t.Helper()
	http := loopback.Free(c.t)
	c.shards[name] = serve(c.t, append([]string{
		"shard", "--name", name, "--dir", c.dirs[name], "--listen", c.address[name], "--http", http,
		"--etcd", c.endpoint, "--store", "quotes", "--stay",
	}, more...)...)
	c.shards[name].http = http
}

// checkRecords reads every record through the gateway. If a call fails, holds repeats it if mayWait is set, and
// otherwise fails the test.
func (c *cluster) checkRecords(what string, mayWait bool) {
	c.t.Helper()
	for _, id := range clusterIDs {
		get := func() bool {
			o := sheaf(c.t, nil, "get", id, "--server", c.gateway.server)
			if o.Code == 0 && o.Stdout != "r"+id {
				c.t.Fatalf("%s: get %s: %q", what, id, o.Stdout)
			}
			if o.Code != 0 && !mayWait {
				c.t.Fatalf("%s: get %s: %s", what, id, o.Stderr)
			}
			return o.Code == 0
		}
		eventually(c.t, get)
	}
}

// statusOf reads the status of a process over HTTP.
func statusOf(t *testing.T, address string) (out struct {
	Shard    *recordv1.Shard // status of a shard
	Revision int64           // status of a member of etcd
}) {
	t.Helper()
	must(t, json.Unmarshal([]byte(get(t, address, "/status")), &out))
	return out
}

// etcd is killed and its volume is wiped. No process creates a new store, the running processes continue to serve, and
// `sheaf recover placement` restores the placement, also for processes that are restarted.
func TestRecoverPlacement(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	c.checkRecords("before", false)
	store := statusOf(t, c.shards["a"].http).Shard.GetStoreUuid()

	c.etcd.kill()
	must(t, os.RemoveAll(c.etcdDir))
	c.checkRecords("etcd is gone", false)
	o := sheaf(t, nil, "etcd", "--name", "e", "--dir", c.etcdDir, "--listen-client", c.endpoint, "--listen-peer",
		loopback.Free(t),
		"--initial-cluster-state", "existing", "--http", "")
	o.Want(t, 5).Has(t, "recover placement")
	c.startEtcd("new")
	c.checkRecords("etcd is empty", false)
	// etcd now contains only the new registrations of the shards.
	recover := []string{"recover", "placement", "--etcd", c.endpoint, "--store", "quotes", "--store-uid", store}
	eventually(t, func() bool { return strings.Count(sheaf(t, nil, recover...).Stdout, "\n") == 5 })
	sheaf(t, nil, "recover", "placement", "--etcd", c.endpoint, "--store", "quotes", "--store-uid", uuid.NewString()).
		Want(t, 1).Has(t, store)
	sheaf(t, nil, append(recover, "--shards", c.address["a"], "--yes")...).Want(t, 1).Has(t, "give all shards")

	// A shard and a gateway that start now have to wait.
	c.shards["b"].kill()
	c.startShard("b")
	eventually(t, func() bool { return c.shards["b"].alive() })
	eventually(t, func() bool {
		st := statusOf(t, c.shards["b"].http)
		return st.Shard.GetState() == recordv1.ShardState_SHARD_STATE_PENDING && strings.Contains(st.Shard.GetMessage(),
			"recover placement")
	})
	all := append(slices.Clone(recover), "--shards", c.address["a"]+","+c.address["b"])
	sheaf(t, nil, all...).Want(t, 0).Has(t, "Nothing was written")
	before := statusOf(t, c.shards["a"].http)
	sheaf(t, nil, append(all, "--yes")...).Want(t, 0).Has(t, "4 groups")
	c.checkRecords("recovered", true)
	sheaf(t, nil, append(all, "--yes")...).Want(t, 1).Has(t, "nothing is lost")
	c.putAll()

	// All processes are restarted.
	for _, p := range []*process{c.shards["a"], c.shards["b"], c.gateway, c.etcd} {
		if code := p.stop(t); code != 0 {
			t.Errorf("SIGTERM: exit code %d: %s", code, p.stderr)
		}
	}
	c.startEtcd("existing")
	c.startGateway("--store-uid", store)
	c.startShard("a", "--store-uid", store, "--expect-volume", before.Shard.GetVolumeUuid())
	c.startShard("b", "--store-uid", store)
	c.checkRecords("after restarts of all", true)
	if after := statusOf(t, c.shards["a"].http); after.Shard.GetStoreUuid() != store ||
		after.Shard.GetVolumeUuid() != before.Shard.GetVolumeUuid() {
		t.Errorf("shard a: %+v, was %+v", after, before)
	}
}

// If groups have several copies, the placement can be rebuilt from a majority of the copies of each group. A shard that
// does not answer during the recovery is used again once it is back.
func TestRecoverPlacementOfSeveralCopies(t *testing.T) {
	t.Parallel()
	c := newClusterOf(t, []string{"a", "b", "c"}, "--copies", "3", "--shards-min", "3")
	store := statusOf(t, c.shards["a"].http).Shard.GetStoreUuid()
	for _, p := range []*process{c.etcd, c.shards["b"], c.shards["c"]} {
		p.kill()
	}
	must(t, os.RemoveAll(c.etcdDir))
	c.startEtcd("new")
	recover := []string{"recover", "placement", "--etcd", c.endpoint, "--store", "quotes", "--store-uid", store, "--yes",
		"--shards"}
	o := sheaf(t, nil, append(recover, c.address["a"])...)
	o.Want(t, 1).Has(t, "too few copies of 4 groups were found")
	o.Has(t, "1 of its 3 voters were found (a), needed are 2")
	o = sheaf(t, nil, append(recover, c.address["a"]+","+c.address["b"])...)
	o.Want(t, 1).Has(t, c.address["b"])

	c.startShard("b")
	eventually(t, func() bool { return c.shards["b"].alive() })
	o = sheaf(t, nil, append(recover, c.address["a"]+","+c.address["b"])...)
	if o.Want(t, 0); strings.Count(o.Stdout, "(not found)") != 4 {
		t.Errorf("it shows %s", o.Stdout)
	}
	c.checkRecords("recovered", true)
	c.startShard("c")
	look := append(slices.Clone(recover[:len(recover)-2]), "--shards",
		c.address["a"]+","+c.address["b"]+","+c.address["c"])
	eventually(t, func() bool { return strings.Count(sheaf(t, nil, look...).Stdout, " a,b,c ") == 4 })
	c.shards["a"].kill()
	c.checkRecords("without a", true)
}

// alive reports whether /healthz answers.
func (p *process) alive() bool { return p.answers("/healthz") }

// etcd is unreachable for longer than the shards' leases last. No call fails, neither during that time nor after etcd
// returns.
func TestEtcdOutageLongerThanLeases(t *testing.T) {
	t.Parallel()
	if testing.Short() {
		t.Skip("waits for leases")
	}
	c := newCluster(t)
	stop := make(chan struct{})
	failed := make(chan string, 1)
	go func() {
		defer close(failed)
		for n := 0; ; n++ {
			select {
			case <-stop:
				return
			// Each call starts a process, so shorter pauses would only slow down the machine.
			case <-time.After(100 * time.Millisecond):
			}
			id := clusterIDs[n%len(clusterIDs)]
			if o := sheaf(t, strings.NewReader("r"+id), "put", id, "--server", c.gateway.server); o.Code != 0 {
				failed <- fmt.Sprintf("put %s: %s", id, o.Stderr)
				return
			}
			if o := sheaf(t, nil, "get", id, "--server", c.gateway.server); o.Code != 0 || o.Stdout != "r"+id {
				failed <- fmt.Sprintf("get %s: %s %q", id, o.Stderr, o.Stdout)
				return
			}
		}
	}()
	c.etcd.kill()
	await(t, failed, 10*time.Second) // longer than the shards' leases, which last 6 s
	c.startEtcd("existing")
	await(t, failed, 10*time.Second) // long enough for a lease to expire if it is not renewed
	close(stop)
	if words, bad := <-failed; bad {
		t.Fatal(words)
	}
}

// await waits for the duration d, and fails the test as soon as a call fails. It waits for a fixed time because no
// event marks the end of the outage.
func await(t *testing.T, failed <-chan string, d time.Duration) {
	t.Helper()
	select {
	case words := <-failed:
		t.Fatal(words)
	case <-time.After(d):
	}
}

// A second store with the name of an existing store is refused. The attempt changes nothing.
func TestASecondStoreOnOneNameIsRefused(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	for _, flag := range []string{"--groups=8", "--copies=3", "--routing=named"} {
		o := sheaf(t, nil, "gateway", "--listen", loopback.Free(t), "--http", "", "--etcd", c.endpoint, "--store", "quotes",
			"--create", flag)
		o.Want(t, 1).Has(t, "holds another store")
		o.Has(t, "--etcd-prefix")
	}
	store := statusOf(t, c.shards["a"].http).Shard.GetStoreUuid()
	o := sheaf(t, nil, "shard", "--name", "a", "--dir", c.dirs["b"], "--listen", loopback.Free(t), "--http", "",
		"--etcd", c.endpoint, "--store", "quotes")
	o.Want(t, 1).Has(t, "shard \"b\"")
	other := newCluster(t)
	other.shards["a"].kill()
	o = sheaf(t, nil, "shard", "--name", "a", "--dir", other.dirs["a"], "--listen", loopback.Free(t), "--http", "",
		"--etcd", c.endpoint, "--store", "quotes")
	o.Want(t, 1).Has(t, store)
	c.checkRecords("after all that", false)
}

func TestEtcdCommandRefusesBadFlags(t *testing.T) {
	dir := t.TempDir()
	for _, c := range []struct{ args, says string }{
		{"--initial-cluster-state old", "new or existing"}, {"--initial-cluster a", "NAME=HOST:PORT"},
		{"--initial-cluster a=http://x:1", "without a scheme"}, {"--initial-cluster a=x:1,a=y:1", "twice"},
	} {
		sheaf(t, nil, append([]string{"etcd", "--name", "a", "--dir", dir, "--http", ""}, strings.Fields(c.args)...)...).
			Want(t, 2).Has(t, c.says)
	}
	sheaf(t, nil, "etcd", "--name", "a", "--dir", dir, "--http", "", "--quota", "1").Want(t, 1).Has(t, "16 MiB")
	sheaf(t, nil, "shard", "--name", "a", "--dir", dir, "--http", "", "--store-uid", "x").Want(t, 2).Has(t, "store-uid")
}

// On Kubernetes, the command runs in a gateway's pod and uses the gateway's certificate. Shards accept a call with
// such a certificate only if it names the caller on whose behalf the gateway calls, so the command must do this too.
func TestRecoverPlacementWithTheCertificateOfAGateway(t *testing.T) {
	t.Parallel()
	r, gateway, _ := startGranted(t, 0)
	shard := r.members[len(r.members)-1]
	eventually(t, func() bool { // wait until the shards have created their groups
		o := sheaf(t, nil, "recover", "placement", "--etcd", r.etcd, "--etcd-insecure", "--store", "quotes", "--store-uid",
			statusOf(t, shard.process.http).Shard.GetStoreUuid(), "--tls-dir", gateway.folder)
		if strings.Contains(o.Stderr, "UNAUTHENTICATED") {
			t.Fatal(o.Stderr)
		}
		return o.Code == 0 && strings.Count(o.Stdout, "\n") == 3
	})
}
