package etcd_test

import (
	"context"
	"fmt"
	"strings"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
)

// watch starts a watch, and returns when etcd has confirmed it.
func (e *underTest) watch(name string, options ...clientv3.OpOption) clientv3.WatchChan {
	e.Helper()
	watched := e.client.Watch(e.ctx, e.prefix+name, append(options, clientv3.WithCreatedNotify())...)
	if first := <-watched; !first.Created || first.Err() != nil {
		e.Fatalf("the watch begins with %+v, %v", first, first.Err())
	}
	return watched
}

// events lists events in the form "+name=value@1 -name@2". Each number is the event's revision minus the argument
// from.
func (e *underTest) events(events []*clientv3.Event, from int64) string {
	var words []string
	for _, event := range events {
		name, at := strings.TrimPrefix(string(event.Kv.Key), e.prefix), event.Kv.ModRevision-from
		word := fmt.Sprintf("+%s=%s@%d", name, event.Kv.Value, at)
		if event.Type == clientv3.EventTypeDelete {
			word = fmt.Sprintf("-%s@%d", name, at)
		}
		if event.PrevKv != nil {
			word += fmt.Sprintf("(%s@%d)", event.PrevKv.Value, event.PrevKv.ModRevision-from)
		}
		words = append(words, word)
	}
	return strings.Join(words, " ")
}

// take receives n events from the watch and lists them. The events may be spread over several responses, but all
// events of one revision arrive in the same response.
func (e *underTest) take(watched clientv3.WatchChan, n int, from int64) string {
	e.Helper()
	var all []*clientv3.Event
	last := int64(0)
	for len(all) < n {
		change, open := <-watched
		if !open || change.Err() != nil {
			e.Fatalf("the watch ended after %s: %v", e.events(all, from), change.Err())
		}
		if len(change.Events) > 0 && change.Events[0].Kv.ModRevision == last {
			e.Errorf("revision %d comes in two responses", last)
		}
		all = append(all, change.Events...)
		if last = all[len(all)-1].Kv.ModRevision; change.Header.Revision < last {
			e.Errorf("a response of revision %d has an event of %d", change.Header.Revision, last)
		}
	}
	return e.events(all, from)
}

