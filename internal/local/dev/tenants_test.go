package dev

import (
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	mathrand "math/rand/v2"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"sheaf.dev/sheaf/client"
	"sheaf.dev/sheaf/client/recordv1"
	"sheaf.dev/sheaf/internal/security/access"
	"sheaf.dev/sheaf/internal/security/identity"
	"sheaf.dev/sheaf/internal/test/must"
)

// tenantStore is a store whose tenants make random calls. Each tenant has its own prefix. The data of each record
// begins with the name of the tenant that stored it.
type tenantStore struct {
	*granted
	r       *mathrand.Rand
	ctx     context.Context
	records map[string][]recordv1.RecordServiceClient // clients of each tenant, by server
	callers []*access.Caller
	sealer  *access.Signer // signer of the store, for values that no tenant has received
	other   *access.Signer // signer of another store
	// handed holds the values that each tenant received, by kind.
	handed [tenants]map[string][]handedValue
	counts map[string]int
}

// handedValue is a value that a tenant received, about one of its own groups.
type handedValue struct {
	value []byte
	group string
	id    int64 // id of the record, for a page token
}

const tenants = 4

func prefixOf(tenant int) string { return fmt.Sprintf("t%d-", tenant) }

func startTenancy(t *testing.T, seed uint64) *tenantStore {
	t.Helper()
	groups := []string{"t0", "T0-a", "t0_a", "tt0-a", "t00-a", "t"} // groups that no tenant owns
	for n := range tenants {
		groups = append(groups, prefixOf(n)+"a", prefixOf(n)+"b")
	}
	g := startGranted(t)
	admin := callTLS(t, g.Dev, false)
	for _, group := range groups {
		for id := range int64(4) {
			for range 3 { // three versions of the record
				if _, err := admin.Put(t.Context(), client.Key{ID: id, Group: group}, []byte(ownerOf(group)+":"+group),
					nil); err != nil {
					t.Fatal(err)
				}
			}
		}
	}
	p := &tenantStore{granted: g, r: mathrand.New(mathrand.NewPCG(seed, 44)),
		records: map[string][]recordv1.RecordServiceClient{}, counts: map[string]int{}}
	var cancel context.CancelFunc
	p.ctx, cancel = context.WithTimeout(t.Context(), 20*time.Minute)
	t.Cleanup(cancel)
	table := access.Table{}
	for n := range tenants {
		name := fmt.Sprint("tenant-", n)
		table.Grants = append(table.Grants, toCertificate(name, access.Groups{Prefixes: []string{prefixOf(n)}}, access.Get,
			access.Put, access.Delete, access.Scan, access.Watch))
		for at, address := range g.servers {
			p.records[at] = append(p.records[at], recordv1.NewRecordServiceClient(g.dial(address, g.as(identity.Client, name))))
		}
		caller := access.Certified(identity.Identity{Store: g.secured.store, Role: identity.Client, Name: name})
		p.callers = append(p.callers, &caller)
		p.handed[n] = map[string][]handedValue{}
	}
	g.set(table)
	key, err := g.store.SigningKey(p.ctx)
	must.OK(t, err)
	if p.sealer, err = access.NewSigner(key); err != nil {
		t.Fatal(err)
	}
	if p.other, err = access.NewSigner(make([]byte, access.SigningKeyBytes)); err != nil {
		t.Fatal(err)
	}
	return p
}

// ownerOf returns the tenant that owns a group according to the model, which is the tenant whose prefix equals the
// beginning of the group's name byte by byte.
func ownerOf(group string) string {
	for n := range tenants {
		if strings.HasPrefix(group, prefixOf(n)) {
			return fmt.Sprint("tenant-", n)
		}
	}
	return "nobody"
}

