package etcd_test

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/client/v3/concurrency"

	"sheaf.dev/sheaf/internal/test/must"
)

func (e *underTest) grant(seconds int64) clientv3.LeaseID {
	e.Helper()
	granted, err := e.client.Grant(e.ctx, seconds)
	if err != nil {
		e.Fatalf("grant: %v", err)
	}
	return granted.ID
}

// leased lists the keys attached to a lease. It returns "gone" if the lease does not exist.
func (e *underTest) leased(id clientv3.LeaseID) string {
	e.Helper()
	left, err := e.client.TimeToLive(e.ctx, id, clientv3.WithAttachedKeys())
	if err != nil {
		e.Fatalf("time to live: %v", err)
	}
	if left.TTL == -1 {
		return "gone"
	}
	var names []string
	for _, key := range left.Keys {
		names = append(names, strings.TrimPrefix(string(key), e.prefix))
	}
	slices.Sort(names) // sorting is needed because etcd returns the keys in arbitrary order
	return strings.Join(names, " ")
}

var rowsOfLeases = []row{
	{name: "a lease has its keys until it is revoked", run: func(e *underTest) {
		id, other := e.grant(60), e.grant(60)
		watched := e.client.Watch(e.ctx, e.prefix, clientv3.WithPrefix(), clientv3.WithCreatedNotify())
		<-watched
		for _, name := range []string{"c", "a", "b", "detached", "moved"} {
			e.put(name, "1", clientv3.WithLease(id))
			<-watched
		}
		is(e, "a key's lease", e.get("a").Kvs[0].Lease, int64(id))
		e.put("detached", "2")
		e.put("moved", "2", clientv3.WithLease(other))
		before := e.put("ab", "2").Header.Revision
		for range 3 {
			<-watched
		}
		is(e, "its keys", e.leased(id), "a b c")
		is(e, "of the other", e.leased(other), "moved")
		if _, err := e.client.Revoke(e.ctx, id); err != nil {
			e.Fatal(err)
		}
		is(e, "what is left", e.found(e.get("", clientv3.WithPrefix())), "ab=2 detached=2 moved=2")
		is(e, "the lease", e.leased(id), "gone")
		ended := <-watched
		words := []string{}
		for _, event := range ended.Events {
			words = append(words, fmt.Sprint(event.Type, strings.TrimPrefix(string(event.Kv.Key), e.prefix),
				event.Kv.ModRevision-before))
		}
		is(e, "the end of its keys, in one response at one revision", strings.Join(words, " "), "DELETEa1 DELETEb1 DELETEc1")
		is(e, "the revision", e.revision(), before+1)
		e.remove("moved")
		is(e, "a key that was deleted is the lease's no more", e.leased(other), "")
	}},
	{name: "a lease that is not there", run: func(e *underTest) {
		_, err := e.client.Put(e.ctx, e.prefix+"a", "1", clientv3.WithLease(77))
		e.isError("put", err, rpctypes.ErrLeaseNotFound)
		_, err = e.client.Revoke(e.ctx, 77)
		e.isError("revoke", err, rpctypes.ErrLeaseNotFound)
		_, err = e.client.KeepAliveOnce(e.ctx, 77)
		e.isError("renew once", err, rpctypes.ErrLeaseNotFound)
		is(e, "time to live", e.leased(77), "gone")
		renewals, err := e.client.KeepAlive(e.ctx, 77)
		must.OK(e, err)
		if answer, open := <-renewals; open {
			e.Errorf("renewed: %v", answer)
		}
	}},
	{name: "a lease is granted for a time in seconds", run: func(e *underTest) {
		granted, err := e.client.Grant(e.ctx, 60)
		must.OK(e, err)
		is(e, "granted", granted.TTL, 60)
		left, err := e.client.TimeToLive(e.ctx, granted.ID)
		if err != nil || left.GrantedTTL != 60 || left.TTL < 50 || left.TTL > 60 {
			e.Errorf("time to live: %+v, %v", left, err)
		}
		if renewed, err := e.client.KeepAliveOnce(e.ctx, granted.ID); err != nil || renewed.TTL != 60 {
			e.Errorf("renewed: %+v, %v", renewed, err)
		}
		leases, err := e.client.Leases(e.ctx)
		must.OK(e, err)
		listed := false
		for _, l := range leases.Leases {
			listed = listed || l.ID == granted.ID
		}
		is(e, "it is listed", listed, true)
		if granted, err := e.client.Grant(e.ctx, 0); err != nil || granted.TTL < 1 {
			e.Errorf("a lease of no time: %+v, %v", granted, err)
		}
		_, err = e.client.Grant(e.ctx, 10_000_000_000)
		e.isError("too long", err, rpctypes.ErrLeaseTTLTooLarge)
		is(e, "another lease is another one", e.grant(60) != granted.ID, true)
	}},
	{name: "a lease that is not renewed runs out", waits: true, run: func(e *underTest) {
		short := e.grant(1)
		watched := e.client.Watch(e.ctx, e.prefix, clientv3.WithPrefix(), clientv3.WithPrevKV(), clientv3.WithCreatedNotify())
		<-watched
		e.txn(e.opPut("b", "1", clientv3.WithLease(short)), e.opPut("a", "2", clientv3.WithLease(short)), e.opPut("c", "3"))
		<-watched
		ended := <-watched
		if len(ended.Events) != 2 {
			e.Fatalf("%d events, want 2", len(ended.Events))
		}
		for i, want := range []string{"a=2", "b=1"} {
			event := ended.Events[i]
			before := event.PrevKv
			is(e, "an event", event.Type, clientv3.EventTypeDelete)
			is(e, "before", fmt.Sprintf("%s=%s", before.GetKey(), before.GetValue()), e.prefix+want)
			is(e, "its revision", event.Kv.ModRevision, ended.Header.Revision)
		}
		is(e, "what is left", e.found(e.get("", clientv3.WithPrefix())), "c=3")
		is(e, "the lease", e.leased(short), "gone")
		_, err := e.client.KeepAliveOnce(e.ctx, short)
		e.isError("it is renewed too late", err, rpctypes.ErrLeaseNotFound)
	}},
	{name: "a lease that is renewed does not run out", waits: true, run: func(e *underTest) {
		renewed, left := e.grant(1), e.grant(2)
		ctx, cancel := context.WithCancel(e.ctx)
		defer cancel()
		renewals, err := e.client.KeepAlive(ctx, renewed)
		must.OK(e, err)
		e.put("renewed", "1", clientv3.WithLease(renewed))
		e.put("left", "1", clientv3.WithLease(left))
		watched := e.client.Watch(e.ctx, e.prefix+"left")
		for range 2 { // the client sends its first renewal immediately, and the first response answers that renewal
			if _, open := <-renewals; !open {
				e.Fatal("it is renewed no more")
			}
		}
		<-watched // waits until the longer lease has expired
		is(e, "what is left", e.found(e.get("", clientv3.WithPrefix())), "renewed=1")
		if _, err := e.client.Revoke(e.ctx, renewed); err != nil {
			e.Fatal(err)
		}
		for range renewals { // the client closes the channel when it finds out that the lease no longer exists
		}
	}},
}