var rowsOfWatches = []row{
	{name: "a watch tells what is written to its keys, in order", run: func(e *underTest) {
		one, prefix := e.watch("b"), e.watch("b", clientv3.WithPrefix())
		to, from := e.watch("a", clientv3.WithRange(e.prefix+"b")), e.watch("b", clientv3.WithFromKey())
		base := e.put("a", "1").Header.Revision
		e.put("b", "1")
		e.put("b", "1")
		e.remove("b")
		e.remove("b")
		e.put("bb", "4")
		is(e, "one key", e.take(one, 3, base), "+b=1@1 +b=1@2 -b@3")
		is(e, "a prefix", e.take(prefix, 4, base), "+b=1@1 +b=1@2 -b@3 +bb=4@4")
		is(e, "a range", e.take(to, 1, base), "+a=1@0")
		is(e, "all from a key on", e.take(from, 4, base), "+b=1@1 +b=1@2 -b@3 +bb=4@4")
	}},
	{name: "what is written at one revision comes in one response", run: func(e *underTest) {
		watched := e.watch("", clientv3.WithPrefix())
		base := e.put("d", "0").Header.Revision
		<-watched
		e.txn(e.opPut("c", "1"), clientv3.OpDelete(e.prefix+"d"), e.opPut("b", "1"),
			clientv3.OpTxn(nil, []clientv3.Op{e.opPut("a", "1")}, nil))
		is(e, "in the order of the operations", e.events((<-watched).Events, base), "+c=1@1 -d@1 +b=1@1 +a=1@1")
	}},
	{name: "a watch from an earlier revision tells what was written since", run: func(e *underTest) {
		base := e.put("a", "0").Header.Revision
		e.put("a", "1")
		e.txn(e.opPut("a", "2"), e.opPut("b", "2"))
		e.remove("a")
		watched := e.watch("", clientv3.WithPrefix(), clientv3.WithRev(base+1))
		is(e, "the past", e.take(watched, 4, base), "+a=1@1 +a=2@2 +b=2@2 -a@3")
		e.put("c", "4")
		is(e, "and then the present", e.take(watched, 1, base), "+c=4@4")
	}},
	{name: "a watch from a later revision waits for that", run: func(e *underTest) {
		base := e.put("a", "0").Header.Revision
		watched := e.watch("", clientv3.WithPrefix(), clientv3.WithRev(base+3))
		for i := range 4 {
			e.put("a", fmt.Sprint(i+1))
		}
		is(e, "what comes", e.take(watched, 2, base), "+a=3@3 +a=4@4")
	}},
	{name: "events have what was there before where that is asked for", run: func(e *underTest) {
		base := e.put("a", "0").Header.Revision
		watched := e.watch("", clientv3.WithPrefix(), clientv3.WithPrevKV())
		e.put("a", "1")
		e.remove("a")
		e.put("a", "3")
		is(e, "events", e.take(watched, 3, base), "+a=1@1(0@0) -a@2(1@1) +a=3@3")
		late := e.watch("", clientv3.WithPrefix(), clientv3.WithPrevKV(), clientv3.WithRev(base+1))
		is(e, "of the past", e.take(late, 3, base), "+a=1@1(0@0) -a@2(1@1) +a=3@3")
	}},
	{name: "a watch can leave out puts or deletes", run: func(e *underTest) {
		deletes, puts := e.watch("a", clientv3.WithFilterPut()), e.watch("a", clientv3.WithFilterDelete())
		base := e.put("a", "0").Header.Revision
		e.remove("a")
		e.put("a", "2")
		e.remove("a")
		is(e, "deletes", e.take(deletes, 2, base), "-a@1 -a@3")
		is(e, "puts", e.take(puts, 2, base), "+a=0@0 +a=2@2")
	}},
	{name: "a watch from a compacted revision ends", run: func(e *underTest) {
		base := e.put("a", "0").Header.Revision
		for i := range 3 {
			e.put("a", fmt.Sprint(i+1))
		}
		if _, err := e.client.Compact(e.ctx, base+2); err != nil {
			e.Fatal(err)
		}
		watched := e.client.Watch(e.ctx, e.prefix+"a", clientv3.WithRev(base+1))
		end := <-watched
		e.isError("the end", end.Err(), rpctypes.ErrCompacted)
		is(e, "it is cancelled", end.Canceled, true)
		is(e, "compacted until", end.CompactRevision, base+2)
		if _, open := <-watched; open {
			e.Error("the watch goes on")
		}
		rest := e.watch("a", clientv3.WithRev(base+3), clientv3.WithPrevKV())
		is(e, "from a later one on", e.take(rest, 1, base), "+a=3@3(2@2)")
	}},
	{name: "a watch ends with its context, and others go on", run: func(e *underTest) {
		ctx, cancel := context.WithCancel(e.ctx)
		ends, goesOn := e.client.Watch(ctx, e.prefix+"a", clientv3.WithCreatedNotify()), e.watch("a")
		<-ends
		cancel()
		if change, open := <-ends; open {
			e.Errorf("it goes on with %+v", change)
		}
		base := e.put("a", "0").Header.Revision
		is(e, "the other", e.take(goesOn, 1, base), "+a=0@0")
	}},
	{name: "a watch of nothing is refused", run: func(e *underTest) {
		refused := <-e.client.Watch(e.ctx, e.prefix+"b", clientv3.WithRange(e.prefix+"a"))
		if refused.Err() == nil {
			e.Errorf("it began: %+v", refused)
		}
	}},
	{name: "progress can be asked for", run: func(e *underTest) {
		watched := e.watch("a")
		at := e.put("other", "1").Header.Revision
		e.soon("the client's watch", func() bool { return e.client.RequestProgress(e.ctx) == nil })
		progress := <-watched
		is(e, "it is progress", progress.IsProgressNotify(), true)
		is(e, "the revision", progress.Header.Revision >= at, true)
	}},
	{name: "two clients hear the same", run: func(e *underTest) {
		one := e.watch("", clientv3.WithPrefix())
		e.client = e.connect()
		other := e.watch("", clientv3.WithPrefix())
		base := e.put("a", "0").Header.Revision
		for _, watched := range []clientv3.WatchChan{one, other} {
			is(e, "a client", e.take(watched, 1, base), "+a=0@0")
		}
	}},
}
