package peer

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"
	"go.etcd.io/raft/v3/raftpb"
	"google.golang.org/protobuf/proto"

	peerv1 "sheaf.dev/sheaf/api/sheaf/peer/v1"
	"sheaf.dev/sheaf/internal/base/crc32c"
	"sheaf.dev/sheaf/internal/test/must"
)

// store is a Source in memory.
type store struct {
	told  int64 // the number of bytes that the description claims for all files
	mu    sync.Mutex
	files map[string][]byte
	blob  []byte
	open  int    // number of open exports
	fail  string // name of a file whose second half cannot be read
}

type memFile struct {
	*bytes.Reader
}

func (memFile) Close() error { return nil }

type memExport struct{ *store }

func (s *store) Export(_ context.Context, group uuid.UUID) (Export, error) {
	if group != testGroup {
		return nil, fmt.Errorf("%w: unknown", ErrNotHere)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.open++
	return memExport{s}, nil
}

func (e memExport) Close() error {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.open--
	return nil
}

func (e memExport) Describe() Description {
	e.mu.Lock()
	defer e.mu.Unlock()
	return Description{Manifest: bytes.Repeat([]byte("m"), 3<<20), Index: 42, Term: 7, Bytes: e.told}
}

func (e memExport) Open(name string, offset int64) (io.ReadCloser, error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	data, ok := e.files[name]
	if !ok || offset > int64(len(data)) {
		return nil, fmt.Errorf("no file %q of more than %d bytes", name, offset)
	}
	if e.fail == name {
		data = data[:len(data)/2]
	}
	return io.NopCloser(bytes.NewReader(data[offset:])), nil
}

// Entries serves the indexes up to 100, except every third one. It returns them a few at a time.
func (s *store) Entries(_ context.Context, group uuid.UUID, first, last uint64, _ int) (out Entries, err error) {
	if group != testGroup {
		return out, ErrNotHere
	}
	out.Applied = 100
	for i := first; i <= min(last, first+9, 100); i++ {
		out.Through = i
		if i%3 != 0 {
			out.Entries = append(out.Entries, &raftpb.Entry{Index: new(i), Term: proto.Uint64(2), Data: make([]byte, 100_000)})
		}
	}
	return out, nil
}

func (s *store) Blob(_ context.Context, _ uuid.UUID, ref []byte) (File, int64, error) {
	if string(ref) != "ref" {
		return nil, 0, ErrNotHere
	}
	return memFile{bytes.NewReader(s.blob)}, int64(len(s.blob)), nil
}

func random(n int) []byte {
	source, out := rand.New(rand.NewPCG(1, uint64(n))), make([]byte, n)
	for i := range out {
		out[i] = byte(source.Uint32())
	}
	return out
}

// sink collects files. It does not request files that it already has.
type sink struct {
	from     *store // the store from which the sink fetches; the sink requests large files after all small ones
	files    map[string]*bytes.Buffer
	whole    map[string]bool
	got      Description
	describe func() // called by Describe
	bytes    int    // total number of bytes written
}

func newSink(from *store) *sink {
	return &sink{from: from, files: map[string]*bytes.Buffer{}, whole: map[string]bool{}}
}

func (s *sink) Describe(d Description) error {
	s.got = d
	if s.describe != nil {
		s.describe()
	}
	return nil
}

func (s *sink) Wanted() (wanted []FileRange, err error) {
	for _, large := range []bool{false, true} {
		for _, name := range slices.Sorted(maps.Keys(s.from.files)) {
			if s.whole[name] || (len(s.from.files[name]) > 1<<20) != large {
				continue
			}
			if s.files[name] == nil {
				s.files[name] = &bytes.Buffer{}
			}
			wanted = append(wanted, FileRange{Name: name, Offset: int64(s.files[name].Len()),
				Bytes: int64(len(s.from.files[name]))})
		}
		if len(wanted) > 0 {
			break
		}
	}
	return wanted, nil
}

type sinkFile struct {
	sink *sink
	name string
}

func (s *sink) Create(r FileRange) (SinkFile, error) { return sinkFile{s, r.Name}, nil }

func (f sinkFile) Write(p []byte) (int, error) {
	f.sink.bytes += len(p)
	return f.sink.files[f.name].Write(p)
}
func (f sinkFile) Commit() error { f.sink.whole[f.name] = true; return nil }
func (f sinkFile) Close() error  { return nil }

func fetchers(t *testing.T, s *store, change func(*Options)) (*node, *Fetcher) {
	n := newNetwork(t)
	a := n.start("a", func(o *Options) {
		o.Source = s
		if change != nil {
			change(o)
		}
	})
	return a, n.start("b", nil).Fetcher("a")
}

func TestGroupIsFetchedAndResumed(t *testing.T) {
	s := &store{files: map[string][]byte{"empty": {}, "small": []byte("x"), "seg": random(5<<20 + 77),
		"even": random(2 << 20)}}
	for i := range 2*filesPerMessage + 5 {
		s.files[fmt.Sprintf("many-%05d", i)] = []byte{byte(i)}
	}
	s.told = 99
	_, f := fetchers(t, s, nil)
	to := newSink(s)
	s.fail = "seg"
	if err := f.Group(t.Context(), testGroup, to); err == nil {
		t.Fatal("a file that ends early was taken for whole")
	}
	had := to.bytes
	if had < 2<<20 {
		t.Fatalf("%d bytes came before the failure", had)
	}
	s.mu.Lock()
	s.fail = ""
	s.mu.Unlock()
	must.OK(t, f.Group(t.Context(), testGroup, to))
	total := 0
	for name, data := range s.files {
		total += len(data)
		if !to.whole[name] || !bytes.Equal(to.files[name].Bytes(), data) {
			t.Fatalf("file %s is not what was sent", name)
		}
	}
	if to.bytes != total {
		t.Errorf("%d bytes came in all, the files have %d: nothing should come twice", to.bytes, total)
	}
	if to.got.Index != 42 || to.got.Term != 7 || to.got.Bytes != 99 || len(to.got.Manifest) != 3<<20 {
		t.Errorf("described as index %d term %d, manifest of %d bytes", to.got.Index, to.got.Term, len(to.got.Manifest))
	}
	eventually(t, "the export is closed", func() bool { s.mu.Lock(); defer s.mu.Unlock(); return s.open == 0 })
}

func TestGroupsSentAtOnceAreBounded(t *testing.T) {
	s := &store{files: map[string][]byte{"seg": random(10)}, told: smallBytesMax + 1}
	a, f := fetchers(t, s, func(o *Options) { o.exportsMax = 1 })
	to := newSink(s)
	tell := func(bytes int64) {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.told = bytes
	}
	to.describe = func() {
		if err := f.Group(t.Context(), testGroup, newSink(s)); !errors.Is(err, ErrBusy) {
			t.Errorf("a second one at the same time: %v", err)
		}
		tell(smallBytesMax)
		if err := f.Group(t.Context(), testGroup, newSink(s)); err != nil {
			t.Errorf("a small one at the same time: %v", err)
		}
		tell(smallBytesMax + 1)
	}
	if err := f.Group(t.Context(), testGroup, to); err != nil {
		t.Fatal(err)
	}
	eventually(t, "it is over", func() bool { return a.Fetched().ExportsUnderWay.Load() == 0 })
	if err := f.Group(t.Context(), testGroup, newSink(s)); err != nil {
		t.Errorf("when the first one is over: %v", err)
	}
}

func TestFetchesOfWhatIsNotHere(t *testing.T) {
	s := &store{files: map[string][]byte{"seg": {}}}
	_, f := fetchers(t, s, nil)
	other := uuid.New()
	if err := f.Group(t.Context(), other, newSink(s)); !errors.Is(err, ErrNotHere) {
		t.Error(err)
	}
	if err := fetchEntries(t, f, other, 1, 2); !errors.Is(err, ErrNotHere) {
		t.Error(err)
	}
	if err := f.Blob(t.Context(), testGroup, []byte("none"), 0, 0, &bytes.Buffer{}); !errors.Is(err, ErrNotHere) {
		t.Error(err)
	}
	if err := fetchEntries(t, f, testGroup, 3, 2); err == nil {
		t.Error("a range that ends before it begins")
	}
	s.files["gone"] = nil
	if err := f.Group(t.Context(), testGroup, &wrongSink{sink: newSink(s)}); err == nil {
		t.Error("a file that is not there")
	}
	_, f = fetchers(t, nil, func(o *Options) { o.Source = nil })
	if err := f.Group(t.Context(), testGroup, newSink(s)); !errors.Is(err, ErrNotHere) {
		t.Error(err)
	}
}

// wrongSink requests a file that the peer did not describe.
type wrongSink struct{ *sink }

func (wrongSink) Wanted() ([]FileRange, error) { return []FileRange{{Name: "other"}}, nil }

func fetchEntries(t *testing.T, f *Fetcher, group uuid.UUID, first, last uint64) error {
	_, err := f.Entries(t.Context(), group, first, last)
	return err
}

func TestEntriesAreFetched(t *testing.T) {
	_, f := fetchers(t, &store{}, nil)
	for _, last := range []uint64{5, 77, 100, 200} {
		out, err := f.Entries(t.Context(), testGroup, 5, last)
		if err != nil || out.Applied != 100 || out.Through != min(last, 100) {
			t.Fatalf("entries 5 to %d: through %d, applied %d, %v", last, out.Through, out.Applied, err)
		}
		want := uint64(5)
		for _, e := range out.Entries {
			if want%3 == 0 {
				want++
			}
			if e.GetIndex() != want || e.GetTerm() != 2 || len(e.Data) != 100_000 {
				t.Fatalf("entry %d, expected is %d", e.GetIndex(), want)
			}
			want++
		}
		if want < min(last, 100) {
			t.Fatalf("entries 5 to %d end at %d", last, want)
		}
	}
}

func TestEntriesThatCannotBeAreRefused(t *testing.T) {
	entry := func(index uint64) []byte {
		encoded, err := proto.Marshal(&raftpb.Entry{Index: new(index)})
		must.OK(t, err)
		return encoded
	}
	for name, in := range map[string]*peerv1.FetchEntriesResponse{
		"twice":         {Entries: [][]byte{entry(6), entry(6)}, Through: 9},
		"before":        {Entries: [][]byte{entry(4)}, Through: 9},
		"behind":        {Entries: [][]byte{entry(10)}, Through: 20},
		"not yet":       {Entries: [][]byte{entry(8)}, Through: 7},
		"not an entry":  {Entries: [][]byte{{0xff}}, Through: 9},
		"not in order":  {Entries: [][]byte{entry(7), entry(6)}, Through: 9},
		"through again": {Entries: [][]byte{entry(5)}, Through: 9},
	} {
		out := Entries{}
		if name == "through again" {
			out.Through = 5
		}
		if err := out.add(in, 5, 9); !errors.Is(err, ErrCorrupt) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestBlobIsFetchedFromAnOffset(t *testing.T) {
	s := &store{blob: random(3<<20 + 5)}
	_, f := fetchers(t, s, nil)
	for _, offset := range []int64{0, 1 << 20, 3<<20 + 4, 3<<20 + 5} {
		var out bytes.Buffer
		if err := f.Blob(t.Context(), testGroup, []byte("ref"), offset, int64(len(s.blob)), &out); err != nil ||
			!bytes.Equal(out.Bytes(), s.blob[offset:]) {
			t.Errorf("from %d: %d bytes, %v", offset, out.Len(), err)
		}
	}
	if err := f.Blob(t.Context(), testGroup, []byte("ref"), 0, 10, &bytes.Buffer{}); !errors.Is(err, ErrCorrupt) {
		t.Errorf("another size: %v", err)
	}
	if err := f.Blob(t.Context(), testGroup, []byte("ref"), 1<<40, 1<<40, &bytes.Buffer{}); err == nil {
		t.Error("from behind its end")
	}
}

func TestFilesHaveAByteRate(t *testing.T) {
	s := &store{files: map[string][]byte{"seg": random(chunkBytesMax + 1000)}}
	a, f := fetchers(t, s, func(o *Options) { o.FetchBytesPerSecond = 1 }) // after the burst, only 1 byte a second is sent
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	done := make(chan error)
	go func() { done <- f.Group(ctx, testGroup, newSink(s)) }()
	eventually(t, "the burst is sent", func() bool { return a.Fetched().FetchedBytes.Load() >= chunkBytesMax })
	cancel()
	if err := <-done; err == nil || a.Fetched().FetchedBytes.Load() > chunkBytesMax {
		t.Errorf("%d bytes were sent, a burst is %d: %v", a.Fetched().FetchedBytes.Load(), chunkBytesMax, err)
	}
}

func TestChangedBytesAreNoticed(t *testing.T) {
	data := []byte("data")
	for name, chunk := range map[string]*chunkCase{
		"checksum": {data: data, sum: 1},
		"offset":   {data: data, offset: 3, good: true},
		"name":     {data: data, name: "other", good: true},
		"size":     {data: data[:2], good: true},
	} {
		if err := receiveFile(chunk.next, &bytes.Buffer{}, FileRange{Name: "seg", Bytes: 4}); !errors.Is(err, ErrCorrupt) {
			t.Errorf("%s: %v", name, err)
		}
	}
	whole := &chunkCase{data: data, good: true}
	if err := receiveFile(whole.next, &bytes.Buffer{}, FileRange{Name: "seg", Bytes: 4}); err != nil {
		t.Error(err)
	}
}

// chunkCase is a file of one chunk.
type chunkCase struct {
	name   string
	offset int64
	data   []byte
	sum    uint32
	good   bool // the checksum is correct
}

func (c *chunkCase) next() (*peerv1.FileChunk, error) {
	if c.good {
		c.sum = crc32c.Of(c.data)
	}
	return &peerv1.FileChunk{Name: c.name, OffsetBytes: c.offset, Data: c.data, DataCrc32C: c.sum, Last: true}, nil
}

// hanging is a source that never responds.
type hanging struct {
	*store
	asked chan struct{}
}

func (h hanging) Blob(ctx context.Context, _ uuid.UUID, _ []byte) (File, int64, error) {
	select {
	case h.asked <- struct{}{}:
	default:
	}
	<-ctx.Done()
	return nil, 0, ctx.Err()
}

// TestAFetchEndsWhereThePeerFallsSilent checks that a Fetcher notices a stopped process, whose connections stay open.
func TestAFetchEndsWhereThePeerFallsSilent(t *testing.T) {
	n := newNetwork(t)
	source := hanging{&store{}, make(chan struct{}, 1)}
	// Shard a sends nothing to b except responses.
	a := n.start("a", func(o *Options) { o.Source, o.pingEvery = source, time.Hour })
	b := n.start("b", nil)
	b.SetPeers([]string{"a"})
	failed := make(chan error, 1)
	for asked := false; !asked; {
		b.until(t, "a is alive", func() bool { return b.alive["a"] })
		go func() { failed <- b.Fetcher("a").Blob(t.Context(), testGroup, []byte("ref"), 0, 1, &bytes.Buffer{}) }()
		select {
		case <-source.asked:
			asked = true
		case err := <-failed: // on a slow machine, shard a may count as silent before b makes its request
			if err == nil || !strings.Contains(err.Error(), "from shard a: it is silent") {
				t.Fatalf("got %v", err)
			}
		}
	}
	a.block()
	b.to("a").Send([]*raftpb.Message{msg(raftpb.MsgHeartbeat, 1, 0)})
	b.until(t, "a is silent", func() bool { return !b.alive["a"] })
	select {
	case err := <-failed:
		if err == nil || !strings.Contains(err.Error(), "from shard a: it is silent") {
			t.Fatalf("got %v", err)
		}
	case <-time.After(2 * time.Minute):
		t.Fatal("the fetch goes on")
	}
}
