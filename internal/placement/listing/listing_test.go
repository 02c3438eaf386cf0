package listing

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/uuid"
	"go.etcd.io/etcd/api/v3/etcdserverpb"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	archivev1 "sheaf.dev/sheaf/api/sheaf/archive/v1"
	"sheaf.dev/sheaf/internal/placement"
	"sheaf.dev/sheaf/internal/placement/registry"
	"sheaf.dev/sheaf/internal/test/bubbletest"
	"sheaf.dev/sheaf/internal/test/memetcdtest"
	"sheaf.dev/sheaf/internal/test/must"
)

var (
	newStore, oldStore = uuid.UUID{1, 2}, uuid.UUID{3, 4}
	at                 = time.Date(2026, 11, 1, 12, 0, 0, 5, time.UTC)
)

// answers is a source that sends these messages.
type answers []*archivev1.ListGroupsResponse

func (a answers) ListGroups(_ *archivev1.ListGroupsRequest,
	stream grpc.ServerStreamingServer[archivev1.ListGroupsResponse]) error {
	for _, one := range a {
		if one == nil {
			return errors.New("cut")
		}
		if err := stream.Send(one); err != nil {
			return err
		}
	}
	return nil
}

func header(routing string, groups int64) *archivev1.ListGroupsResponse {
	return &archivev1.ListGroupsResponse{Part: &archivev1.ListGroupsResponse_Header{Header: &archivev1.ListGroupsHeader{
		Store: newStore[:], ArchivedStore: oldStore[:], Routing: routing, HashGroups: groups, TimeUnixNs: at.UnixNano()}}}
}

// part returns a message with groups. A name that ends with an exclamation mark stands for a group that cannot be
// restored, and "!" for one without a name.
func part(names ...string) *archivev1.ListGroupsResponse {
	out := &archivev1.ListGroupsPart{}
	for _, name := range names {
		id := uuid.NewSHA1(newStore, []byte(name))
		g := &archivev1.RestoredGroup{Uuid: id[:]}
		var bad bool
		if g.Name, bad = strings.CutSuffix(name, "!"); bad {
			g.Error = "damaged"
		}
		out.Groups = append(out.Groups, g)
	}
	return &archivev1.ListGroupsResponse{Part: &archivev1.ListGroupsResponse_Groups{Groups: out}}
}

func end(groups int64) *archivev1.ListGroupsResponse {
	return &archivev1.ListGroupsResponse{Part: &archivev1.ListGroupsResponse_End{End: &archivev1.ListGroupsEnd{
		Groups: groups}}}
}

// serves is a source in a bubble, until the end of the test.
type serves struct {
	archivev1.UnimplementedRestoreServiceServer
	answers
}

func (s serves) ListGroups(in *archivev1.ListGroupsRequest,
	stream grpc.ServerStreamingServer[archivev1.ListGroupsResponse]) error {
	return s.answers.ListGroups(in, stream)
}

func serve(t *testing.T, network *bubbletest.Net, address string, a answers) (stop func()) {
	t.Helper()
	l, err := network.Listen(t.Context(), address)
	must.OK(t, err)
	server := grpc.NewServer()
	archivev1.RegisterRestoreServiceServer(server, serves{answers: a})
	go func(l net.Listener) { _ = server.Serve(l) }(l)
	t.Cleanup(server.Stop)
	return server.Stop
}

