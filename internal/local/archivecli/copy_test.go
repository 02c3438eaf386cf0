package archivecli

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"sheaf.dev/sheaf/client"
	"sheaf.dev/sheaf/internal/archive/object"
	"sheaf.dev/sheaf/internal/call/cursor"
	"sheaf.dev/sheaf/internal/local/cli"
	"sheaf.dev/sheaf/internal/storage/group/format"
	"sheaf.dev/sheaf/internal/test/archivetest"
)

// liveStore simulates a running store. It has one version of each record, in memory.
type liveStore struct {
	mu      sync.Mutex // held during each call
	named   bool
	records map[client.Key]client.Record
	puts    map[client.Key]int // number of times that each record was written
	before  func(client.Key)   // called before each put; may be nil
	fail    error              // if not nil, puts fail with this error once the field after has counted down to 0
	after   int
	twice   bool // whether an upload is first read to its middle, and then repeated from the beginning
}

func newLiving(named bool) *liveStore {
	return &liveStore{named: named, records: map[client.Key]client.Record{}, puts: map[client.Key]int{}}
}

// set stores a record of an archive's group.
func (l *liveStore) set(key client.Key, r archivetest.Record) {
	attributes, err := format.DecodeAttributes(r.Entry.Attributes)
	if err != nil {
		panic(err)
	}
	l.records[key] = client.Record{
		Key: key, Version: cursor.Version(r.Entry.Index), Timestamp: time.Unix(0, r.Entry.Timestamp),
		CommitTime: time.Unix(0, r.Entry.CommitTime), Attributes: attributes, Size: int64(len(r.Data)), Data: r.Data,
		HasData: true,
	}
}

func (l *liveStore) Named(context.Context) (bool, error) { return l.named, nil }

func (l *liveStore) BatchGet(_ context.Context, items []client.GetItem) []client.GetOutcome {
	l.mu.Lock()
	defer l.mu.Unlock()
	outcomes := make([]client.GetOutcome, len(items))
	for i, item := range items {
		r, ok := l.records[item.Key]
		if !ok {
			outcomes[i].Err = client.ErrNotFound
			continue
		}
		if item.Options.MetadataOnly {
			r.Data, r.HasData = nil, false
		}
		outcomes[i].Record = r
	}
	return outcomes
}

func (l *liveStore) BatchPut(_ context.Context, items []client.PutItem) []client.PutOutcome {
	outcomes := make([]client.PutOutcome, len(items))
	for i, item := range items {
		outcomes[i].Err = l.store(item.Key, item.Data, &item.Options)
	}
	return outcomes
}

func (l *liveStore) store(key client.Key, data []byte, options *client.PutOptions) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.before != nil {
		l.before(key)
	}
	if _, ok := l.records[key]; ok && options.IfAbsent {
		return client.ErrExists
	}
	if l.fail != nil && l.after == 0 {
		return l.fail
	}
	l.after--
	l.puts[key]++
	l.records[key] = client.Record{
		Key: key, Version: fmt.Sprintf("new-%d", l.puts[key]), Timestamp: options.Timestamp, CommitTime: time.Unix(1, 0),
		Attributes: options.Attributes, Size: int64(len(data)), Data: data, HasData: true,
	}
	return nil
}

func (l *liveStore) Upload(_ context.Context, key client.Key, from io.Reader, options *client.PutOptions) (
	client.PutResult, error) {
	seeker, ok := from.(io.Seeker)
	if !ok {
		return client.PutResult{}, errors.New("an upload that cannot be repeated")
	}
	size, err := seeker.Seek(0, io.SeekEnd)
	if err == nil {
		_, err = seeker.Seek(0, io.SeekStart)
	}
	if l.twice && err == nil {
		if _, err = io.CopyN(io.Discard, from, size/2); err == nil {
			_, err = seeker.Seek(0, io.SeekStart)
		}
	}
	if err != nil {
		return client.PutResult{}, err
	}
	data, err := io.ReadAll(from)
	if err == nil && int64(len(data)) != size {
		err = fmt.Errorf("%d bytes, and %d were said", len(data), size)
	}
	if err != nil {
		return client.PutResult{}, err
	}
	return client.PutResult{}, l.store(key, data, options)
}

func (l *liveStore) Fetch(_ context.Context, key client.Key, _ string, w io.Writer) (client.Record, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	r, ok := l.records[key]
	if !ok {
		return r, client.ErrNotFound
	}
	_, err := w.Write(r.Data)
	return r, err
}

// checkRecords checks that a group in the store has the given records.
func (l *liveStore) checkRecords(t *testing.T, group string, want map[int64]archivetest.Record) {
	t.Helper()
	for id, r := range want {
		if have := l.records[client.Key{ID: id, Group: group}]; !bytes.Equal(have.Data, r.Data) || have.Data == nil ||
			have.Timestamp.UnixNano() != r.Entry.Timestamp {
			t.Errorf("record %d is %.20q of %s, and was %s", id, have.Data, have.Timestamp, r)
		}
	}
}

