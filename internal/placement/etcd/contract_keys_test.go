package etcd_test

import (
	"fmt"
	"strings"
	"testing"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"

	"sheaf.dev/sheaf/internal/test/must"
)

var rowsOfKeys = []row{
	{name: "each write has the next revision", run: func(e *underTest) {
		first := e.put("a", "1").Header.Revision
		is(e, "the next put", e.put("b", "1").Header.Revision, first+1)
		is(e, "the same again", e.put("a", "1").Header.Revision, first+2)
		is(e, "a read", e.get("a").Header.Revision, first+2)
		is(e, "a delete", e.remove("a").Header.Revision, first+3)
		is(e, "a delete of nothing", e.remove("a").Header.Revision, first+3)
	}},
	{name: "a key knows its revisions and its version", run: func(e *underTest) {
		first := e.put("a", "1").Header.Revision
		e.put("a", "2")
		kv := e.get("a").Kvs[0]
		is(e, "created at", kv.CreateRevision, first)
		is(e, "modified at", kv.ModRevision, first+1)
		is(e, "version", kv.Version, 2)
		e.remove("a")
		is(e, "keys after the delete", e.get("a").Count, 0)
		e.put("a", "3")
		kv = e.get("a").Kvs[0]
		is(e, "created again at", kv.CreateRevision, first+3)
		is(e, "version of the new one", kv.Version, 1)
	}},
	{name: "what was there before comes with a write", run: func(e *underTest) {
		if before := e.put("a", "1", clientv3.WithPrevKV()).PrevKv; before != nil {
			e.Errorf("before the first: %v", before)
		}
		is(e, "before the second", string(e.put("a", "2", clientv3.WithPrevKV()).PrevKv.Value), "1")
		e.put("b", "1")
		gone := e.remove("", clientv3.WithPrefix(), clientv3.WithPrevKV())
		is(e, "deleted", gone.Deleted, 2)
		is(e, "the first that is deleted", string(gone.PrevKvs[0].Value), "2")
	}},
	{name: "a value or a lease stays where it is ignored", run: func(e *underTest) {
		_, err := e.client.Put(e.ctx, e.prefix+"a", "", clientv3.WithIgnoreValue())
		e.isError("no value to keep", err, rpctypes.ErrKeyNotFound)
		e.put("a", "1")
		e.put("a", "", clientv3.WithIgnoreValue())
		e.put("a", "2", clientv3.WithIgnoreLease())
		is(e, "the key", e.found(e.get("a")), "a=2")
	}},
	{name: "ranges are in the order of keys", run: func(e *underTest) {
		for _, name := range []string{"b", "a", "c/2", "c/1", "d", "c"} {
			e.put(name, "")
		}
		is(e, "all", e.found(e.get("", clientv3.WithPrefix())), "a= b= c= c/1= c/2= d=")
		is(e, "a prefix", e.found(e.get("c/", clientv3.WithPrefix())), "c/1= c/2=")
		is(e, "from one to before another", e.found(e.get("b", clientv3.WithRange(e.prefix+"c/2"))), "b= c= c/1=")
		is(e, "an empty range", e.found(e.get("c", clientv3.WithRange(e.prefix+"b"))), "")
		if names := e.found(e.get("d", clientv3.WithFromKey())); !strings.HasPrefix(names+" ", "d= ") {
			e.Errorf("all from a key on: %s", names)
		}
		count := e.get("c", clientv3.WithPrefix(), clientv3.WithCountOnly())
		is(e, "the count alone", fmt.Sprint(count.Count, len(count.Kvs), count.More), "3 0 false")
		is(e, "the deleted ones of a range", e.remove("b", clientv3.WithRange(e.prefix+"c/2")).Deleted, 3)
		is(e, "what is left", e.found(e.get("", clientv3.WithPrefix())), "a= c/2= d=")
	}},
	{name: "pages at one revision do not see later writes", run: func(e *underTest) {
		var last int64
		for i := range 7 {
			last = e.put(fmt.Sprint("k", i), "old").Header.Revision
		}
		end := clientv3.GetPrefixRangeEnd(e.prefix + "k")
		from, pages := e.prefix+"k", []string{}
		for more := true; more; {
			page, err := e.client.Get(e.ctx, from, clientv3.WithRange(end), clientv3.WithLimit(3), clientv3.WithRev(last))
			must.OK(e, err)
			pages, more = append(pages, e.found(page)), page.More
			is(e, "the count of what is left", page.Count, int64(7-3*(len(pages)-1)))
			is(e, "the revision of an answer about the past", page.Header.Revision, e.revision())
			from = string(page.Kvs[len(page.Kvs)-1].Key) + "\x00"
			e.put("k3", "new")
			e.put(fmt.Sprint("k5/", len(pages)), "new")
			e.remove("k6")
		}
		is(e, "pages", strings.Join(pages, " | "), "k0=old k1=old k2=old | k3=old k4=old k5=old | k6=old")
		is(e, "a limit that is just reached", e.get("k", clientv3.WithPrefix(), clientv3.WithRev(last),
			clientv3.WithLimit(7)).More, false)
	}},
	{name: "keys without their values", run: func(e *underTest) {
		at := e.put("a", "1").Header.Revision
		answer := e.get("", clientv3.WithPrefix(), clientv3.WithKeysOnly())
		is(e, "the key", e.found(answer), "a=")
		is(e, "its revision", answer.Kvs[0].ModRevision, at)
		is(e, "the value later", e.found(e.get("a")), "a=1")
	}},
	{name: "ranges can be sorted and filtered", run: func(e *underTest) {
		e.put("b", "1")
		middle := e.put("c", "3").Header.Revision
		e.put("a", "2")
		e.put("b", "0")
		all := clientv3.WithPrefix()
		is(e, "down by key", e.found(e.get("", all, clientv3.WithSort(clientv3.SortByKey, clientv3.SortDescend))),
			"c=3 b=0 a=2")
		is(e, "by value", e.found(e.get("", all, clientv3.WithSort(clientv3.SortByValue, clientv3.SortAscend))),
			"b=0 a=2 c=3")
		is(e, "down by version", e.found(e.get("", all, clientv3.WithSort(clientv3.SortByVersion, clientv3.SortDescend),
			clientv3.WithLimit(1))), "b=0")
		is(e, "by the last write", e.found(e.get("", all, clientv3.WithSort(clientv3.SortByModRevision,
			clientv3.SortAscend))), "c=3 a=2 b=0")
		is(e, "the first that was made", e.found(e.get("", clientv3.WithFirstCreate()...)), "b=0")
		is(e, "the last that was made", e.found(e.get("", clientv3.WithLastCreate()...)), "a=2")
		older := append(clientv3.WithLastCreate(), clientv3.WithMaxCreateRev(middle))
		is(e, "the last that was made until then", e.found(e.get("", older...)), "c=3")
		is(e, "written since", e.found(e.get("", all, clientv3.WithMinModRev(middle+1))), "a=2 b=0")
		is(e, "made before", e.found(e.get("", all, clientv3.WithMaxCreateRev(middle-1))), "b=0")
	}},
	{name: "the past is there until it is compacted, the future is not", run: func(e *underTest) {
		first := e.put("a", "1").Header.Revision
		e.put("a", "2")
		e.remove("a")
		e.put("b", "1")
		is(e, "before the delete", e.found(e.get("a", clientv3.WithRev(first+1))), "a=2")
		is(e, "after the delete", e.found(e.get("a", clientv3.WithRev(first+2))), "")
		_, err := e.client.Get(e.ctx, e.prefix+"a", clientv3.WithRev(first+4))
		e.isError("the future", err, rpctypes.ErrFutureRev)
		_, err = e.client.Compact(e.ctx, first+4)
		e.isError("compaction of the future", err, rpctypes.ErrFutureRev)
		if _, err := e.client.Compact(e.ctx, first+1); err != nil {
			e.Fatal(err)
		}
		_, err = e.client.Compact(e.ctx, first+1)
		e.isError("compaction of what is compacted", err, rpctypes.ErrCompacted)
		_, err = e.client.Get(e.ctx, e.prefix+"a", clientv3.WithRev(first))
		e.isError("the compacted past", err, rpctypes.ErrCompacted)
		is(e, "the revision of the compaction", e.found(e.get("a", clientv3.WithRev(first+1))), "a=2")
		if _, err := e.client.Compact(e.ctx, first+3); err != nil {
			e.Fatal(err)
		}
		is(e, "what is there now", e.found(e.get("", clientv3.WithPrefix())), "b=1")
		is(e, "a version goes on", e.put("b", "2", clientv3.WithPrevKV()).PrevKv.Version, 1)
	}},
	{name: "a key is not empty", run: func(e *underTest) {
		_, err := e.client.Put(e.ctx, "", "1")
		e.isError("put", err, rpctypes.ErrEmptyKey)
		_, err = e.client.Get(e.ctx, "")
		e.isError("get", err, rpctypes.ErrEmptyKey)
	}},
	{name: "a request has a largest size", run: func(e *underTest) {
		e.put("a", strings.Repeat("x", 3<<18))
		_, err := e.client.Put(e.ctx, e.prefix+"a", strings.Repeat("x", 3<<19))
		e.isError("a put of 1.5 MiB and more", err, rpctypes.ErrRequestTooLarge)
		is(e, "versions that were written", e.get("a").Kvs[0].Version, 1)
	}},
}

func TestRowsHaveNames(t *testing.T) {
	names := map[string]bool{}
	for _, r := range contract {
		if names[r.name] || r.name == "" {
			t.Errorf("%q is the name of two rows", r.name)
		}
		names[r.name] = true
	}
}