// group chooses the name of a group for a tenant: a group of the tenant, a group of another tenant, or a group with a
// similar name.
func (p *tenantStore) group(tenant int) string {
	own, foreign := prefixOf(tenant)+pick(p.r, "a", "b"), prefixOf((tenant+1+p.r.IntN(tenants-1))%tenants)+pick(p.r, "a",
		"b")
	switch p.r.IntN(4) {
	case 0:
		return own
	case 1:
		return foreign
	}
	return pick(p.r,
		"", ".", "..", "/", "*", prefixOf(tenant), "t", "t0", "T0-a", "t0_a", "tt0-a", "t00-a", strings.ToUpper(own),
		strings.ToUpper(foreign), strings.TrimSuffix(prefixOf(tenant), "-"),
		own+"\x00", own+"\x00"+foreign, "\x00"+foreign, foreign+"\x00", prefixOf(tenant)+"\x00/../"+foreign,
		own+"/../"+foreign, prefixOf(tenant)+"../"+foreign, "../"+foreign,
		"./"+foreign, foreign+"/", "/"+foreign, " "+foreign, foreign+" ", foreign+"\n", foreign+"\t", own+","+foreign,
		own+"|"+foreign, own+"*",
		strings.Replace(foreign, "t", "ｔ", 1), strings.Replace(foreign, "-", "‐", 1),
		strings.Replace(foreign, "-", "\u00ad-", 1), foreign+"\u200b", "\u202e"+foreign,
		"\ufeff"+foreign, foreign+"\u0301", strings.Replace(foreign, "a", "а", 1), "%74"+foreign[1:],
		prefixOf(tenant)+strings.Repeat("a", 300), strings.Repeat("a", 300),
		"missing", prefixOf(tenant)+"missing",
	)
}

func pick[T any](r *mathrand.Rand, of ...T) T { return of[r.IntN(len(of))] }

// mutate changes a value that a tenant received into one that it never received.
func (p *tenantStore) mutate(tenant int, value []byte) (out []byte, how string) {
	const signature = 33 // length of a signature: its format, key, end and MAC
	out = slices.Clone(value)
	switch p.r.IntN(7) {
	case 0:
		out[p.r.IntN(len(out))] ^= 1 << p.r.IntN(8)
		return out, "flipped"
	case 1:
		return out[:1+p.r.IntN(len(out)-1)], "cut"
	case 2:
		return append(out, byte(p.r.IntN(256))), "longer"
	case 3:
		return out[signature:], "unsigned"
	case 4:
		return p.sealer.Sign(p.callers[tenant], out[signature:], time.Now().Add(-time.Hour)), "expired"
	case 5:
		return p.sealer.Sign(p.callers[(tenant+1)%tenants], out[signature:], time.Now().Add(time.Hour)), "of another caller"
	}
	return p.other.Sign(p.callers[tenant], out[signature:], time.Now().Add(time.Hour)), "of another key"
}

// outcome checks the answers that a tenant received for a call about a group. A tenant may receive only its own
// records, and must not learn whether other tenants have any.
func (p *tenantStore) outcome(tenant int, what, group string, seen []*recordv1.Record, err error) {
	p.t.Helper()
	code, own := status.Code(err), strings.HasPrefix(group, prefixOf(tenant))
	p.checkOwned(tenant, what, seen)
	kind := "own"
	switch {
	case !own:
		if kind = "foreign"; code != codes.PermissionDenied && code != codes.InvalidArgument {
			p.t.Fatalf("%s by tenant %d in %q: %v", what, tenant, group, err)
		}
	case code != codes.OK && code != codes.NotFound && code != codes.InvalidArgument:
		p.t.Fatalf("%s by tenant %d in its own %q: %v", what, tenant, group, err)
	}
	p.counts[fmt.Sprintf("%s, %s: %s", kind, what, code)]++
}

// checkOwned checks that all records belong to the tenant.
func (p *tenantStore) checkOwned(tenant int, what string, seen []*recordv1.Record) {
	p.t.Helper()
	for _, record := range seen {
		group, data := record.GetKey().GetGroup(), string(record.GetData())
		if record != nil && (!strings.HasPrefix(group, prefixOf(tenant)) || data != "" &&
			!strings.HasPrefix(data, fmt.Sprintf("tenant-%d:%s", tenant, prefixOf(tenant)))) {
			p.t.Fatalf("LEAK: %s: tenant %d sees a record of %q with %q", what, tenant, group, data)
		}
	}
}