func (l *liveStore) written() (n int) {
	for _, puts := range l.puts {
		n += puts
	}
	return n
}

func copyTo(t *testing.T, s Source, to CopyTarget, opts CopyOptions) commandResult {
	t.Helper()
	opts.Quiet = true
	return run(false, func(out *cli.Output) error { return Copy(t.Context(), out, s, to, opts) })
}

// damagedArchive returns an archive and a store. The archive has a group of 600 records and a blob. In the store, some
// records of this group have since been deleted or replaced. The result index is the index of the last entry before
// these changes.
func damagedArchive(t *testing.T) (s Source, l *liveStore, g *archivetest.Group, index uint64) {
	b := archivetest.NewMemory()
	w := archivetest.New(t, b, archivetest.SampleStore, object.Key{})
	g = w.NewGroup("alpha", 1)
	for id := range int64(600) {
		g.Put(id, fmt.Sprintf("record %d", id))
	}
	index = g.PutBlob(1000, bytes.Repeat([]byte("sheaf"), 1<<18))
	w.Copy(g, 250)
	for id := int64(10); id < 20; id++ {
		g.Delete(id)
	}
	g.Put(20, "replaced")
	g.Put(21, "record XX") // has the same length as the previous data
	g.Delete(1000)
	w.Log(g)
	l = newLiving(true)
	for id, r := range g.State(g.Through()) {
		l.set(client.Key{ID: id, Group: "alpha"}, r)
	}
	return Source{Bucket: b}, l, g, index
}

func TestCopyRestoresDeletedAndReplacedRecords(t *testing.T) {
	s, l, g, index := damagedArchive(t)
	l.twice = true
	at := time.Unix(0, g.CommitTime(index)).UTC().Format(time.RFC3339Nano)
	opts := CopyOptions{At: at, Group: "alpha", Overwrite: true}

	dry := opts
	dry.DryRun = true
	if got := copyTo(t, s, l, dry); got.err != nil || !strings.HasPrefix(got.out, "would write 13 records") ||
		l.written() != 0 {
		t.Errorf("dry run: %q, %v, %d written", got.out, got.err, l.written())
	}
	got := copyTo(t, s, l, opts)
	if want := "wrote 13 records, 1.3 MiB\n  2 of them in place of other content\n  588 already there\n"; got.err != nil ||
		got.out != want {
		t.Fatalf("%q, %v", got.out, got.err)
	}
	l.checkRecords(t, "alpha", g.State(index))
	if l.written() != 13 {
		t.Errorf("%d records were written", l.written())
	}
	// If the same command is repeated, it writes nothing.
	got = copyTo(t, s, l, opts)
	if got.err != nil || got.out != "wrote 0 records, 0 B\n  601 already there\n" || l.written() != 13 {
		t.Errorf("again: %q, %v, %d written", got.out, got.err, l.written())
	}
	// Copy finds data that differs although the metadata is equal, in a small record and in a large one.
	for _, id := range []int64{11, 1000} {
		r := l.records[client.Key{ID: id, Group: "alpha"}]
		r.Data = bytes.Clone(r.Data)
		r.Data[len(r.Data)-1] ^= 1
		l.records[r.Key] = r
	}
	if got := copyTo(t, s, l, opts); got.err != nil || !strings.HasPrefix(got.out, "wrote 2 records") {
		t.Errorf("equal metadata: %q, %v", got.out, got.err)
	}
	l.checkRecords(t, "alpha", g.State(index))
}

func TestCopyLeavesOtherContent(t *testing.T) {
	s, l, _, index := damagedArchive(t)
	opts := CopyOptions{At: fmt.Sprintf("index:%d", index), Group: "alpha"}
	raced := client.Key{ID: 12, Group: "alpha"}
	l.before = func(key client.Key) { // somebody else creates the record after the look-up
		if key == raced && l.puts[key] == 0 {
			l.records[key] = client.Record{Key: key, Version: "raced", Size: 5, Data: []byte("raced"), HasData: true}
		}
	}
	got := copyTo(t, s, l, opts)
	if got.code != 1 || !strings.Contains(got.out, "wrote 10 records") || !strings.Contains(got.out, "\n  3 with other") ||
		!strings.Contains(got.err.Error(), "3 records have other content now: --overwrite") ||
		!strings.Contains(got.messages, "record alpha/20 has other content now") {
		t.Errorf("%d: %q, %q, %v", got.code, got.out, got.messages, got.err)
	}
	if string(l.records[raced].Data) != "raced" || l.puts[client.Key{ID: 20, Group: "alpha"}] != 0 {
		t.Error("a record with other content was replaced")
	}
}

