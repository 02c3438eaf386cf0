package scaletest

import (
	"bytes"
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"sheaf.dev/sheaf/api/v1alpha1"
	"sheaf.dev/sheaf/internal/test/loopback"
	"sheaf.dev/sheaf/internal/test/must"
	"sheaf.dev/sheaf/internal/test/soaktest"
)

// shardsWanted returns the number of shards that an environment variable asks for. If the variable is not set, it
// skips the test.
func shardsWanted(t *testing.T) int {
	t.Helper()
	text := os.Getenv("SHEAF_SCALE_SHARDS")
	if text == "" {
		t.Skip("set SHEAF_SCALE_SHARDS=1000, or run `make scale-test`")
	}
	n, err := strconv.Atoi(text)
	if err != nil || n < 4 || n > 1000 {
		t.Fatalf("SHEAF_SCALE_SHARDS is %q: give a number from 4 to 1000", text)
	}
	return n
}

// store creates a RecordStore with a pool, and waits until the operator has given it an identity.
func (c *cluster) store(ctx context.Context, t *testing.T, shards, groups int) *v1alpha1.RecordStore {
	t.Helper()
	count, wanted, replicas := int32(groups), int32(shards), int32(2) //nolint:gosec // at most 1000
	store := &v1alpha1.RecordStore{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "quotes"},
		Spec: v1alpha1.RecordStoreSpec{
			Groups:      v1alpha1.Groups{Routing: v1alpha1.RoutingHash, Count: &count},
			Replication: v1alpha1.Replication{Copies: 3, TopologyKey: corev1.LabelTopologyZone},
			Retention:   v1alpha1.Retention{Versions: 1},
			TLS:         &v1alpha1.TLS{Mode: v1alpha1.TLSDisabled}, // simulated shards have no certificates
			Etcd: v1alpha1.Etcd{External: &v1alpha1.ExternalEtcd{Endpoints: []string{"http://" + c.etcd},
				Prefix: "/scale"}},
			Gateway: v1alpha1.Gateway{Replicas: &replicas},
		},
	}
	pool := &v1alpha1.ShardPool{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "ssd"},
		Spec: v1alpha1.ShardPoolSpec{
			StoreRef: v1alpha1.StoreReference{Name: "quotes"}, Shards: &wanted, Medium: v1alpha1.SSD,
			Residency: v1alpha1.ResidencyIndex,
			Storage:   v1alpha1.Storage{StorageClassName: "played", Size: resource.MustParse("1Ti")},
		},
	}
	for _, object := range []client.Object{store, pool} {
		must.OK(t, c.client.Create(ctx, object))
	}
	await(ctx, t, "the store's identity", func() (bool, string) {
		c.read(ctx, t, store)
		return store.Status.StoreUID != "", "it has none"
	})
	return store
}

func (c *cluster) read(ctx context.Context, t *testing.T, object client.Object) {
	t.Helper()
	c.checkOperatorRuns(t)
	must.OK(t, c.client.Get(ctx, client.ObjectKeyFromObject(object), object))
}

// operate starts the operator.
func (c *cluster) operate(t *testing.T, args ...string) *exec.Cmd {
	t.Helper()
	metrics, err := loopback.FreeAddress()
	must.OK(t, err)
	program := os.Getenv("SHEAF_SCALE_OPERATOR")
	if program == "" {
		if program, err = filepath.Abs(filepath.Join(root, "bin", "sheaf-operator")); err != nil {
			t.Fatal(err)
		}
	}
	args = append([]string{"--shard-image=localhost/sheaf:scale", "--metrics-bind-address=" + metrics,
		"--health-probe-bind-address=0",
		"--operator-namespace=sheaf-system", "--leader-election-namespace=sheaf-system"}, args...)
	cmd := c.start(t, program, []string{"KUBECONFIG=" + c.operator}, args...)
	c.operates, c.said = cmd.Process.Pid, c.log(program)
	return cmd
}

// checkOperatorRuns fails the test if the operator has exited on its own, because the test would then wait for
// something that never happens. An operator exits, for example, if it loses its lease because the machine is too busy.
func (c *cluster) checkOperatorRuns(t *testing.T) {
	t.Helper()
	if c.operates == 0 {
		return
	}
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", c.operates))
	// The process is gone, or is a zombie: the operator has exited, and its status has not been collected yet.
	if err != nil || bytes.Contains(stat, []byte(") Z ")) {
		t.Fatalf("the operator has ended by itself: %s", lastLine(c.said))
	}
}

// lastLine returns the last line of a file, or the error of reading it.
func lastLine(name string) string {
	lines := strings.Split(strings.TrimSpace(tailOf(name)), "\n")
	return lines[len(lines)-1]
}