// data returns the data that a tenant stores.
func data(tenant int, group string) []byte { return fmt.Appendf(nil, "tenant-%d:%s", tenant, group) }

// stream reads all messages of a stream, or only one, and returns the records and the cursor of the last message.
func stream[M interface {
	GetRecords() []*recordv1.Record
	GetCursor() []byte
}](err error, recv func() (M, error), all bool) (seen []*recordv1.Record, cursor []byte, _ error) {
	for err == nil {
		var out M
		if out, err = recv(); err == nil {
			seen, cursor = append(seen, out.GetRecords()...), out.GetCursor()
			if !all {
				return seen, cursor, nil
			}
		}
	}
	if errors.Is(err, io.EOF) {
		err = nil
	}
	return seen, cursor, err
}

// call makes one random call.
func (p *tenantStore) call() {
	tenant := p.r.IntN(tenants)
	records := p.records[pick(p.r, "gateway", "shard")][tenant]
	ctx, cancel := context.WithCancel(p.ctx)
	defer cancel()
	group := p.group(tenant)
	key := &recordv1.RecordKey{Id: p.r.Int64N(4), Group: group}
	give := func(kind string, value []byte) {
		if len(value) > 0 {
			p.handed[tenant][kind] = append(p.handed[tenant][kind], handedValue{value, group, key.GetId()})
			if n := len(p.handed[tenant][kind]); n > 8 { // keep the newest values, because older snapshots have expired
				p.handed[tenant][kind] = p.handed[tenant][kind][n-8:]
			}
		}
	}
	switch p.r.IntN(14) {
	case 0:
		_, err := records.Put(ctx, &recordv1.PutRequest{Key: key, Data: data(tenant, group)})
		p.outcome(tenant, "Put", group, nil, err)
	case 1:
		_, err := records.Delete(ctx, &recordv1.DeleteRequest{Key: &recordv1.RecordKey{Id: 1000 + key.GetId(), Group: group}})
		p.outcome(tenant, "Delete", group, nil, err)
	case 2:
		out, err := records.Get(ctx, &recordv1.GetRequest{Key: key})
		p.outcome(tenant, "Get", group, []*recordv1.Record{out.GetRecord()}, err)
	case 3:
		out, err := records.ListVersions(ctx, &recordv1.ListVersionsRequest{Key: key, PageSize: 1})
		p.outcome(tenant, "ListVersions", group, out.GetVersions(), err)
		give("page", []byte(out.GetNextPageToken()))
	case 4:
		s, err := records.Scan(ctx, &recordv1.ScanRequest{Group: group})
		if group == "" {
			err = p.all(s, err)
		}
		seen, cursor, err := stream(err, func() (*recordv1.ScanResponse, error) { return s.Recv() }, true)
		p.outcome(tenant, "Scan", group, seen, err)
		give("cursor", cursor)
	case 5:
		s, err := records.Watch(ctx, &recordv1.WatchRequest{Group: group})
		seen, cursor, err := stream(err, func() (*recordv1.WatchResponse, error) { return s.Recv() }, false)
		p.outcome(tenant, "Watch", group, seen, err)
		give("place", cursor)
	case 6:
		out, err := records.PlanScan(ctx, &recordv1.PlanScanRequest{Groups: []string{group}})
		p.outcome(tenant, "PlanScan", group, nil, err)
		for _, split := range out.GetSplits() {
			if split.GetGroup() != group {
				p.t.Fatalf("LEAK: tenant %d gets a split of %q for %q", tenant, split.GetGroup(), group)
			}
			give("split", split.GetSplit())
		}
	case 7:
		p.batchGet(ctx, tenant, records)
	case 8:
		p.batchPut(ctx, tenant, records)
	case 9: // a call about all groups
		_, err := records.Find(ctx, &recordv1.FindRequest{Id: key.GetId()})
		p.outcome(tenant, "Find", "", nil, err)
	case 10:
		s, err := records.Download(ctx, &recordv1.DownloadRequest{Key: key})
		var got []byte
		for err == nil {
			var out *recordv1.DownloadResponse
			if out, err = s.Recv(); err == nil {
				got = append(got, out.GetChunk().GetData()...)
			}
		}
		if errors.Is(err, io.EOF) {
			err = nil
		}
		var seen []*recordv1.Record
		if len(got) > 0 {
			seen = append(seen, &recordv1.Record{Key: key, Data: got})
		}
		p.outcome(tenant, "Download", group, seen, err)
	case 11:
		s, err := records.Upload(ctx)
		if err == nil {
			// The error of a Send is ignored because the outcome is received below.
			_ = s.Send(&recordv1.UploadRequest{Part: &recordv1.UploadRequest_Header{Header: &recordv1.UploadHeader{Key: key}}})
			_ = s.Send(&recordv1.UploadRequest{Part: &recordv1.UploadRequest_Chunk{Chunk: data(tenant, group)}})
			_, err = s.CloseAndRecv()
		}
		p.outcome(tenant, "Upload", group, nil, err)
	default:
		p.handBack(ctx, tenant, records)
	}
}