func TestACopyThatWasInterruptedGoesOn(t *testing.T) {
	s, l, g, index := damagedArchive(t)
	l.fail, l.after = client.ErrDiskFull, 4
	opts := CopyOptions{At: fmt.Sprintf("index:%d", index), Group: "alpha", Overwrite: true}
	got := copyTo(t, s, l, opts)
	if got.code != 1 || !errors.Is(got.err, client.ErrDiskFull) || l.written() != 4 ||
		!strings.Contains(got.err.Error(), "run the command again") || !strings.Contains(got.out, "wrote 4 records") {
		t.Fatalf("%d: %q, %v, %d written", got.code, got.out, got.err, l.written())
	}
	l.fail = nil
	if got := copyTo(t, s, l, opts); got.err != nil || l.written() != 13 {
		t.Errorf("%q, %v, %d written", got.out, got.err, l.written())
	}
	l.checkRecords(t, "alpha", g.State(index))
}

func TestCopyOfIDs(t *testing.T) {
	for what, c := range map[string]struct {
		ids  string
		opts CopyOptions
		out  string // the beginning of the output; if the code is 0, the whole output
		code int
		err  string
	}{
		"some": {"alpha/10\nalpha/11\n\n# alpha/12\nalpha/10\n", CopyOptions{}, "wrote 2 records, 18 B\n", 0, ""},
		"a group for all": {"0xa\n-77\n", CopyOptions{Group: "alpha"},
			"wrote 1 record, 9 B\n  1 did not exist then\n", 0, ""},
		"none was there":   {"alpha/-1\n", CopyOptions{}, "wrote 0 records", 3, "none of the ids"},
		"there already":    {"alpha/1\n", CopyOptions{}, "wrote 0 records, 0 B\n  1 already there\n", 0, ""},
		"no group":         {"7\n", CopyOptions{}, "", 2, "line 1: the archive has Named routing"},
		"no id":            {"# none\n", CopyOptions{}, "", 2, "there is no id"},
		"no number":        {"\nalpha/x\n", CopyOptions{}, "", 2, "line 2"},
		"no such group":    {"omega/1\n", CopyOptions{}, "", 3, `no group "omega"`},
		"into another one": {"alpha/10\nalpha/1\n", CopyOptions{As: "beta"}, "wrote 2 records, 17 B\n", 0, ""},
	} {
		s, l, _, index := damagedArchive(t)
		c.opts.At, c.opts.IDs = fmt.Sprintf("index:%d", index), strings.NewReader(c.ids)
		got := copyTo(t, s, l, c.opts)
		if got.code != c.code || !strings.HasPrefix(got.out, c.out) || c.code == 0 && got.out != c.out ||
			got.err != nil && !strings.Contains(got.err.Error(), c.err) {
			t.Errorf("%s: %d, %q, %v", what, got.code, got.out, got.err)
		}
		if _, ok := l.records[client.Key{ID: 1, Group: "beta"}]; ok != (c.opts.As != "") {
			t.Errorf("%s: the other group has the record: %v", what, ok)
		}
	}
}

func TestCopyOfAPointThatCannotBeRead(t *testing.T) {
	s, _, w := sample(t)
	l := newLiving(true)
	beta := w.Groups[1]
	in := time.Unix(0, beta.CommitTime(6)).UTC().Format(time.RFC3339Nano)
	got := copyTo(t, s, l, CopyOptions{At: in, Group: "beta"})
	if got.code != 1 || !strings.Contains(got.err.Error(), "in the hole from index 5 to 7") ||
		!strings.Contains(got.err.Error(), "--nearest takes index 4") || l.written() != 0 {
		t.Errorf("in a hole: %d, %v, %d written", got.code, got.err, l.written())
	}
	got = copyTo(t, s, l, CopyOptions{At: in, Group: "beta", Nearest: true})
	if got.err != nil || !strings.Contains(got.messages, "in the hole from index 5 to 7") ||
		!strings.Contains(got.messages, "taken is index 4") {
		t.Errorf("nearest: %q, %v", got.messages, got.err)
	}
	l.checkRecords(t, "beta", beta.State(4))
	if l.written() != len(beta.State(4)) {
		t.Errorf("%d records were written, not those as of index 4", l.written())
	}
	// For a point below the history floor, only a later point can be read. For a point beyond the end of the archive,
	// only an earlier point can be read.
	for at, want := range map[string]string{"index:1": "taken is index 4", "2030-01-01T00:00:00Z": "taken is index 10"} {
		got := copyTo(t, s, newLiving(true), CopyOptions{At: at, Group: "alpha", Nearest: true})
		if got.err != nil || !strings.Contains(got.messages, want) {
			t.Errorf("nearest to %s: %q, %v", at, got.messages, got.err)
		}
		if got := copyTo(t, s, l, CopyOptions{At: at, Group: "alpha"}); got.code != 1 {
			t.Errorf("%s: %d, %v", at, got.code, got.err)
		}
	}
}