// A list counts only if it is complete, and if a store can have such groups.
func TestOnlyAWholeListCounts(t *testing.T) {
	bubbletest.Run(t, func(t *testing.T, network *bubbletest.Net) {
		named, hash := header("named", 0), header("hash", 3)
		twice := part("a")
		twice.GetGroups().Groups[0].Name = "b"
		own := header("named", 0)
		own.GetHeader().Store = oldStore[:]
		short := header("named", 0)
		short.GetHeader().Store = []byte{1}
		for n, c := range []struct {
			what string
			a    answers
			want string // in the error; empty: the list counts
		}{
			{"named", answers{named, part("a"), part("b!", "!"), end(3)}, ""},
			{"no groups", answers{named, end(0)}, ""},
			{"hash", answers{hash, part("2", "0", "1!"), end(3)}, ""},
			{"nothing", answers{}, "EOF"},
			{"no header", answers{part("a"), end(1)}, "no header"},
			{"no end", answers{named, part("a")}, "without an end"},
			{"cut", answers{named, part("a"), nil}, "cut"},
			{"a part is missing", answers{named, part("a"), end(2)}, "it has 2 groups, and 1 came"},
			{"a group of hash is missing", answers{hash, part("0", "1"), end(2)}, "has 3 groups, and 2 are listed"},
			{"a group that hash does not have", answers{hash, part("0", "1", "3"), end(3)}, "group \"3\" is listed"},
			{"a group of hash under another name", answers{hash, part("0", "1", "02"), end(3)}, "group \"02\" is listed"},
			{"a name twice", answers{named, part("a", "b"), twice, end(3)}, "that of another group"},
			{"a name that no group has", answers{named, part(".a"), end(1)}, "name"},
			{"no routing", answers{header("x", 0), end(0)}, "routing"},
			{"too many groups", answers{header("hash", 1<<40), end(0)}, "groups"},
			{"a negative number of groups", answers{header("hash", -1), end(0)}, "groups"},
			{"the archived store itself", answers{own, end(0)}, "archived"},
			{"a short UUID", answers{short, end(0)}, "UUID"},
		} {
			address := fmt.Sprintf("source%d:1", n)
			stop := serve(t, network, address, c.a)
			list, err := Ask(t.Context(), address, insecure.NewCredentials(), network.Dialer())
			stop()
			switch {
			case c.want == "" && err != nil:
				t.Errorf("%s: %v", c.what, err)
			case c.want == "" && (list.Store != newStore || list.Archived != oldStore || !list.At.Equal(at)):
				t.Errorf("%s: %+v", c.what, list)
			case c.want != "" && (err == nil || !strings.Contains(err.Error(), c.want)):
				t.Errorf("%s: %v", c.what, err)
			}
		}
	})
}

// The groups wait under the UUIDs and ranges of the list. Those that cannot be restored are named, ten at most.
func TestGroupsOfAListWait(t *testing.T) {
	l := List{Store: newStore, Archived: oldStore, Routing: placement.Routing{Mode: placement.Hash, Groups: 12}, At: at}
	for n := range 12 {
		l.Groups = append(l.Groups, Group{Name: placement.GroupName(n), UUID: uuid.New(), Err: "damaged"})
	}
	must.OK(t, l.check())
	groups, err := l.Placed()
	must.OK(t, err)
	seen := map[string]placement.Group{}
	for _, g := range groups {
		seen[g.Name] = g
	}
	for n, of := range l.Groups {
		g := seen[of.Name]
		number, err := l.number(of.Name)
		must.OK(t, err)
		if first, last := l.Routing.KeyRange(number); !g.Restoring || g.UUID != of.UUID || g.KeyFirst != first ||
			g.KeyLast != last || len(g.Members) > 0 {
			t.Errorf("%d: %+v", n, g)
		}
	}
	if err := l.Whole(); err == nil || strings.Count(err.Error(), "damaged") != 10 ||
		!strings.Contains(err.Error(), "cannot restore 12 of 12 groups") || !strings.Contains(err.Error(), "and 2 more") {
		t.Errorf("%v", err)
	}
	meta := placement.Meta{StoreUUID: newStore, Routing: l.Routing, Copies: 1, Restore: &placement.Restore{Source: "s:1"}}
	if err := l.Fits(meta); err == nil {
		t.Error("a list with lost groups fits a whole restore")
	}
	meta.Restore.Partly = true
	must.OK(t, l.Fits(meta))
	must.OK(t, l.HasAll([]string{"11", "0", "3"}))
	if err := l.HasAll([]string{"0", "12"}); err == nil || !strings.Contains(err.Error(), "group 12 is to be restored") {
		t.Errorf("a group that is not there comes first: %v", err)
	}
	for what, change := range map[string]func(*placement.Meta){
		"store":   func(m *placement.Meta) { m.StoreUUID = uuid.New() },
		"routing": func(m *placement.Meta) { m.Routing.Groups = 11 },
	} {
		other := meta
		change(&other)
		if err := l.Fits(other); err == nil {
			t.Errorf("another %s", what)
		}
	}
}

