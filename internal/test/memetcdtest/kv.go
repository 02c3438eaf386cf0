package memetcdtest

import (
	"bytes"
	"cmp"
	"context"
	"slices"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/mvccpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	"google.golang.org/protobuf/proto"
)

// Range implements pb.KVServer.
func (s service) Range(_ context.Context, r *pb.RangeRequest) (*pb.RangeResponse, error) {
	if err := checkKey(r.Key); err != nil {
		return nil, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	t := &transaction{store: s.data}
	if err := t.checkRevision(r); err != nil {
		return nil, err
	}
	return t.read(r), nil
}

// Put implements pb.KVServer.
func (s service) Put(_ context.Context, r *pb.PutRequest) (answer *pb.PutResponse, err error) {
	if err := checkPut(r); err != nil {
		return nil, err
	}
	if err := checkSize(r); err != nil {
		return nil, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := s.data.checkPut(r); err != nil {
		return nil, err
	}
	s.write(func(t *transaction) { answer = t.put(r) })
	return answer, nil
}

// DeleteRange implements pb.KVServer.
func (s service) DeleteRange(_ context.Context, r *pb.DeleteRangeRequest) (answer *pb.DeleteRangeResponse, err error) {
	if err := checkKey(r.Key); err != nil {
		return nil, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.write(func(t *transaction) { answer = t.delete(r) })
	return answer, nil
}

// Txn implements pb.KVServer.
func (s service) Txn(_ context.Context, r *pb.TxnRequest) (answer *pb.TxnResponse, err error) {
	if err := checkTxn(r, txnOpsMax); err != nil {
		return nil, err
	}
	for _, ops := range [][]*pb.RequestOp{r.Success, r.Failure} {
		if _, _, err := overlaps(ops); err != nil {
			return nil, err
		}
	}
	if err := checkSize(r); err != nil {
		return nil, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	// All conditions of the transaction and of its nested transactions are evaluated before the first write.
	path := map[*pb.TxnRequest]bool{}
	if err := s.data.decide(r, path); err != nil {
		return nil, err
	}
	s.write(func(t *transaction) { answer = t.run(r, path) })
	return answer, nil
}

// Compact implements pb.KVServer.
func (s service) Compact(_ context.Context, r *pb.CompactionRequest) (*pb.CompactionResponse, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case r.Revision <= s.data.compacted:
		return nil, rpctypes.ErrGRPCCompacted
	case r.Revision > s.data.revision:
		return nil, rpctypes.ErrGRPCFutureRev
	}
	s.data.compact(r.Revision)
	return &pb.CompactionResponse{Header: s.data.header(s.data.revision)}, nil
}

func checkKey(key []byte) error {
	if len(key) == 0 {
		return rpctypes.ErrGRPCEmptyKey
	}
	return nil
}

func checkPut(r *pb.PutRequest) error {
	switch {
	case r.IgnoreValue && len(r.Value) > 0:
		return rpctypes.ErrGRPCValueProvided
	case r.IgnoreLease && r.Lease != 0:
		return rpctypes.ErrGRPCLeaseProvided
	}
	return checkKey(r.Key)
}

func checkSize(r proto.Message) error {
	if proto.Size(r) > requestBytesMax {
		return rpctypes.ErrGRPCRequestTooLarge
	}
	return nil
}

// checkTxn checks that a transaction has at most the given number of operations, including those of its nested
// transactions.
func checkTxn(r *pb.TxnRequest, most int) error {
	ops := max(len(r.Compare), len(r.Success), len(r.Failure))
	if ops > most {
		return rpctypes.ErrGRPCTooManyOps
	}
	for _, c := range r.Compare {
		if err := checkKey(c.Key); err != nil {
			return err
		}
	}
	for _, op := range slices.Concat(r.Success, r.Failure) {
		var err error
		switch {
		case op.GetRequestRange() != nil:
			err = checkKey(op.GetRequestRange().Key)
		case op.GetRequestPut() != nil:
			err = checkPut(op.GetRequestPut())
		case op.GetRequestDeleteRange() != nil:
			err = checkKey(op.GetRequestDeleteRange().Key)
		case op.GetRequestTxn() != nil:
			err = checkTxn(op.GetRequestTxn(), most-ops)
		default:
			err = rpctypes.ErrGRPCKeyNotFound
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// overlaps returns an error if an operation writes a key that another operation of the same branch writes or deletes.
// Otherwise it returns the keys that are put and the ranges that are deleted.
func overlaps(ops []*pb.RequestOp) (puts map[string]bool, deletes []span, err error) {
	puts = map[string]bool{}
	for _, op := range ops {
		if r := op.GetRequestDeleteRange(); r != nil {
			deletes = append(deletes, spanOf(r.Key, r.RangeEnd))
		}
	}
	deleted := func(key string) bool {
		return slices.ContainsFunc(deletes, func(r span) bool { return r.has([]byte(key)) })
	}
	for _, op := range ops {
		nested := op.GetRequestTxn()
		if nested == nil {
			continue
		}
		then, thenDeletes, err := overlaps(nested.Success)
		if err != nil {
			return nil, nil, err
		}
		otherwise, otherwiseDeletes, err := overlaps(nested.Failure)
		if err != nil {
			return nil, nil, err
		}
		for key := range then {
			otherwise[key] = true // both branches may write the same key, because only one of them runs
		}
		for key := range otherwise {
			if puts[key] || deleted(key) {
				return nil, nil, rpctypes.ErrGRPCDuplicateKey
			}
			puts[key] = true
		}
		deletes = append(append(deletes, thenDeletes...), otherwiseDeletes...)
	}
	for _, op := range ops {
		if r := op.GetRequestPut(); r != nil {
			if puts[string(r.Key)] || deleted(string(r.Key)) {
				return nil, nil, rpctypes.ErrGRPCDuplicateKey
			}
			puts[string(r.Key)] = true
		}
	}
	return puts, deletes, nil
}

// checkPut returns an error if a put names a lease that does not exist, or if it keeps the value or the lease of a key
// that does not exist.
func (s *store) checkPut(r *pb.PutRequest) error {
	if r.Lease != 0 && s.leases[r.Lease] == nil {
		return rpctypes.ErrGRPCLeaseNotFound
	}
	if (r.IgnoreValue || r.IgnoreLease) && s.at(string(r.Key), s.revision) == nil {
		return rpctypes.ErrGRPCKeyNotFound
	}
	return nil
}

func (s *store) checkRevision(r *pb.RangeRequest) error {
	switch {
	case r.Revision > s.revision:
		return rpctypes.ErrGRPCFutureRev
	case r.Revision > 0 && r.Revision < s.compacted:
		return rpctypes.ErrGRPCCompacted
	}
	return nil
}

// decide chooses which branch to run in a transaction and in each of its nested transactions. It returns an error if
// a chosen branch cannot be executed.
func (s *store) decide(r *pb.TxnRequest, path map[*pb.TxnRequest]bool) error {
	path[r] = !slices.ContainsFunc(r.Compare, func(c *pb.Compare) bool { return !s.evaluate(c) })
	for _, op := range branch(r, path) {
		var err error
		switch {
		case op.GetRequestRange() != nil:
			err = s.checkRevision(op.GetRequestRange())
		case op.GetRequestPut() != nil:
			err = s.checkPut(op.GetRequestPut())
		case op.GetRequestTxn() != nil:
			err = s.decide(op.GetRequestTxn(), path)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

func branch(r *pb.TxnRequest, path map[*pb.TxnRequest]bool) []*pb.RequestOp {
	if path[r] {
		return r.Success
	}
	return r.Failure
}

// evaluate evaluates a condition. A condition on a range is true if every key in the range satisfies it. If a key does
// not exist, all of its numbers count as 0, and it satisfies no condition on a value.
func (s *store) evaluate(c *pb.Compare) bool {
	found := s.find(spanOf(c.Key, c.RangeEnd), s.revision)
	if len(found) == 0 {
		if c.Target == pb.Compare_VALUE {
			return false
		}
		found = []*mvccpb.KeyValue{{}}
	}
	return !slices.ContainsFunc(found, func(kv *mvccpb.KeyValue) bool { return !compares(c, kv) })
}

func compares(c *pb.Compare, kv *mvccpb.KeyValue) bool {
	var order int
	switch c.Target {
	case pb.Compare_VALUE:
		order = bytes.Compare(kv.Value, c.GetValue())
	case pb.Compare_CREATE:
		order = cmp.Compare(kv.CreateRevision, c.GetCreateRevision())
	case pb.Compare_MOD:
		order = cmp.Compare(kv.ModRevision, c.GetModRevision())
	case pb.Compare_VERSION:
		order = cmp.Compare(kv.Version, c.GetVersion())
	case pb.Compare_LEASE:
		order = cmp.Compare(kv.Lease, c.GetLease())
	}
	switch c.Result {
	case pb.Compare_EQUAL:
		return order == 0
	case pb.Compare_NOT_EQUAL:
		return order != 0
	case pb.Compare_GREATER:
		return order > 0
	}
	return order < 0
}

// run executes the branches that decide() has chosen.
func (t *transaction) run(r *pb.TxnRequest, path map[*pb.TxnRequest]bool) *pb.TxnResponse {
	answer := &pb.TxnResponse{Succeeded: path[r]}
	for _, op := range branch(r, path) {
		done := &pb.ResponseOp{}
		switch {
		case op.GetRequestRange() != nil:
			done.Response = &pb.ResponseOp_ResponseRange{ResponseRange: t.read(op.GetRequestRange())}
		case op.GetRequestPut() != nil:
			done.Response = &pb.ResponseOp_ResponsePut{ResponsePut: t.put(op.GetRequestPut())}
		case op.GetRequestDeleteRange() != nil:
			done.Response = &pb.ResponseOp_ResponseDeleteRange{ResponseDeleteRange: t.delete(op.GetRequestDeleteRange())}
		case op.GetRequestTxn() != nil:
			done.Response = &pb.ResponseOp_ResponseTxn{ResponseTxn: t.run(op.GetRequestTxn(), path)}
		}
		answer.Responses = append(answer.Responses, done)
	}
	answer.Header = t.header(t.now())
	return answer
}

// read handles a range request. It filters the keys, then sorts them, and then limits their number. The Count in the
// response is the number of keys in the range before any of these steps.
func (t *transaction) read(r *pb.RangeRequest) *pb.RangeResponse {
	at := r.Revision
	if at <= 0 {
		at = t.now()
	}
	found := t.find(spanOf(r.Key, r.RangeEnd), at)
	answer := &pb.RangeResponse{Header: t.header(t.now()), Count: int64(len(found))}
	if r.CountOnly {
		return answer
	}
	found = slices.DeleteFunc(found, func(kv *mvccpb.KeyValue) bool {
		return outside(kv.ModRevision, r.MinModRevision, r.MaxModRevision) ||
			outside(kv.CreateRevision, r.MinCreateRevision, r.MaxCreateRevision)
	})
	if r.SortOrder != pb.RangeRequest_NONE || r.SortTarget != pb.RangeRequest_KEY {
		slices.SortStableFunc(found, func(a, b *mvccpb.KeyValue) int {
			if r.SortOrder == pb.RangeRequest_DESCEND {
				a, b = b, a
			}
			return compareBy(r.SortTarget, a, b)
		})
	}
	if n := int(r.Limit); n > 0 && len(found) > n {
		found, answer.More = found[:n], true
	}
	if r.KeysOnly {
		for i, kv := range found {
			found[i] = &mvccpb.KeyValue{Key: kv.Key, ModRevision: kv.ModRevision, CreateRevision: kv.CreateRevision,
				Version: kv.Version}
		}
	}
	answer.Kvs = found
	return answer
}

// outside reports whether n is outside of the bounds. The bound least is the smallest permitted number, and most is
// the largest. A bound of 0 means that n is not bounded on that side.
func outside(n, least, most int64) bool { return least != 0 && n < least || most != 0 && n > most }

func compareBy(target pb.RangeRequest_SortTarget, a, b *mvccpb.KeyValue) int {
	switch target {
	case pb.RangeRequest_VERSION:
		return cmp.Compare(a.Version, b.Version)
	case pb.RangeRequest_CREATE:
		return cmp.Compare(a.CreateRevision, b.CreateRevision)
	case pb.RangeRequest_MOD:
		return cmp.Compare(a.ModRevision, b.ModRevision)
	case pb.RangeRequest_VALUE:
		return bytes.Compare(a.Value, b.Value)
	}
	return bytes.Compare(a.Key, b.Key)
}