// The test deletes a group, and then creates another one with the same name. A copy of the state at a time before the
// deletion reads the deleted group.
func TestCopyOfADeletedGroup(t *testing.T) {
	b := archivetest.NewMemory()
	w := archivetest.New(t, b, archivetest.SampleStore, object.Key{})
	old := w.NewGroup("alpha", 1)
	w.Copy(old, 9)
	at := old.Put(5, "five")
	old.Empty()
	w.Log(old)
	old.Delete(5)
	old.Gone = true
	w.Log(old)
	w.Wait(10)
	anew := w.NewGroup("alpha", 2)
	anew.Put(6, "six")
	w.Copy(anew, 9)
	w.Log(anew)
	l := newLiving(true)
	then := time.Unix(0, old.CommitTime(at)).UTC().Format(time.RFC3339Nano)
	got := copyTo(t, Source{Bucket: b}, l, CopyOptions{At: then, Group: "alpha"})
	if got.err != nil || l.written() != 1 {
		t.Fatalf("%q, %v, %d written", got.out, got.err, l.written())
	}
	l.checkRecords(t, "alpha", old.State(at))
	now := w.Now().Format(time.RFC3339Nano)
	if got := copyTo(t, Source{Bucket: b}, l, CopyOptions{At: now, Group: "alpha"}); got.err != nil || l.written() != 2 {
		t.Errorf("the living group: %q, %v", got.out, got.err)
	}
}

// With Hash routing, the id determines the group, both in the archive and in the store.
func TestCopyBetweenRoutings(t *testing.T) {
	b := archivetest.NewMemory()
	w := archivetest.New(t, b, archivetest.SampleStore, object.Key{})
	for i, name := range []string{"0", "1"} {
		g := w.NewGroup(name, byte(i+1))
		g.Put(int64(-i), "in "+name) // with two groups, id 0 belongs to group 0, and id -1 to group 1
		w.Copy(g, 9)
		w.Log(g)
	}
	w.Log(w.Groups...)
	hash := Source{Bucket: b}
	now := w.Now().Format(time.RFC3339Nano)
	ids := func() io.Reader { return strings.NewReader("0\n-1\n") }
	refused := func(s Source, l *liveStore, opts CopyOptions) {
		t.Helper()
		if got := copyTo(t, s, l, opts); got.code != 2 || l.written() != 0 {
			t.Errorf("%+v: %d, %v", opts, got.code, got.err)
		}
	}
	_, l, _, _ := damagedArchive(t)
	refused(hash, l, CopyOptions{At: now, IDs: ids()}) // according to its header, this archive has Named routing
	b.Set(w.Name(object.ArchiveName), w.Encode(&object.Archive{Store: "h", Routing: "hash", Groups: 2, Lanes: 1}, nil))
	l = newLiving(false)
	refused(hash, l, CopyOptions{At: "", IDs: ids()})
	refused(hash, l, CopyOptions{At: now})
	refused(hash, l, CopyOptions{At: now, IDs: ids(), As: "x"})
	refused(hash, l, CopyOptions{At: now, IDs: ids(), Rate: 1})
	refused(hash, l, CopyOptions{At: "index:1", IDs: ids()})
	refused(hash, newLiving(true), CopyOptions{At: now, IDs: ids()})
	if got := copyTo(t, hash, l, CopyOptions{At: now, IDs: ids()}); got.err != nil || l.written() != 2 {
		t.Errorf("%q, %v", got.out, got.err)
	}
	l.checkRecords(t, "", w.Groups[0].State(1))
	named := newLiving(true)
	if got := copyTo(t, hash, named, CopyOptions{At: now, Group: "1", As: "x"}); got.err != nil || named.written() != 1 {
		t.Errorf("%q, %v", got.out, got.err)
	}
	named.checkRecords(t, "x", w.Groups[1].State(1))
}

func TestCopyKeepsTheRate(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, _, g, index := damagedArchive(t)
		begin := time.Now()
		l := newLiving(true)
		got := copyTo(t, s, l, CopyOptions{At: fmt.Sprintf("index:%d", index), Group: "alpha", Rate: 64 << 10})
		if got.err != nil {
			t.Fatal(got.err)
		}
		l.checkRecords(t, "alpha", g.State(index))
		// The copy writes 1.25 MiB of data and some small records. The rate limit allows the first MiB immediately.
		if took := time.Since(begin); took < 4*time.Second || took > 6*time.Second {
			t.Errorf("it took %v", took)
		}
	})
}