// A keeper lists the groups as soon as the source runs, and names the problem until then.
func TestAKeeperWaitsForTheSource(t *testing.T) {
	bubbletest.Run(t, func(t *testing.T, network *bubbletest.Net) {
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		store, err := registry.NewStore(memetcdtest.On(t, network, "etcd:2379").Client(t), "s", nil)
		must.OK(t, err)
		_, err = store.InitMeta(ctx, placement.Meta{StoreUUID: newStore, Copies: 1,
			Routing: placement.Routing{Mode: placement.Named},
			Restore: &placement.Restore{Source: "source:1", Listing: true}})
		must.OK(t, err)
		k := &Keeper{Store: store, Logger: slog.New(slog.DiscardHandler),
			Ask: func(ctx context.Context, address string) (List, error) {
				return Ask(ctx, address, insecure.NewCredentials(), network.Dialer())
			}}
		done := make(chan struct{})
		go func() {
			k.Run(ctx)
			close(done)
		}()
		listing := func() bool {
			meta, err := store.Meta(ctx)
			must.OK(t, err)
			return meta.Listing()
		}
		awaits := func(what string, is func() bool) {
			t.Helper()
			for range 1000 {
				if is() {
					return
				}
				time.Sleep(time.Second)
			}
			t.Fatalf("waited in vain: %s: %q", what, k.Problem())
		}
		awaits("the source is away", func() bool { return strings.Contains(k.Problem(), "source:1") })
		stop := serve(t, network, "source:1", answers{header("named", 0), part("a", "b!"), end(2)})
		awaits("a group cannot be restored", func() bool { return strings.Contains(k.Problem(), "group b: damaged") })
		stop()
		if view, err := store.View(ctx); err != nil || len(view.Groups) > 0 || !listing() {
			t.Errorf("%v, %+v", err, view.Groups)
		}
		stop = serve(t, network, "source:1", answers{header("named", 0), part("a", "b"), end(2)})
		awaits("the list is complete", func() bool { return !listing() && k.Problem() == "" })
		stop()
		if view, err := store.View(ctx); err != nil || len(view.Groups) != 2 || !view.Groups["b"].Restoring {
			t.Errorf("%v, %+v", err, view.Groups)
		}
		cancel()
		<-done
	})
}

// A list that takes longer than the limit on one request is written nevertheless. A request that is never answered
// ends, and is made again.
func TestALongListIsWritten(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		server := memetcdtest.New(t)
		store, err := registry.NewStore(server.Client(t), "s", nil)
		must.OK(t, err)
		_, err = store.InitMeta(ctx, placement.Meta{StoreUUID: newStore, Copies: 1,
			Routing: placement.Routing{Mode: placement.Named},
			Restore: &placement.Restore{Source: "source:1", Listing: true}})
		must.OK(t, err)
		list := List{Store: newStore, Archived: oldStore, At: at, Routing: placement.Routing{Mode: placement.Named}}
		for n := range 500 {
			name := fmt.Sprintf("g%03d", n)
			list.Groups = append(list.Groups, Group{Name: name, UUID: uuid.NewSHA1(newStore, []byte(name))})
		}
		writes := 0
		server.Intercept(func(ctx context.Context, request any, _ *grpc.UnaryServerInfo, do grpc.UnaryHandler) (any, error) {
			if _, ok := request.(*etcdserverpb.TxnRequest); ok {
				if writes++; writes == 3 {
					<-ctx.Done()
					return nil, ctx.Err()
				}
				time.Sleep(20 * time.Second)
			}
			return do(ctx, request)
		})
		k := &Keeper{Store: store, Logger: slog.New(slog.DiscardHandler),
			Ask: func(context.Context, string) (List, error) { return list, nil }}
		done := make(chan struct{})
		go func() {
			k.Run(ctx)
			close(done)
		}()
		time.Sleep(10 * time.Minute)
		server.Intercept(nil)
		if view, err := store.View(ctx); err != nil || view.Meta.Listing() || len(view.Groups) != 500 {
			t.Errorf("%v, %q, %d groups", err, k.Problem(), len(view.Groups))
		}
		cancel()
		<-done
	})
}
