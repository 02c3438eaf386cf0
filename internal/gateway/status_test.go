package gateway_test

import (
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/uuid"

	"sheaf.dev/sheaf/internal/gateway"
	"sheaf.dev/sheaf/internal/placement"
	"sheaf.dev/sheaf/internal/placement/registry"
	"sheaf.dev/sheaf/internal/status/page"
	"sheaf.dev/sheaf/internal/test/bubbletest"
	"sheaf.dev/sheaf/internal/test/memetcdtest"
	"sheaf.dev/sheaf/internal/test/must"
)

// statusOf requests a gateway's status as the status page does.
func statusOf(t *testing.T, g *gateway.Gateway) (st gateway.Status) {
	t.Helper()
	mux := http.NewServeMux()
	g.HandleStatus(mux)
	for path, code := range map[string]int{"/": http.StatusOK, "/nothing": http.StatusNotFound, "/status": http.StatusOK} {
		answer := httptest.NewRecorder()
		mux.ServeHTTP(answer, httptest.NewRequest(http.MethodGet, path, nil))
		if answer.Code != code {
			t.Errorf("%s: %d, want %d", path, answer.Code, code)
		}
		if path != "/status" {
			continue
		}
		must.OK(t, json.Unmarshal(answer.Body.Bytes(), &st))
	}
	return st
}

func TestStatusShowsWhereGroupsAre(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		meta := hash(4)
		meta.Copies = 3
		c := newCluster(t, meta, gateway.Config{Version: "v9"}, "a", "b", "d", "e")
		members := func(shards ...string) (out []placement.Member) {
			for i, name := range shards {
				out = append(out, placement.Member{Shard: name, VolumeUUID: c.shards[name].volume, RaftID: uint64(i + 1)})
			}
			return out
		}
		put := func(group string, change func(*placement.Group)) {
			g, err := c.store.Group(c.ctx, group)
			must.OK(t, err)
			change(&g)
			if g, err = c.store.PutGroup(c.ctx, g); err != nil {
				t.Fatal(err)
			}
			c.awaitEpoch(g.Revision)
		}
		for n := range 4 {
			put(placement.GroupName(n), func(g *placement.Group) {
				g.Members, g.Leader, g.Bytes, g.Records = members("a", "b", "d"), "b", 1000, 10
			})
		}
		st := statusOf(t, c.gateway)
		if st.Summary.GetState() != page.Ready ||
			st.Summary.GetText() != "Ready: 4 groups on 4 shards have a route" || st.Summary.GetDo() != "" {
			t.Errorf("all well: %+v", st.Summary)
		}
		if st.Store != c.store.Name() || st.StoreUUID != meta.StoreUUID.String() || st.Copies != 3 || st.Version != "v9" ||
			st.Address != c.gateway.Addr() ||
			st.Epoch == 0 || st.EtcdSilentSeconds == nil || *st.EtcdSilentSeconds > 60 || st.Routing == nil ||
			st.Routing.Groups != 4 {
			t.Errorf("%+v", st)
		}
		if len(st.Shards) != 4 || st.Shards[1] != (gateway.ShardStatus{
			Name: "b", Address: c.shards["b"].address, State: "Active", CapacityBytes: 1 << 30, GroupCount: 4, Leaders: 4,
			StoredBytes: 4000,
		}) {
			t.Errorf("shards: %+v", st.Shards)
		}
		if len(st.Groups) != 4 || st.Groups[2].Group != "2" || st.Groups[2].State != "Routed" || st.Groups[2].Leader != "b" ||
			st.Groups[2].Records != 10 ||
			st.Groups[2].StoredBytes != 1000 || !slices.Equal(st.Groups[2].Shards, []string{"a", "b", "d"}) {
			t.Errorf("groups: %+v", st.Groups)
		}

		// A learner holds no complete copy yet, and a shard that came back with another volume does not hold the group.
		put("1", func(g *placement.Group) { g.Members[2].Role = placement.Learner })
		put("2", func(g *placement.Group) { g.Members[2].VolumeUUID = uuid.New() })
		put("3", func(g *placement.Group) { g.Members[1].VolumeUUID, g.Members[2].VolumeUUID = uuid.New(), uuid.New() })
		var states []string
		st = statusOf(t, c.gateway)
		for _, g := range st.Groups {
			states = append(states, g.State)
		}
		if want := []string{"Routed", "Routed", "Degraded", "Unavailable"}; !slices.Equal(states, want) ||
			len(st.Groups[1].Shards) != 2 {
			t.Errorf("groups are %v, want %v", states, want)
		}
		if st.Summary.State != page.NotReady || st.Summary.Text != "Not ready: 1 of 4 groups is not served: 3" {
			t.Errorf("a group without a majority: %+v", st.Summary)
		}
		put("3", func(g *placement.Group) { g.Members = members("a", "b", "d") })

		// A group whose target differs from its current shards is listed as a move. A shard whose registration has
		// expired is a problem.
		must.OK(t, c.store.SetTargets(c.ctx, []placement.Target{{Group: "0", Shards: []string{"b", "a", "e"},
			Reason: placement.ForBalance}}))
		awaitStatus(t, c.gateway, "the move is told of", func(st gateway.Status) bool {
			return slices.ContainsFunc(st.Moves, func(m gateway.MoveStatus) bool {
				return m.Group == "0" && m.Running && m.Reason == "Balance" && m.Bytes == 1000 && slices.Contains(m.From, "d") &&
					slices.Contains(m.To, "e")
			})
		})
		c.stops["d"]()
		awaitStatus(t, c.gateway, "the shard that is gone is told of", func(st gateway.Status) bool {
			return st.Shards[2].State == "Silent" && len(st.Problems) == 1 &&
				strings.Contains(st.Problems[0], "shard d: it is not registered") && st.Summary.State == page.Problems
		})
	})
}