// readiness reports whether a store is ready, and describes in words how far it is.
func (c *cluster) readiness(ctx context.Context, t *testing.T, store *v1alpha1.RecordStore, shards int) (bool,
	string) {
	t.Helper()
	c.read(ctx, t, store)
	words := fmt.Sprintf("%d of %d shards and %d of %d groups serve, %d move", store.Status.Shards.Serving,
		store.Status.Shards.Total,
		store.Status.Groups.Serving, store.Status.Groups.Total, store.Status.Groups.Moving)
	ready := meta.FindStatusCondition(store.Status.Conditions, v1alpha1.ConditionReady)
	if ready != nil {
		words += fmt.Sprintf("; %s: %.300s", ready.Reason, ready.Message)
	}
	done := ready != nil && ready.Status == metav1.ConditionTrue
	return done && int(store.Status.Shards.Serving) == shards && store.Status.Groups.Moving == 0, words
}

// awaitQuiet waits until the operator has written nothing for some time. By then it has finished all writes that the
// last change required.
func (c *cluster) awaitQuiet(ctx context.Context, t *testing.T) {
	t.Helper()
	const enough = 35 * time.Second // longer than the interval of 30 s at which the operator checks a healthy pool
	last, since := c.requests(t).writeCount(), time.Now()
	await(ctx, t, fmt.Sprintf("the operator to write nothing for %v", enough), func() (bool, string) {
		if now := c.requests(t).writeCount(); now != last {
			last, since = now, time.Now()
		}
		return time.Since(since) > enough, fmt.Sprintf("it has made %d writes", last)
	})
}

// residentMax is the maximum resident memory of the operator, for any number of shards up to 1,000.
const residentMax = 300 << 20

// TestScale creates one store with many shards at once, and another store that grows to the same size while its
// operator is killed repeatedly. In the end both must look the same.
func TestScale(t *testing.T) {
	shards := shardsWanted(t)
	var calm, killed picture
	t.Run("first start", func(t *testing.T) { calm = firstStart(t, shards) })
	t.Run("killed while it scales out", func(t *testing.T) { killed = growUnderKills(t, shards) })
	if calm.template == "" || killed.template == "" {
		return // one of the two subtests was not selected, or failed
	}
	if calm != killed {
		t.Errorf("a store that grew while its operator was killed ends as\n%+v\nand one that was made at once as\n%+v",
			killed, calm)
	}
}

// firstStart creates a store with many shards. It then observes the operator while nothing happens, and after a node
// is lost.
func firstStart(t *testing.T, shards int) picture {
	ctx := t.Context()
	c := startCluster(ctx, t, shards)
	operator := c.operate(t)
	began := time.Now()
	store := c.store(ctx, t, shards, shards)
	f := startFleet(ctx, t, c, store)
	await(ctx, t, "the store to be Ready", func() (bool, string) { return c.readiness(ctx, t, store, shards) })
	rise, use := c.requests(t), readUsage(t, operator.Process.Pid)
	t.Logf("%d shards are Ready after %.1f s (wanted of 1000: at most 300); %v; %d writes: %v",
		shards, time.Since(began).Seconds(), use, rise.writeCount(), rise)
	c.awaitQuiet(ctx, t)
	out := c.takePicture(ctx, t, f, shards)
	c.observeIdle(ctx, t, operator.Process.Pid)
	c.loseNode(ctx, t, f, store, shards/2)
	use = readUsage(t, operator.Process.Pid)
	t.Logf("at the end: %v", use)
	c.checkNothingForbidden(t)
	if use.peak > residentMax {
		t.Errorf("the operator of %d shards has used up to %d MB, wanted are at most %d", shards, use.peak>>20,
			residentMax>>20)
	}
	return out
}

// checkNothingForbidden fails the test if the API server has refused a request of the operator. In this test the
// operator has only the rights in config/rbac.
func (c *cluster) checkNothingForbidden(t *testing.T) {
	t.Helper()
	log, err := os.ReadFile(c.said)
	must.OK(t, err)
	for line := range bytes.Lines(log) {
		if bytes.Contains(bytes.ToLower(line), []byte("forbidden")) {
			t.Errorf("the operator's rights do not suffice: %.1000s", line)
		}
	}
}

// observeIdle observes the operator for a minute in which nothing happens. The operator must not write data that has
// not changed.
func (c *cluster) observeIdle(ctx context.Context, t *testing.T, pid int) {
	t.Helper()
	const minute = time.Minute
	before, usedBefore := c.requests(t), readUsage(t, pid)
	select {
	case <-ctx.Done():
	case <-time.After(minute):
	}
	made, use := c.requests(t).since(before), readUsage(t, pid)
	t.Logf("a minute in which nothing happens: %.1f %% of a core (wanted: at most 5), %d writes beside those of leases: "+
		"%v; %v",
		100*(use.cpu-usedBefore.cpu).Seconds()/minute.Seconds(), made.writeCount(), made, use)
	if made.writeCount() > 0 {
		t.Errorf("nothing has changed for a minute, and the operator has made %d writes: %v", made.writeCount(), made)
	}
	if leases := made["update leases"]; leases+made.writeCount() > int(minute.Seconds()) {
		t.Errorf("the operator makes more than one write a second while nothing happens: %v", made)
	}
}

