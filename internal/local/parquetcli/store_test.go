package parquetcli

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"iter"
	"maps"
	"slices"
	"sync"
	"time"

	"google.golang.org/grpc/codes"

	"sheaf.dev/sheaf/client"
	"sheaf.dev/sheaf/client/call/reason"
)

// store is a store in memory with views: what an export and an import ask of the client.
type store struct {
	mu      sync.Mutex
	uuid    string
	named   bool
	records map[client.Key]client.Record
	views   map[string]*view
	opened  int // number of views that were opened
	renewed int
	version int

	renewErr  error
	scanErr   map[string]error // by group: returned behind the records
	beforePut func(batch []client.PutItem) error
	afterScan func() // called after each record
	loads     map[client.Key]error
}

// view is a state of the store.
type view struct {
	records []client.Record // sorted by group and id
	expires time.Time
	lost    map[string]string
}

func newStore() *store {
	return &store{uuid: "11111111-aaaa", records: map[client.Key]client.Record{}, views: map[string]*view{},
		scanErr: map[string]error{}, loads: map[client.Key]error{}}
}

// put stores a record without conditions.
func (s *store) put(group string, id int64, data []byte) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.version++
	key := client.Key{ID: id, Group: group}
	s.records[key] = client.Record{Key: key, Version: fmt.Sprint("v", s.version), Timestamp: time.Unix(1, 2),
		CommitTime: time.Unix(3, 4), Attributes: map[string][]byte{"a": []byte("b")}, Size: int64(len(data)), Data: data,
		HasData: true}
}

func refused(code codes.Code, why, words string) error {
	return &client.Error{Op: "test", Code: code, Reason: why, Message: words}
}

func expired(id string) error {
	return refused(codes.OutOfRange, reason.ViewExpired, "view "+id+" has ended")
}

// find returns a view that has not ended. The caller holds mu.
func (s *store) find(id string) (*view, error) {
	v := s.views[id]
	if v == nil || !time.Now().Before(v.expires) {
		return nil, expired(id)
	}
	return v, nil
}

func (s *store) StoreUUID(context.Context) (string, error) { return s.uuid, nil }

func (s *store) OpenView(_ context.Context, groups []string, expires time.Duration) (client.View, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.opened++
	id := fmt.Sprint("view-", s.opened)
	v := &view{expires: time.Now().Add(expires)}
	for key, r := range s.records {
		if len(groups) == 0 || slices.Contains(groups, key.Group) {
			v.records = append(v.records, r)
		}
	}
	slices.SortFunc(v.records, func(a, b client.Record) int {
		return cmp.Or(cmp.Compare(a.Key.Group, b.Key.Group), cmp.Compare(a.Key.ID, b.Key.ID))
	})
	s.views[id] = v
	return client.View{ID: id, Opened: time.Now(), Expires: v.expires}, nil
}

func (s *store) RenewView(_ context.Context, id string, expires time.Duration) (client.View, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	v, err := s.find(id)
	if err = cmp.Or(s.renewErr, err); err != nil {
		return client.View{}, err
	}
	s.renewed++
	v.expires = time.Now().Add(expires)
	return client.View{ID: id, Expires: v.expires, Lost: v.lost}, nil
}

func (s *store) CloseView(_ context.Context, id string) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.views, id)
	return nil
}

// PlanScan makes one split of each group. Its token names view and group.
func (s *store) PlanScan(_ context.Context, o *client.PlanScanOptions) (splits []client.Split, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	v, err := s.find(o.View)
	if err != nil {
		return nil, err
	}
	groups := map[string]bool{}
	for _, r := range v.records {
		groups[r.Key.Group] = true
	}
	for _, g := range slices.Sorted(maps.Keys(groups)) {
		splits = append(splits, client.Split{Group: g, Token: []byte(o.View + "/" + g)})
	}
	return splits, nil
}

func (s *store) Scan(ctx context.Context, o *client.ScanOptions) iter.Seq2[client.Record, error] {
	return func(yield func(client.Record, error) bool) {
		id, group, _ := bytes.Cut(o.Split.Token, []byte("/"))
		s.mu.Lock()
		v, err := s.find(string(id))
		s.mu.Unlock()
		if err != nil {
			yield(client.Record{}, err)
			return
		}
		for _, r := range v.records {
			if r.Key.Group != string(group) {
				continue
			}
			if r.Size > 1<<20 {
				r.Data, r.HasData = nil, false
			}
			if ctx.Err() != nil {
				yield(client.Record{}, ctx.Err())
				return
			}
			if !yield(r, nil) {
				return
			}
			if s.afterScan != nil {
				s.afterScan()
			}
		}
		if err := s.scanErr[string(group)]; err != nil {
			yield(client.Record{}, err)
		}
	}
}

func (s *store) Download(_ context.Context, key client.Key, to io.Writer, o *client.DownloadOptions) (client.Record,
	error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := s.loads[key]; err != nil {
		return client.Record{}, err
	}
	for _, v := range s.views {
		for _, r := range v.records {
			if r.Key == key && r.Version == o.Version {
				_, err := to.Write(r.Data)
				return r, err
			}
		}
	}
	return client.Record{}, errors.New("no such version")
}

func (s *store) Named(context.Context) (bool, error) { return s.named, nil }

func (s *store) BatchPut(_ context.Context, items []client.PutItem) []client.PutOutcome {
	out := make([]client.PutOutcome, len(items))
	for i, item := range items {
		if s.beforePut != nil {
			if out[i].Err = s.beforePut(items[i : i+1]); out[i].Err != nil {
				continue
			}
		}
		s.mu.Lock()
		old, taken := s.records[item.Key]
		s.mu.Unlock()
		switch {
		case taken && string(old.Attributes["request"]) == string(item.Options.RequestID):
			out[i].Repeated = true
		case taken && item.Options.IfAbsent:
			out[i].Err = refused(codes.AlreadyExists, reason.RecordExists, "it exists")
		default:
			s.put(item.Key.Group, item.Key.ID, item.Data)
			s.mu.Lock()
			s.records[item.Key].Attributes["request"] = item.Options.RequestID
			s.mu.Unlock()
		}
	}
	return out
}

func (s *store) BatchGet(_ context.Context, items []client.GetItem) []client.GetOutcome {
	s.mu.Lock()
	defer s.mu.Unlock()
	out := make([]client.GetOutcome, len(items))
	for i, item := range items {
		r, ok := s.records[item.Key]
		if !ok {
			out[i].Err = refused(codes.NotFound, reason.RecordNotFound, "there is none")
		}
		out[i].Record = r
	}
	return out
}