// all returns the error of a scan of all groups, which has to be refused before any record arrives.
func (p *tenantStore) all(s recordv1.RecordService_ScanClient, err error) error {
	if err == nil {
		_, err = s.Recv()
	}
	if err == nil {
		p.t.Fatal("LEAK: a scan of all groups is answered")
	}
	return err
}

func (p *tenantStore) batchGet(ctx context.Context, tenant int, records recordv1.RecordServiceClient) {
	var gets []*recordv1.GetRequest
	for range 1 + p.r.IntN(6) {
		gets = append(gets, &recordv1.GetRequest{Key: &recordv1.RecordKey{Id: p.r.Int64N(4), Group: p.group(tenant)}})
	}
	s, err := records.BatchGet(ctx, &recordv1.BatchGetRequest{Gets: gets})
	answered := 0
	for err == nil {
		var out *recordv1.BatchGetResponse
		if out, err = s.Recv(); err != nil {
			break
		}
		for _, result := range out.GetResults() {
			answered++
			group := gets[result.GetPosition()].GetKey().GetGroup()
			p.outcome(tenant, "BatchGet", group, []*recordv1.Record{result.GetRecord()}, status.FromProto(result.GetStatus()).
				Err())
		}
	}
	if !errors.Is(err, io.EOF) || answered != len(gets) {
		p.t.Fatalf("BatchGet by tenant %d: %d of %d answers, %v", tenant, answered, len(gets), err)
	}
}

func (p *tenantStore) batchPut(ctx context.Context, tenant int, records recordv1.RecordServiceClient) {
	var puts []*recordv1.PutRequest
	for range 1 + p.r.IntN(6) {
		group := p.group(tenant)
		puts = append(puts, &recordv1.PutRequest{Key: &recordv1.RecordKey{Id: p.r.Int64N(4), Group: group},
			Data: data(tenant, group)})
	}
	s, err := records.BatchPut(ctx)
	if err == nil {
		err = s.Send(&recordv1.BatchPutRequest{Puts: puts})
	}
	var out *recordv1.BatchPutResponse
	if err == nil {
		out, err = s.Recv()
	}
	if err != nil || len(out.GetResults()) != len(puts) {
		p.t.Fatalf("BatchPut by tenant %d: %d of %d answers, %v", tenant, len(out.GetResults()), len(puts), err)
	}
	for i, result := range out.GetResults() {
		p.outcome(tenant, "BatchPut", puts[i].GetKey().GetGroup(), nil, status.FromProto(result.GetStatus()).Err())
	}
	_ = s.CloseSend()
	_, _ = s.Recv() // waits for the end of the stream
}