// loseNode removes a node with its shard, and waits until its groups have targets on other shards and have moved
// there.
func (c *cluster) loseNode(ctx context.Context, t *testing.T, f *fleet, store *v1alpha1.RecordStore, n int) {
	t.Helper()
	lost := fmt.Sprintf("ssd-%d", n)
	view := f.view(ctx, t)
	wanted := 0
	for _, target := range view.Targets {
		if slices.Contains(target.Shards, lost) {
			wanted++
		}
	}
	if wanted == 0 {
		t.Fatalf("no group is wanted on shard %s: nothing can be seen from its loss", lost)
	}
	before := c.requests(t)
	began := time.Now()
	f.stopNode(nodeName(n))
	must.OK(t, c.client.Delete(ctx, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: nodeName(n)}}))
	await(ctx, t, "the groups of the lost node to be wanted elsewhere", func() (bool, string) {
		left := 0
		for _, target := range f.view(ctx, t).Targets {
			if slices.Contains(target.Shards, lost) {
				left++
			}
		}
		return left == 0, fmt.Sprintf("%d of %d are still wanted there", left, wanted)
	})
	t.Logf("the %d groups of a lost node are wanted elsewhere after %.1f s (wanted: 10)", wanted, time.Since(began).
		Seconds())
	await(ctx, t, "those groups to have all their copies again", func() (bool, string) {
		c.read(ctx, t, store)
		redundant := meta.FindStatusCondition(store.Status.Conditions, v1alpha1.ConditionRedundant)
		if redundant == nil {
			return false, "there is no condition Redundant"
		}
		return redundant.Status == metav1.ConditionTrue && store.Status.Shards.Serving < store.Status.Shards.Total,
			redundant.Message
	})
	t.Logf("and have all their copies again after %.1f s; writes: %v", time.Since(began).Seconds(), c.requests(t).
		since(before))
}

// growUnderKills doubles the size of a store while its operator is killed at random moments.
func growUnderKills(t *testing.T, shards int) picture {
	ctx := t.Context()
	seed := soaktest.Seed(t, 1)
	t.Logf("the operator is killed at times of seed %d", seed)
	random := rand.New(rand.NewPCG(seed, 0)) //nolint:gosec // no secret
	c := startCluster(ctx, t, shards)
	// Without leader election, the next operator can begin immediately. Two operators never run at the same time in this
	// test.
	operator := c.operate(t, "--leader-elect=false")
	store := c.store(ctx, t, shards/2, shards)
	f := startFleet(ctx, t, c, store)
	await(ctx, t, "the store to be Ready", func() (bool, string) { return c.readiness(ctx, t, store, shards/2) })
	pool := &v1alpha1.ShardPool{ObjectMeta: metav1.ObjectMeta{Namespace: store.Namespace, Name: "ssd"}}
	wanted := fmt.Appendf(nil, `{"spec":{"shards":%d}}`, shards)
	must.OK(t, c.client.Patch(ctx, pool, client.RawPatch(types.MergePatchType, wanted)))
	began, before := time.Now(), c.requests(t)
	const kills = 5
	for n := range kills {
		// A kill happens after a certain number of writes, not at a certain time. So on machines of any speed, the kills
		// hit the same phases of the work.
		at := c.requests(t).writeCount() + 1 + random.IntN(max(2, shards/2))
		await(ctx, t, "the operator to be where it is killed", func() (bool, string) {
			made := c.requests(t).writeCount()
			done, _ := c.readiness(ctx, t, store, shards)
			return made >= at || done, fmt.Sprintf("it has made %d writes of %d", made, at)
		})
		c.operates = 0
		must.OK(t, operator.Process.Kill())
		_ = operator.Wait() // Wait returns an error, because the operator was killed
		_, words := c.readiness(ctx, t, store, shards)
		t.Logf("kill %d of %d after %.1f s: %s", n+1, kills, time.Since(began).Seconds(), words)
		operator = c.operate(t, "--leader-elect=false")
	}
	await(ctx, t, "the store to be Ready with all shards", func() (bool, string) {
		return c.readiness(ctx, t, store, shards)
	})
	made, use := c.requests(t).since(before), readUsage(t, operator.Process.Pid)
	t.Logf("%d shards have become %d after %.1f s; of the last operator: %v; %d writes: %v",
		shards/2, shards, time.Since(began).Seconds(), use, made.writeCount(), made)
	if use.peak > residentMax {
		t.Errorf("the operator of %d shards has used up to %d MB, wanted are at most %d", shards, use.peak>>20,
			residentMax>>20)
	}
	c.awaitQuiet(ctx, t)
	c.checkNothingForbidden(t)
	return c.takePicture(ctx, t, f, shards)
}