// awaitStatus requests the status again and again until is(status) returns true.
func awaitStatus(t *testing.T, g *gateway.Gateway, what string, is func(gateway.Status) bool) {
	t.Helper()
	for end := time.Now().Add(2 * time.Minute); ; time.Sleep(10 * time.Millisecond) {
		st := statusOf(t, g)
		if is(st) {
			return
		}
		if time.Now().After(end) {
			t.Fatalf("%s: %+v", what, st)
		}
	}
}

func TestStatusReportsUnresponsiveEtcd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		network := bubbletest.NewNet()
		server := memetcdtest.On(t, network, "etcd:2379")
		store, err := registry.NewStore(server.Client(t), "quotes", nil)
		must.OK(t, err)
		g, err := gateway.Start(t.Context(), gateway.Config{Listen: "gateway:0", Store: store, Listener: network.Listen})
		must.OK(t, err)
		t.Cleanup(func() { _ = g.Stop(t.Context()) })
		awaitStatus(t, g, "there is no store", func(st gateway.Status) bool {
			return st.Summary.State == page.NotReady && strings.Contains(st.Summary.Text, "it holds no such store") &&
				st.Epoch == 0
		})
		if _, err := store.InitMeta(t.Context(), hash(2)); err != nil {
			t.Fatal(err)
		}
		awaitStatus(t, g, "there is a store", func(st gateway.Status) bool {
			return st.Epoch > 0 && st.EtcdSilentSeconds != nil
		})
		server.Away()
		awaitStatus(t, g, "etcd is gone", func(st gateway.Status) bool {
			return st.Summary.State == page.Problems && strings.HasPrefix(st.Summary.Text, "Without etcd for ") &&
				*st.EtcdSilentSeconds >= page.EtcdSilentMin.Seconds()
		})
		server.Back()
		awaitStatus(t, g, "etcd is back", func(st gateway.Status) bool {
			return st.Summary.State == page.NotReady && strings.Contains(st.Summary.Text, "no shard runs") &&
				*st.EtcdSilentSeconds < page.EtcdSilentMin.Seconds()
		})
	})
}
