package main

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"maps"
	"math/rand/v2"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"sheaf.dev/sheaf/client"
	"sheaf.dev/sheaf/client/recordv1"
	"sheaf.dev/sheaf/internal/test/etcdserver"
	"sheaf.dev/sheaf/internal/test/loopback"
	"sheaf.dev/sheaf/internal/test/soaktest"
)

// copiesStore runs etcd, a gateway and three shards as separate processes. Each group has a copy on each shard.
type copiesStore struct {
	t       *testing.T
	program string // path of the program to start; a change affects only new processes
	address string // address of the gateway
	common  []string
	gateway *process
	shards  map[string]*process
	dirs    map[string]string
}

var copiesShards = []string{"a", "b", "c"}

// copiesGroups is the number of groups of the store.
const copiesGroups = 16

func newCopiesStore(t *testing.T) *copiesStore { return newCopiesStoreOf(t, sheafBinary) }

func newCopiesStoreOf(t *testing.T, program string) *copiesStore {
	server, err := etcdserver.Start(t.TempDir())
	must(t, err)
	t.Cleanup(server.Close)
	s := &copiesStore{
		t: t, program: program, address: loopback.Free(t), common: []string{"--etcd", strings.Join(server.Endpoints(), ","),
			"--store", "quotes"},
		shards: map[string]*process{}, dirs: map[string]string{},
	}
	s.startGateway()
	for _, name := range copiesShards {
		s.dirs[name] = t.TempDir()
		s.start(name)
	}
	return s
}

// startGateway starts the gateway, always at the same address.
func (s *copiesStore) startGateway() {
	http := loopback.Free(s.t)
	s.gateway = serveProgram(s.t, nil, s.program, append([]string{
		"gateway", "--listen", s.address, "--http", http, "--create", "--groups", strconv.Itoa(copiesGroups), "--copies", "3",
		"--shards-min", "3",
	}, s.common...)...)
	s.gateway.server, s.gateway.http = s.address, http
	s.gateway.waitReady(s.t)
}

// start starts the named shard, each time at new addresses.
func (s *copiesStore) start(name string) {
	http := loopback.Free(s.t)
	s.shards[name] = serveProgram(s.t, nil, s.program, append([]string{
		"shard", "--name", name, "--dir", s.dirs[name], "--listen", loopback.Free(s.t), "--http", http, "--segment-bytes",
		"1MiB",
	}, s.common...)...)
	s.shards[name].http = http
}

// describe logs the status of each process, which helps to find out why a call failed.
func (s *copiesStore) describe() {
	processes := map[string]*process{"gateway": s.gateway}
	maps.Copy(processes, s.shards)
	short := http.Client{Timeout: 3 * time.Second}
	for name, p := range processes {
		status := "no answer"
		if answer, err := short.Get("http://" + p.http + "/status"); err == nil {
			body, _ := io.ReadAll(answer.Body)
			_ = answer.Body.Close()
			status = string(body)
		}
		lines := strings.Split(p.stderr.String(), "\n")
		s.t.Logf("%s: %s\nits log ends with\n%s", name, status, strings.Join(lines[max(0, len(lines)-60):], "\n"))
	}
}

func (s *copiesStore) client(direct bool) *client.Client {
	c, err := client.New(client.Config{Addresses: []string{s.gateway.server}, Direct: direct,
		CallTimeout: 2 * time.Minute})
	must(s.t, err)
	s.t.Cleanup(func() { c.Close() })
	return c
}

// copiesWriter writes records with a few ids, one call after another, and reads them back.
type copiesWriter struct {
	c      *client.Client
	random *rand.Rand
	first  int64
	known  map[int64]uint64 // maps an id to the seed of its last acknowledged write
	calls  *atomic.Int64
}

func (w *copiesWriter) data(seed uint64) []byte {
	size := int(seed % 3000)
	if seed%10 == 0 {
		size = 1500_000 // size of a blob
	}
	return pattern(seed, size)
}

// run writes until ctx ends. Every call must succeed, because a majority becomes available again before each timeout.
func (w *copiesWriter) run(ctx context.Context) error {
	for ctx.Err() == nil {
		id := w.first + w.random.Int64N(40)
		var err error
		switch seed, known := w.known[id]; {
		case w.random.IntN(4) > 0:
			err = w.put(id, w.random.Uint64()>>1)
		case known:
			err = w.check(id, seed)
		}
		if err != nil {
			return err
		}
		w.calls.Add(1)
	}
	return nil
}

// put writes a record and returns once the call is answered. It uses its own context, so that the end of the test
// does not interrupt the call.
func (w *copiesWriter) put(id int64, seed uint64) error {
	if _, err := w.c.Put(context.Background(), client.Key{ID: id}, w.data(seed), nil); err != nil {
		return err
	}
	w.known[id] = seed
	return nil
}

func (w *copiesWriter) check(id int64, seed uint64) error {
	got, err := w.c.Get(context.Background(), client.Key{ID: id}, &client.GetOptions{BytesMax: 8 << 20})
	if err == nil && !bytes.Equal(got.Data, w.data(seed)) {
		return fmt.Errorf("record %d holds %d bytes that are not those that were acknowledged last (%d)", id, len(got.Data),
			len(w.data(seed)))
	}
	return err
}

