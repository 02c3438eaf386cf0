package shard

import (
	"context"
	"errors"
	"slices"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"sheaf.dev/sheaf/client/recordv1"
	"sheaf.dev/sheaf/internal/shard/host"
	"sheaf.dev/sheaf/internal/shard/replicas"
	"sheaf.dev/sheaf/internal/test/vfstest"
)

// hanging is a cluster whose disks can hang. Shard a should lead group 0.
type hanging struct {
	*cluster
	disks map[string]*vfstest.Faulty
	id    int64 // id of a record in group 0
}

func newHanging(t *bubble, shards ...string) *hanging {
	h := &hanging{newCluster(t, hash4, shards), map[string]*vfstest.Faulty{}, 0}
	h.settled(shards...)
	for _, name := range shards {
		h.kill(name)
		h.shards[name] = h.stopped[name].again(func(cfg *Config) {
			h.disks[name] = vfstest.NewFaulty(cfg.FS)
			cfg.FS = h.disks[name]
		})
	}
	for h.id = 1; hash4.GroupOf(h.id) != 0; {
		h.id++
	}
	h.put(h.id, []byte("one"))
	h.eventually("a leads group 0", func() bool { return h.leader() == "a" })
	time.Sleep(time.Minute) // by then, all background writes are done
	return h
}

// leader returns the shard that leads group 0 according to the members with the highest term, or "" if none leads.
func (h *hanging) leader() (leader string) {
	term := h.term()
	for name := range h.shards {
		if m := h.group(name).Replica().Members(); m.Term == term && m.LeaderID == h.group(name).RaftID {
			leader = name
		}
	}
	return leader
}

// term returns the highest term of group 0. Each election begins a new term, even if it fails.
func (h *hanging) term() (term uint64) {
	for name := range h.shards {
		term = max(term, h.group(name).Replica().Members().Term)
	}
	return term
}

func (h *hanging) group(shard string) *replicas.Served {
	return h.shards[shard].shard.replicas.Routes().ByName["0"].Served()
}

// silent sets whether a shard's guard reports that the shard's disk does not respond.
func (h *hanging) silent(shard string, silent bool) {
	var err error
	if silent {
		err = errors.New("a read of its superblock takes more than 10s")
	}
	forHost{h.shards[shard].shard}.Problem(host.VolumeSilent, err)
}

// get reads the test record, which is in group 0, from one shard.
func (h *hanging) get(shard string) error {
	ctx, cancel := context.WithTimeout(h.t.Context(), 2*time.Second)
	defer cancel()
	_, err := h.shards[shard].records.Get(ctx, &recordv1.GetRequest{Key: key(h.id)})
	return err
}

// A leader whose disk hangs gives up the leadership even without writes, because its reads wait for the disk, and its
// heartbeats keep the other members from an election. The leadership returns only once, when the disk has responded for
// some time.
func TestALeaderWhoseDiskHangsGivesUpTheLead(t *testing.T) {
	t.Parallel()
	for name, match := range map[string]func(vfstest.Op) bool{
		"reads wait": isRead, "everything waits": func(vfstest.Op) bool { return true },
	} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(t *bubble) {
				h := newHanging(t, abc...)
				answers := hang(t, h.disks["a"], match)
				if err := h.get("a"); status.Code(err) != codes.DeadlineExceeded {
					t.Fatalf("a read at a leader whose disk hangs: %v", err)
				}
				time.Sleep(20 * time.Second)
				term := h.term()
				if h.leader() != "a" {
					t.Fatal("the lead has changed without a reason, so that this test would prove nothing")
				}
				h.silent("a", true)
				time.Sleep(3 * time.Second)
				leader := h.leader()
				if leader != "b" && leader != "c" {
					t.Fatalf("%q leads 3 s after the disk of a is known to hang", leader)
				}
				if err := h.get(leader); err != nil {
					t.Errorf("a read at the new leader: %v", err)
				}
				stays := func(lasts time.Duration) {
					t.Helper()
					if time.Sleep(lasts); h.leader() != leader || h.term() != term+1 {
						t.Fatalf("%q leads in term %d, wanted is %s in term %d", h.leader(), h.term(), leader, term+1)
					}
				}
				stays(time.Minute)
				answers()
				h.silent("a", false)
				stays(leadAgain - time.Second)
				time.Sleep(10 * time.Second)
				if h.leader() != "a" {
					t.Errorf("%q leads group 0 though the disk of a answers", h.leader())
				}
				if time.Sleep(time.Minute); h.leader() != "a" || h.term() != term+2 {
					t.Errorf("%q leads in term %d, wanted is a in term %d", h.leader(), h.term(), term+2)
				}
			})
		})
	}
}

// The leadership is not transferred to a shard whose disk hangs. If the disks of a majority hang, it is not
// transferred at all, because no other leader could be elected.
func TestTheLeadGoesToNoHangingDisk(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		shards, leaders []string
		elections       uint64
	}{
		"two of three": {abc, []string{"a"}, 0},
		"two of five":  {[]string{"a", "b", "c", "d", "e"}, []string{"c", "d", "e"}, 1},
	} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(t *bubble) {
				h := newHanging(t, c.shards...)
				term := h.term()
				for _, name := range []string{"b", "a"} {
					hang(t, h.disks[name], func(vfstest.Op) bool { return true })
					h.silent(name, true)
				}
				time.Sleep(time.Minute)
				if got := h.leader(); !slices.Contains(c.leaders, got) || h.term() != term+c.elections {
					t.Errorf("%q leads in term %d, wanted is one of %v in term %d", got, h.term(), c.leaders, term+c.elections)
				}
			})
		})
	}
}
