package etcd_test

import (
	"fmt"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"

	"sheaf.dev/sheaf/internal/test/must"
)

// holds reports whether all conditions are true in etcd.
func (e *underTest) holds(conditions ...clientv3.Cmp) bool {
	e.Helper()
	answer, err := e.client.Txn(e.ctx).If(conditions...).Commit()
	if err != nil {
		e.Fatalf("conditions: %v", err)
	}
	return answer.Succeeded
}

var rowsOfTransactions = []row{
	{name: "conditions of each kind", run: func(e *underTest) {
		granted, err := e.client.Grant(e.ctx, 60)
		must.OK(e, err)
		first := e.put("a", "m").Header.Revision
		e.put("a", "m", clientv3.WithLease(granted.ID))
		a, none := e.prefix+"a", e.prefix+"none"
		for _, c := range []struct {
			what  string
			there clientv3.Cmp // condition on a key that exists
			value any          // value that the condition compares with
			less  any
			more  any
		}{
			{"value", clientv3.Value(a), "m", "l", "n"},
			{"version", clientv3.Version(a), 2, 1, 3},
			{"create", clientv3.CreateRevision(a), first, first - 1, first + 1},
			{"mod", clientv3.ModRevision(a), first + 1, first, first + 2},
			{"lease", clientv3.LeaseValue(a), granted.ID, granted.ID - 1, granted.ID + 1},
		} {
			// For each operator, the array says whether the condition is true for the current value, for a lower one and for a
			// higher one.
			for result, with := range map[string][3]bool{
				"=": {true, false, false}, "!=": {false, true, true}, ">": {false, true, false}, "<": {false, false, true},
			} {
				for i, v := range []any{c.value, c.less, c.more} {
					is(e, fmt.Sprint(c.what, " ", result, " ", v), e.holds(clientv3.Compare(c.there, result, v)), with[i])
				}
			}
		}
		is(e, "the revision of a key that is not there", e.holds(clientv3.Compare(clientv3.ModRevision(none), "=", 0),
			clientv3.Compare(clientv3.CreateRevision(none), "=", 0), clientv3.Compare(clientv3.Version(none), "=", 0)), true)
		is(e, "the value of a key that is not there", e.holds(clientv3.Compare(clientv3.Value(none), "=", "")), false)
		is(e, "nor another", e.holds(clientv3.Compare(clientv3.Value(none), "!=", "x")), false)
		is(e, "one of two does not hold",
			e.holds(clientv3.Compare(clientv3.Version(a), "=", 2), clientv3.Compare(clientv3.Version(none), ">", 0)), false)
		e.put("ab", "z")
		is(e, "all of a range", e.holds(clientv3.Compare(clientv3.Value(a), ">", "l").WithPrefix()), true)
		is(e, "not all of a range", e.holds(clientv3.Compare(clientv3.Value(a), "<", "n").WithPrefix()), false)
	}},
	{name: "a transaction is one revision", run: func(e *underTest) {
		before := e.put("a", "1").Header.Revision
		answer := e.txn(e.opPut("a", "2"), e.opPut("b", "2"), clientv3.OpDelete(e.prefix+"none"))
		is(e, "its revision", answer.Header.Revision, before+1)
		all := e.get("", clientv3.WithPrefix())
		is(e, "the keys", e.found(all), "a=2 b=2")
		is(e, "one", all.Kvs[0].ModRevision, before+1)
		is(e, "the other", all.Kvs[1].ModRevision, before+1)
	}},
	{name: "a transaction that writes nothing has no revision", run: func(e *underTest) {
		before := e.put("a", "1").Header.Revision
		answer, err := e.client.Txn(e.ctx).If(clientv3.Compare(clientv3.Version(e.prefix+"a"), "=", 7)).
			Then(e.opPut("a", "2")).Else(clientv3.OpGet(e.prefix + "a")).Commit()
		must.OK(e, err)
		is(e, "it succeeded", answer.Succeeded, false)
		is(e, "its revision", answer.Header.Revision, before)
		is(e, "what the other branch read", string(answer.Responses[0].GetResponseRange().Kvs[0].Value), "1")
		is(e, "reads alone", e.txn(clientv3.OpGet(e.prefix+"a")).Header.Revision, before)
		is(e, "a delete of nothing", e.txn(clientv3.OpDelete(e.prefix+"none")).Header.Revision, before)
		is(e, "nothing at all", e.txn().Header.Revision, before)
		is(e, "the next write", e.put("a", "2").Header.Revision, before+1)
	}},
	{name: "reads of a transaction see its writes before them", run: func(e *underTest) {
		before := e.put("a", "1").Header.Revision
		answer := e.txn(clientv3.OpGet(e.prefix+"a"), e.opPut("a", "2"), clientv3.OpGet(e.prefix+"a"),
			clientv3.OpGet(e.prefix+"a", clientv3.WithRev(before)), clientv3.OpDelete(e.prefix+"b"),
			clientv3.OpGet(e.prefix, clientv3.WithPrefix(), clientv3.WithCountOnly()))
		read := func(i int) string { return string(answer.Responses[i].GetResponseRange().Kvs[0].Value) }
		is(e, "before", read(0), "1")
		is(e, "after", read(2), "2")
		is(e, "at an earlier revision", read(3), "1")
		is(e, "deleted", answer.Responses[4].GetResponseDeleteRange().Deleted, 0)
		is(e, "the count", answer.Responses[5].GetResponseRange().Count, 1)
	}},
	{name: "conditions of nested transactions are of what was before", run: func(e *underTest) {
		first := e.put("a", "1").Header.Revision
		nested := func(name string, version int) clientv3.Op {
			return clientv3.OpTxn([]clientv3.Cmp{clientv3.Compare(clientv3.Version(e.prefix+name), "=", version)},
				[]clientv3.Op{e.opPut(name+"/then", "")}, []clientv3.Op{e.opPut(name+"/else", "")})
		}
		answer := e.txn(e.opPut("a", "2"), e.opPut("b", "1"), nested("a", 1), nested("b", 1))
		is(e, "the first nested one", answer.Responses[2].GetResponseTxn().Succeeded, true)
		is(e, "the second nested one", answer.Responses[3].GetResponseTxn().Succeeded, false)
		is(e, "the keys", e.found(e.get("", clientv3.WithPrefix())), "a=2 a/then= b=1 b/else=")
		is(e, "the revision", answer.Header.Revision, first+1)
	}},
	{name: "a transaction writes a key once", run: func(e *underTest) {
		a := e.prefix + "a"
		nest := func(then, otherwise []clientv3.Op) clientv3.Op { return clientv3.OpTxn(nil, then, otherwise) }
		put := []clientv3.Op{e.opPut("a", "1")}
		for what, ops := range map[string][]clientv3.Op{
			"two puts":                       {put[0], e.opPut("a", "2")},
			"a put and a delete":             {put[0], clientv3.OpDelete(a)},
			"a put and a delete of a range":  {clientv3.OpDelete(e.prefix, clientv3.WithPrefix()), put[0]},
			"a put and a nested put":         {put[0], nest(put, nil)},
			"two nested puts":                {nest(put, nil), nest(nil, put)},
			"a put and a nested delete":      {put[0], nest(nil, []clientv3.Op{clientv3.OpDelete(a)})},
			"a nested delete and nested put": {nest([]clientv3.Op{clientv3.OpDelete(a)}, nil), nest(put, nil)},
		} {
			_, err := e.client.Txn(e.ctx).Then(ops...).Commit()
			e.isError(what, err, rpctypes.ErrDuplicateKey)
		}
		is(e, "keys", e.get("", clientv3.WithPrefix()).Count, 0)
		e.txn(nest(put, put), clientv3.OpDelete(e.prefix+"b"), clientv3.OpDelete(e.prefix+"b"))
		is(e, "of two branches one runs", e.found(e.get("a")), "a=1")
	}},
	{name: "a transaction has at most 128 operations", run: func(e *underTest) {
		ops := make([]clientv3.Op, 0, 129)
		for i := range 129 {
			ops = append(ops, e.opPut(fmt.Sprint(i), ""))
		}
		e.txn(ops[:128]...)
		_, err := e.client.Txn(e.ctx).Then(ops...).Commit()
		e.isError("129", err, rpctypes.ErrTooManyOps)
		e.txn(clientv3.OpTxn(nil, ops[:127], nil))
		_, err = e.client.Txn(e.ctx).Then(clientv3.OpTxn(nil, ops[:128], nil)).Commit()
		e.isError("128 in one", err, rpctypes.ErrTooManyOps)
		e.txn(clientv3.OpTxn(nil, ops[:126], nil), clientv3.OpTxn(nil, ops[126:128], nil))
	}},
	{name: "a transaction that cannot be done whole is not done", run: func(e *underTest) {
		before := e.put("a", "1").Header.Revision
		for what, c := range map[string]struct {
			op   clientv3.Op
			want error
		}{
			"a lease that is not there": {e.opPut("b", "", clientv3.WithLease(77)), rpctypes.ErrLeaseNotFound},
			"a read of the future":      {clientv3.OpGet(e.prefix+"a", clientv3.WithRev(before+9)), rpctypes.ErrFutureRev},
			"a nested one": {clientv3.OpTxn(nil, []clientv3.Op{e.opPut("b", "", clientv3.WithLease(77))}, nil),
				rpctypes.ErrLeaseNotFound},
		} {
			_, err := e.client.Txn(e.ctx).Then(e.opPut("a", "2"), c.op).Commit()
			e.isError(what, err, c.want)
		}
		// The nested transaction has no conditions. Therefore its else branch, which names a lease that does not exist, is
		// not executed.
		e.txn(e.opPut("a", "3"), clientv3.OpTxn(nil, nil, []clientv3.Op{e.opPut("b", "", clientv3.WithLease(77))}))
		is(e, "the key", e.found(e.get("", clientv3.WithPrefix())), "a=3")
		is(e, "the revision", e.revision(), before+1)
	}},
}
