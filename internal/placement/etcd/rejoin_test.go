package etcd_test

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/server/v3/storage/wal"
	"go.uber.org/zap"
	"google.golang.org/protobuf/proto"

	"sheaf.dev/sheaf/internal/placement/etcd"
	"sheaf.dev/sheaf/internal/test/must"
)

// TestMain allows more clusters to run in parallel than the machine has CPUs. The tests spend most of their time
// waiting, because etcd requires five quiet seconds between two changes of the members: all of them together take 8
// processor seconds.
func TestMain(m *testing.M) {
	flag.Parse()
	if err := flag.Set("test.parallel", "8"); err != nil {
		panic(err)
	}
	os.Exit(m.Run())
}

// trio is a cluster with the members a, b and c, which all run in this process.
type trio struct {
	t       *testing.T
	configs map[string]etcd.MemberConfig
	members map[string]*etcd.Member
}

// newTrio starts the cluster and writes the key k. It also returns the members' ids.
func newTrio(t *testing.T) (*trio, map[string]uint64) {
	t.Helper()
	r := &trio{t: t, configs: map[string]etcd.MemberConfig{}, members: map[string]*etcd.Member{}}
	cluster := map[string]string{}
	for _, name := range []string{"a", "b", "c"} {
		cfg := memberConfig(t, name)
		cfg.Cluster, cfg.Rejoin, cfg.JoinTimeout = cluster, true, time.Minute
		r.configs[name], cluster[name] = cfg, cfg.ListenPeer
	}
	type started struct {
		name string
		m    *etcd.Member
		err  error
	}
	results := make(chan started, 3)
	for name, cfg := range r.configs {
		go func() {
			m, err := etcd.StartMember(context.Background(), cfg)
			results <- started{name, m, err}
		}()
	}
	for range r.configs {
		s := <-results
		if s.err != nil {
			t.Fatal(s.err)
		}
		r.members[s.name] = s.m
	}
	t.Cleanup(func() {
		for _, m := range r.members {
			m.Close()
		}
	})
	for name, cfg := range r.configs {
		cfg.Existing = true // as operators do once the cluster has been formed
		r.configs[name] = cfg
	}
	r.put("k", "v")
	return r, r.ids()
}

// stop stops the named member and leaves its folder in place.
func (r *trio) stop(name string) {
	r.members[name].Close()
	delete(r.members, name)
}

// start starts the named member, and expects it to serve as a voter.
func (r *trio) start(name string) *etcd.Member {
	r.t.Helper()
	m, err := etcd.StartMember(testContext(r.t), r.configs[name])
	if err != nil {
		r.t.Fatalf("member %s: %v", name, err)
	}
	r.members[name] = m
	again(r.t, "member "+name+" is ready", m.Ready)
	return m
}

// refused starts a member and expects the start to fail. It returns the error.
func (r *trio) refused(name string, change func(*etcd.MemberConfig)) error {
	r.t.Helper()
	cfg := r.configs[name]
	cfg.JoinTimeout = 0
	change(&cfg)
	m, err := etcd.StartMember(testContext(r.t), cfg)
	if err == nil {
		m.Close()
		r.t.Fatalf("member %s has started", name)
	}
	return err
}

// lose stops the named member and deletes its folder.
func (r *trio) lose(name string) {
	r.stop(name)
	r.wipe(name)
}

func (r *trio) wipe(name string) { r.must(os.RemoveAll(r.configs[name].Dir)) }

func (r *trio) must(err error) {
	r.t.Helper()
	must.OK(r.t, err)
}

// client returns a client for the running members.
func (r *trio) client() *clientv3.Client {
	r.t.Helper()
	var endpoints []string
	for _, m := range r.members {
		endpoints = append(endpoints, m.Endpoint())
	}
	return dial(r.t, etcd.ClientConfig{Endpoints: endpoints})
}

func (r *trio) put(key, value string) {
	r.t.Helper()
	put(r.t, r.client(), key, value)
}

// has waits until the named member itself has stored the value under the key. That may take a moment, because a write
// is acknowledged as soon as the other two members have it.
func (r *trio) has(name, key, value string) {
	r.t.Helper()
	client, ctx := dial(r.t, etcd.ClientConfig{Endpoints: []string{r.members[name].Endpoint()}}), testContext(r.t)
	for {
		out, err := client.Get(ctx, key, clientv3.WithSerializable())
		if ctx.Err() != nil {
			r.t.Fatalf("member %s does not get value %s of key %s: %v", name, value, key, err)
		}
		if err == nil && len(out.Kvs) == 1 && string(out.Kvs[0].Value) == value {
			return
		}
		time.Sleep(10 * time.Millisecond)
	}
}