// copiesLoad is a set of running writers.
type copiesLoad struct {
	t       *testing.T
	store   *copiesStore
	writers []*copiesWriter
	calls   atomic.Int64
	failed  atomic.Pointer[error]
	stop    context.CancelFunc
	wait    sync.WaitGroup
}

// load starts one writer for each value in direct. A writer whose value is true connects to the shards instead of the
// gateway.
func (s *copiesStore) load(direct ...bool) *copiesLoad {
	ctx, stop := context.WithCancel(context.Background())
	l := &copiesLoad{t: s.t, store: s, stop: stop}
	for i, d := range direct {
		w := &copiesWriter{
			c: s.client(d), random: rand.New(rand.NewPCG(uint64(i), 4)), first: int64(1000 * i), known: map[int64]uint64{},
			calls: &l.calls,
		}
		l.writers = append(l.writers, w)
		l.wait.Go(func() {
			if err := w.run(ctx); err != nil {
				l.failed.CompareAndSwap(nil, &err)
			}
		})
	}
	s.t.Cleanup(stop)
	return l
}

// awaitMore waits until n more calls have succeeded. It fails the test if any call has failed.
func (l *copiesLoad) awaitMore(n int64) {
	l.t.Helper()
	for until := l.calls.Load() + n; ; time.Sleep(time.Millisecond) {
		if err := l.failed.Load(); err != nil {
			l.store.describe()
			l.t.Fatalf("a call failed: %v", *err)
		}
		if l.calls.Load() >= until {
			return
		}
	}
}

// end stops the writers.
func (l *copiesLoad) end() {
	l.t.Helper()
	l.stop()
	l.wait.Wait()
	if err := l.failed.Load(); err != nil {
		l.store.describe()
		l.t.Fatalf("a call failed: %v", *err)
	}
}

// check reads back the last acknowledged write of every id. It returns the number of records.
func (l *copiesLoad) check() (records int) {
	l.t.Helper()
	for _, w := range l.writers {
		for id, seed := range w.known {
			must(l.t, w.check(id, seed))
			records++
		}
	}
	return records
}

// waitReady waits until every copy of every group exists and has a vote. As long as only one copy of a group has a
// vote, the group cannot serve without that copy.
func (s *copiesStore) waitReady() {
	s.t.Helper()
	for _, name := range copiesShards {
		s.shards[name].waitReady(s.t)
	}
	admin := recordv1.NewAdminServiceClient(dial(s.t, s.address))
	eventually(s.t, func() bool {
		answer, err := admin.ListGroups(s.t.Context(), &recordv1.ListGroupsRequest{})
		voters := 0
		for _, group := range answer.GetGroups() {
			for _, member := range group.GetMembers() {
				switch member.GetRole() {
				case recordv1.MemberRole_MEMBER_ROLE_LEADER, recordv1.MemberRole_MEMBER_ROLE_VOTER:
					voters++
				default:
				}
			}
		}
		return err == nil && voters == copiesGroups*len(copiesShards)
	})
}

// TestCopiesSurviveKills repeatedly kills one of three shards by SIGKILL under load. No call may fail, no acknowledged
// write may be lost, and no read may be stale.
func TestCopiesSurviveKills(t *testing.T) {
	soaktest.Only(t, "proc", "`make chaos` brings the same faults")
	s := newCopiesStore(t)
	s.waitReady()
	l := s.load(false, true, false, true, false, true)
	for i := range 60 {
		l.awaitMore(300)
		name := copiesShards[i%3]
		s.shards[name].kill()
		killed := time.Now()
		l.awaitMore(300) // the calls have to succeed although the shard is down
		t.Logf("%d: 300 calls within %v of the kill of %s", i, time.Since(killed).Round(time.Millisecond), name)
		s.start(name)
		s.shards[name].waitReady(t)
	}
	l.awaitMore(300)
	l.end()
	for _, name := range copiesShards {
		s.shards[name].kill()
		t.Logf("%d records are there without shard %s", l.check(), name)
		s.start(name)
		s.shards[name].waitReady(t)
	}
}

// TestCopiesSurviveHangs stops one of three shards by SIGSTOP under load, until the others have elected new leaders and
// answered many calls. It then lets that shard continue and immediately stops the next one. The shard that continues
// must no longer act as a leader, and must not be blocked by a fetch from the shard that is stopped now.
func TestCopiesSurviveHangs(t *testing.T) {
	soaktest.Only(t, "proc", "`make chaos` brings the same faults")
	s := newCopiesStore(t)
	s.waitReady()
	l := s.load(false, true, false, true)
	l.awaitMore(300)
	for i := range 60 {
		victim := s.shards[copiesShards[i%3]].cmd.Process
		must(t, victim.Signal(syscall.SIGSTOP))
		stopped := time.Now()
		l.awaitMore(200)
		t.Logf("200 calls within %v of the stop of %s", time.Since(stopped).Round(time.Millisecond), copiesShards[i%3])
		must(t, victim.Signal(syscall.SIGCONT))
	}
	l.awaitMore(300)
	l.end()
	t.Logf("%d records are there", l.check())
}