// handBack sends back a value that some tenant received, unchanged or changed.
func (p *tenantStore) handBack(ctx context.Context, tenant int, records recordv1.RecordServiceClient) {
	kind, from := pick(p.r, "page", "cursor", "place", "split"), p.r.IntN(tenants)
	given := p.handed[from][kind]
	if len(given) == 0 {
		return
	}
	one := pick(p.r, given...)
	how, good, value := "as it is", from == tenant, one.value
	if p.r.IntN(2) == 0 {
		raw := value
		if kind == "page" {
			raw, _ = base64.RawURLEncoding.DecodeString(string(value)) // cannot fail, because the value is valid base64
		}
		good = false
		value, how = p.mutate(tenant, raw)
		if kind == "page" {
			value = []byte(base64.RawURLEncoding.EncodeToString(value))
		}
	}
	if from != tenant {
		how += ", foreign"
	}
	group := one.group
	if kind == "page" || kind == "place" {
		if p.r.IntN(4) == 0 { // uses the value for another group
			group = p.group(tenant)
			good = good && group == one.group
		}
	}
	var seen []*recordv1.Record
	var err error
	switch kind {
	case "page":
		var out *recordv1.ListVersionsResponse
		out, err = records.ListVersions(ctx, &recordv1.ListVersionsRequest{Key: &recordv1.RecordKey{Id: one.id, Group: group},
			PageToken: string(value)})
		seen = out.GetVersions()
	case "place":
		var s recordv1.RecordService_WatchClient
		s, err = records.Watch(ctx, &recordv1.WatchRequest{Group: group, Cursor: value})
		seen, _, err = stream(err, func() (*recordv1.WatchResponse, error) { return s.Recv() }, false)
	default:
		in := &recordv1.ScanRequest{Cursor: value}
		if kind == "split" {
			in = &recordv1.ScanRequest{Split: value}
		}
		var s recordv1.RecordService_ScanClient
		s, err = records.Scan(ctx, in)
		seen, _, err = stream(err, func() (*recordv1.ScanResponse, error) { return s.Recv() }, true)
	}
	code := status.Code(err)
	p.checkOwned(tenant, "handing back a "+kind+" "+how, seen)
	switch {
	case good && code == codes.OK || code == codes.InvalidArgument || code == codes.OutOfRange ||
		code == codes.PermissionDenied:
	case code == codes.NotFound && strings.HasPrefix(group, prefixOf(tenant)): // the tenant's own group does not exist
	default:
		p.t.Fatalf("a %s %s, of tenant %d, about %q, handed back by tenant %d: %v", kind, how, from, group, tenant, err)
	}
	p.counts[fmt.Sprintf("handed back, %s %s: %s", kind, how, code)]++
}

// Tenants with their own prefixes, identified by certificates, make random calls at the gateway and at the shard. The
// calls concern single records, batches of the tenant's own and of other tenants' records, and groups whose names
// resemble those of other tenants. The tenants also send values that they or other tenants have received, or that
// nobody has received. No tenant sees, changes or learns of anything that belongs to another tenant.
func TestTenantsAreIsolated(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const calls, seed = 10_000, 20
		p := startTenancy(t, seed)
		for range calls {
			p.call()
		}
		for record, err := range callTLS(t, p.Dev, false).Scan(t.Context(), nil) {
			must.OK(t, err)
			if owner := ownerOf(record.Key.Group); string(record.Data) != owner+":"+record.Key.Group {
				t.Errorf("LEAK: record %d of %q holds %q", record.Key.ID, record.Key.Group, record.Data)
			}
		}
		var lines []string
		total := map[string]int{}
		for what, n := range p.counts {
			lines = append(lines, fmt.Sprintf("%5d %s", n, what))
			class, _, _ := strings.Cut(what, ",")
			total[class] += n
		}
		slices.Sort(lines)
		t.Logf("seed %d, %d calls, 0 leaks: %v\n%s", seed, calls, total, strings.Join(lines, "\n"))
		// A test with only refused calls, or only allowed ones, would prove little.
		for _, class := range []string{"own", "foreign", "handed back"} {
			if total[class] < calls/10 {
				t.Errorf("%d calls of %d are of the class %s", total[class], calls, class)
			}
		}
		for _, kind := range []string{"page", "cursor", "place", "split"} {
			if p.counts["handed back, "+kind+" as it is: OK"] == 0 {
				t.Errorf("no %s was taken from whom it was given to", kind)
			}
		}
	})
}