// ids returns the ids of the members, and expects all of them to be healthy voters.
func (r *trio) ids() map[string]uint64 {
	r.t.Helper()
	client, out := r.client(), map[string]uint64{}
	again(r.t, "three voters that are well", func(ctx context.Context) error {
		view, err := etcd.Look(ctx, client)
		if err != nil {
			return err
		}
		clear(out)
		for _, p := range view.Peers {
			if !p.Healthy() {
				return fmt.Errorf("member %s: %s", p.Label(), p.Trouble)
			}
			out[p.Name] = p.ID
		}
		if len(out) != 3 {
			return fmt.Errorf("members: %v", out)
		}
		return nil
	})
	return out
}

// change changes the membership as soon as etcd considers the other members well connected. If an attempt takes
// effect but its response is lost, the next attempt fails with the error done. Therefore change treats that error as
// success.
func (r *trio) change(what string, done error, do func(ctx context.Context, client *clientv3.Client) error) {
	r.t.Helper()
	client := r.client()
	again(r.t, what, func(ctx context.Context) error {
		err := do(ctx, client)
		if errors.Is(err, done) {
			return nil
		}
		return err
	})
}

func (r *trio) remove(id uint64) {
	r.t.Helper()
	r.change("remove a member", rpctypes.ErrMemberNotFound, func(ctx context.Context, client *clientv3.Client) error {
		_, err := client.MemberRemove(ctx, id)
		return err
	})
}

func (r *trio) add(peerURLs []string) {
	r.t.Helper()
	r.change("add a learner", rpctypes.ErrPeerURLExist, func(ctx context.Context, client *clientv3.Client) error {
		_, err := client.MemberAddAsLearner(ctx, peerURLs)
		return err
	})
}

// rejoined starts c. It expects that c is now a new member with all data of the others, and that no folder that was
// set aside is left.
func (r *trio) rejoined(before map[string]uint64) {
	r.t.Helper()
	r.put("missed", "while c was away")
	m := r.start("c")
	after := r.ids()
	if after["c"] == before["c"] || after["a"] != before["a"] || after["b"] != before["b"] {
		r.t.Errorf("ids were %x, are %x", before, after)
	}
	r.has("c", "k", "v")
	r.has("c", "missed", "while c was away")
	if st := m.Status(); st.IsLearner || st.MemberID != fmt.Sprintf("%x", after["c"]) {
		r.t.Errorf("status %+v", st)
	}
	deadline := testContext(r.t)
	for {
		left, err := filepath.Glob(filepath.Join(r.configs["c"].Dir, "replaced-*"))
		r.must(err)
		if len(left) == 0 {
			break
		}
		if deadline.Err() != nil {
			r.t.Fatalf("left aside: %v", left)
		}
		time.Sleep(10 * time.Millisecond)
	}
	// c must be a full member, so the cluster must now survive the loss of another member.
	r.stop("a")
	r.put("k", "of b and c")
	r.has("c", "k", "of b and c")
	r.start("a")
}

func TestAMemberThatWasDownIsNotReplaced(t *testing.T) {
	t.Parallel()
	r, before := newTrio(t)
	r.stop("c")
	r.put("k", "w")
	r.start("c")
	r.has("c", "k", "w")
	if after := r.ids(); after["c"] != before["c"] {
		t.Errorf("ids were %x, are %x", before, after)
	}
}

func TestAMemberWhoseDiskWasReplacedJoinsAgain(t *testing.T) {
	t.Parallel()
	r, before := newTrio(t)
	r.lose("c")
	r.rejoined(before)
}

// The folder in this test is one that an older version of Sheaf left behind when it started on a replaced disk. Its
// log contains nothing except the id of the former member.
func TestAHalfWrittenFolderOfTheOldIDIsReplaced(t *testing.T) {
	t.Parallel()
	r, before := newTrio(t)
	var view *etcd.View
	again(t, "ask a quorum", func(ctx context.Context) (err error) {
		view, err = etcd.Look(ctx, r.client())
		return err
	})
	r.lose("c")
	cfg := r.configs["c"]
	r.must(os.MkdirAll(filepath.Join(cfg.Dir, "member"), 0o700))
	meta, err := proto.Marshal(&pb.Metadata{NodeID: new(before["c"]), ClusterID: new(view.ClusterID)})
	r.must(err)
	w, err := wal.Create(zap.NewNop(), filepath.Join(cfg.Dir, "member", "wal"), meta)
	r.must(errors.Join(err, w.Close()))
	r.must(os.WriteFile(filepath.Join(cfg.Dir, "sheaf-etcd.json"), []byte(`{"format":1,"name":"c","token":"t1"}`), 0o600))

	// etcd notices by itself that entries are missing, logs this and gives up. Outside a test the process would exit at
	// this point, as a test in cmd/sheaf checks. The next start finds the message that was stored.
	r.must(etcd.MarkBehind(&cfg,
		"tocommit(9) is out of range [lastIndex(0)]. Was the raft log corrupted, truncated, or lost?"))
	if err := r.refused("c", func(c *etcd.MemberConfig) {
		c.Rejoin = false
	}); !errors.Is(err, etcd.ErrNotTheMember) || !strings.Contains(err.Error(), "lastIndex(0)") {
		t.Errorf("without --rejoin: %v", err)
	}
	r.rejoined(before)
}