var rowsOfElections = []row{
	{name: "an election goes from one to the next", waits: true, run: func(e *underTest) {
		session := func() *concurrency.Session {
			s, err := concurrency.NewSession(e.connect(), concurrency.WithLease(e.grant(6)), concurrency.WithContext(e.ctx))
			must.OK(e, err)
			return s
		}
		sessions := []*concurrency.Session{session(), session(), session()}
		elections := make([]*concurrency.Election, 3)
		won := []chan error{make(chan error, 1), make(chan error, 1), make(chan error, 1)}
		observer := concurrency.NewElection(session(), e.prefix+"leader")
		ctx, cancel := context.WithCancel(e.ctx)
		defer cancel()
		leaders := observer.Observe(ctx)
		for i := range elections {
			elections[i] = concurrency.NewElection(sessions[i], e.prefix+"leader")
			go func() { won[i] <- elections[i].Campaign(e.ctx, fmt.Sprint("candidate ", i)) }()
			e.soon("a candidate stands", func() bool {
				return e.get("leader/", clientv3.WithPrefix(), clientv3.WithCountOnly()).Count == int64(i+1)
			})
		}
		lead := func(i int) {
			e.Helper()
			must.OK(e, <-won[i])
			leader := <-leaders
			is(e, "the leader", string(leader.Kvs[0].Value), fmt.Sprint("candidate ", i))
			is(e, "its key", string(leader.Kvs[0].Key), elections[i].Key())
			is(e, "that it leads", e.holds(clientv3.Compare(clientv3.CreateRevision(elections[i].Key()), "=",
				elections[i].Rev())), true)
			for _, waiting := range won[i+1:] {
				is(e, "others that have won", len(waiting), 0)
			}
		}
		lead(0)
		must.OK(e, elections[0].Resign(e.ctx))
		lead(1)
		if _, err := e.client.Revoke(e.ctx, sessions[1].Lease()); err != nil {
			e.Fatal(err)
		}
		lead(2)
		// The client notices that its lease is gone at the next renewal, which it sends after a third of the lease's time.
		<-sessions[1].Done()
		is(e, "that the one before leads", e.holds(clientv3.Compare(clientv3.CreateRevision(elections[1].Key()), "=",
			elections[1].Rev())), false)
		must.OK(e, sessions[2].Close())
		_, err := observer.Leader(e.ctx)
		e.isError("nobody leads", err, concurrency.ErrElectionNoLeader)
	}},
}