func TestTheFolderOfARemovedMemberIsReplaced(t *testing.T) {
	t.Parallel()
	r, before := newTrio(t)
	r.stop("c")
	r.remove(before["c"])
	if err := r.refused("c", func(c *etcd.MemberConfig) {
		c.Rejoin = false
	}); !errors.Is(err, etcd.ErrNotTheMember) || !strings.Contains(err.Error(), "--rejoin") {
		t.Errorf("without --rejoin: %v", err)
	}
	r.rejoined(before)
}

// After a crash at the end of any step, the next start recognizes which steps have already been done.
func TestRejoiningGoesOnAfterACrash(t *testing.T) {
	t.Parallel()
	peerURL := func(r *trio) []string { return []string{"http://" + r.configs["c"].ListenPeer} }
	for name, reach := range map[string]func(r *trio, id uint64){
		"removed": func(r *trio, id uint64) {
			r.remove(id)
		},
		"added": func(r *trio, id uint64) {
			r.remove(id)
			r.add(peerURL(r))
		},
		"started as a learner": func(r *trio, id uint64) {
			r.remove(id)
			r.add(peerURL(r))
			cfg := r.configs["c"]
			cfg.Rejoin = false // without Rejoin, the member does not ask to become a voter
			m, err := etcd.StartMember(testContext(r.t), cfg)
			r.must(err)
			again(r.t, "a learner says that it is one", func(ctx context.Context) error {
				err := m.Ready(ctx)
				if err == nil {
					r.t.Fatal("a learner is ready")
				}
				if strings.Contains(err.Error(), "learner") {
					return nil
				}
				return err
			})
			m.Close()
		},
		"lost again as a learner": func(r *trio, id uint64) {
			r.remove(id)
			r.add(peerURL(r))
			cfg := r.configs["c"]
			cfg.Rejoin = false
			m, err := etcd.StartMember(testContext(r.t), cfg)
			r.must(err)
			m.Close()
			r.wipe("c")
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r, before := newTrio(t)
			r.lose("c")
			reach(r, before["c"])
			r.rejoined(before)
		})
	}
}

func TestWithoutAQuorumNothingIsReplaced(t *testing.T) {
	t.Parallel()
	r, before := newTrio(t)
	r.lose("c")
	r.stop("b")
	if err := r.refused("c", func(*etcd.MemberConfig) {}); !errors.Is(err, etcd.ErrEmptyExisting) {
		t.Errorf("error %v", err)
	}
	if _, err := os.Stat(filepath.Join(r.configs["c"].Dir, "member")); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("etcd has written something: %v", err)
	}
	// The quorum comes back while the member is waiting for it.
	waits := &firstWait{Handler: slog.DiscardHandler, seen: make(chan struct{})}
	cfg := r.configs["c"]
	cfg.Logger = slog.New(waits)
	r.configs["c"] = cfg
	go func() {
		<-waits.seen
		if m, err := etcd.StartMember(context.Background(), r.configs["b"]); err == nil {
			t.Cleanup(m.Close)
		}
	}()
	r.start("c")
	after := r.ids()
	if after["c"] == before["c"] || after["b"] != before["b"] {
		t.Errorf("ids were %x, are %x", before, after)
	}
	r.has("c", "k", "v")
}

// firstWait is a log handler that notices when a member begins to wait for the others.
type firstWait struct {
	slog.Handler
	once sync.Once
	seen chan struct{}
}

func (h *firstWait) Enabled(context.Context, slog.Level) bool { return true }

func (h *firstWait) Handle(_ context.Context, record slog.Record) error {
	if strings.Contains(record.Message, "does not start as it is") {
		h.once.Do(func() { close(h.seen) })
	}
	return nil
}

func TestAMemberThatAnswersIsNotTakenForLost(t *testing.T) {
	t.Parallel()
	r, before := newTrio(t)
	// The second process has the same name but a folder of its own, as if the member had been started twice by mistake.
	err := r.refused("c", func(c *etcd.MemberConfig) { c.Dir = filepath.Join(t.TempDir(), "second") })
	if !strings.Contains(err.Error(), "answers at its address") {
		t.Errorf("error %v", err)
	}
	if after := r.ids(); after["c"] != before["c"] {
		t.Errorf("ids were %x, are %x", before, after)
	}
}

// A member that has lost its data must not form a new cluster, even if it is configured as a member of a cluster that
// is yet to be formed.
func TestAnEmptyMemberOfAClusterThatHasFormedFormsNoOther(t *testing.T) {
	t.Parallel()
	r, before := newTrio(t)
	r.lose("c")
	cfg := r.configs["c"]
	cfg.Existing = false
	r.configs["c"] = cfg
	r.rejoined(before)
}
