package parquetcli

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/parquet-go/parquet-go"
	"google.golang.org/grpc/codes"

	"sheaf.dev/sheaf/client"
	"sheaf.dev/sheaf/client/call/reason"
	"sheaf.dev/sheaf/internal/local/cli"
	"sheaf.dev/sheaf/internal/storage/vfs"
	"sheaf.dev/sheaf/internal/test/must"
	"sheaf.dev/sheaf/internal/test/vfstest"
)

// entry is a row of a file to import. Files are not compressed, because bubbles read them.
type entry struct {
	Key   *uint64 `parquet:"key"`
	Value *string `parquet:"value"`
	Where string  `parquet:"where"`
	Other []int64 `parquet:"other"`
}

func entryOf(key uint64, value string) entry { return entry{Key: &key, Value: &value, Where: "a"} }

// fileOf writes a Parquet file.
func fileOf(t testing.TB, fsys vfs.FS, name string, rows ...entry) {
	t.Helper()
	var b bytes.Buffer
	w := parquet.NewGenericWriter[entry](&b, parquet.MaxRowsPerRowGroup(100))
	_, err := w.Write(rows)
	must.OK(t, errors.Join(err, w.Close(), vfs.WriteAside(fsys, name, b.Bytes())))
}

// imports runs an import of files, and returns what it has printed as messages.
func imports(fsys vfs.FS, s *store, change func(*ImportOptions), files ...string) (ImportReport, string, error) {
	opts := ImportOptions{Files: files, ID: "key", Data: "value", Quiet: true}
	if change != nil {
		change(&opts)
	}
	var said bytes.Buffer
	r, err := Import(context.Background(), fsys, s, &cli.Output{Out: io.Discard, Err: &said}, opts)
	return r, said.String(), err
}

func (s *store) data(group string, id int64) string {
	r, ok := s.records[client.Key{Group: group, ID: id}]
	if !ok {
		return "none"
	}
	return string(r.Data)
}

func TestAnImportStoresRows(t *testing.T) {
	disk, s := vfstest.NewMem(), newStore()
	var rows []entry
	for i := range uint64(1000) {
		rows = append(rows, entryOf(i, fmt.Sprint("value ", i)))
	}
	fileOf(t, disk, "/a", rows[:600]...)
	fileOf(t, disk, "/b", rows[600:]...)
	r, _, err := imports(disk, s, nil, "/a", "/b")
	must.OK(t, err)
	if len(s.records) != 1000 || r.Stored != 1000 || r.Rows != 1000 || r.Failed.Total() != 0 {
		t.Errorf("%d records, %+v", len(s.records), r)
	}
	for i := range int64(1000) {
		if got := s.data("", i); got != fmt.Sprint("value ", i) {
			t.Fatalf("%d: %q", i, got)
		}
	}
}

// Bad rows are named by file and row, and all others are stored.
func TestBadRowsOfAnImport(t *testing.T) {
	disk, s := vfstest.NewMem(), newStore()
	null, empty := entryOf(1, "x"), entryOf(5, "")
	null.Key = nil
	noData := entryOf(2, "")
	noData.Value = nil
	fileOf(t, disk, "/f", entryOf(0, "zero"), null, noData, entryOf(math.MaxInt64+1, "x"), empty)
	r, said, err := imports(disk, s, nil, "/f")
	must.OK(t, err)
	if r.Rows != 5 || r.Stored != 2 || r.Failed[failBadRow] != 3 || s.data("", 5) != "" {
		t.Errorf("%+v", r)
	}
	for _, words := range []string{"/f row 1: the id is null", "/f row 2: the data are null", "/f row 3: the id is 922"} {
		if !strings.Contains(said, words) {
			t.Errorf("%s does not say %q", said, words)
		}
	}
}

// Of several rows with an id, the first one is stored, and what was there before is left. Both are listed.
func TestTakenIDsOfAnImport(t *testing.T) {
	for range 10 {
		disk, s := vfstest.NewMem(), newStore()
		s.put("", 3, []byte("before"))
		rows := []entry{entryOf(3, "three")}
		for i := range uint64(600) {
			rows = append(rows, entryOf(i%2, fmt.Sprint("row ", i+1)))
		}
		fileOf(t, disk, "/f", rows...)
		r, said, err := imports(disk, s, nil, "/f")
		must.OK(t, err)
		if r.Stored != 2 || r.Failed[failExists] != 599 || s.data("", 3) != "before" || s.data("", 0) != "row 1" ||
			s.data("", 1) != "row 2" {
			t.Fatalf("%+v, %q %q", r, s.data("", 0), s.data("", 1))
		}
		if first := strings.Contains(said, "/f row 0: record 3 is"); !first && !strings.Contains(said, "more follow") {
			t.Error(said)
		}
	}
}

// With --resume, rows that are stored are counted, and rows with other data are failures.
func TestAResumedImport(t *testing.T) {
	disk, s := vfstest.NewMem(), newStore()
	fileOf(t, disk, "/f", entryOf(1, "one"), entryOf(2, "two"), entryOf(3, "three"))
	s.put("", 1, []byte("one"))
	s.put("", 2, []byte("another"))
	r, said, err := imports(disk, s, func(o *ImportOptions) { o.Resume = true }, "/f")
	must.OK(t, err)
	if r.Stored != 1 || r.AlreadyThere != 1 || r.Failed[failOther] != 1 || s.data("", 2) != "another" {
		t.Errorf("%+v", r)
	}
	if !strings.Contains(said, "/f row 1: record 2 has other data") {
		t.Error(said)
	}
	// The same import id again: its own puts are recognised.
	id := func(o *ImportOptions) { o.ImportID = "x" }
	fileOf(t, disk, "/g", entryOf(9, "nine"))
	_, _, err = imports(disk, s, id, "/g")
	must.OK(t, err)
	if r, _, err = imports(disk, s, id, "/g"); err != nil || r.AlreadyThere != 1 || r.Failed.Total() != 0 {
		t.Errorf("%+v %v", r, err)
	}
	// A dry run stores nothing.
	fileOf(t, disk, "/h", entryOf(9, "nine"), entryOf(10, "ten"))
	r, _, err = imports(disk, s, func(o *ImportOptions) { o.DryRun = true }, "/h")
	if err != nil || r.Stored != 1 || r.Failed[failExists] != 1 || s.data("", 10) != "none" {
		t.Errorf("%+v %v", r, err)
	}
}

func TestGroupsOfAnImport(t *testing.T) {
	disk, s := vfstest.NewMem(), newStore()
	s.named = true
	other := entryOf(2, "two")
	other.Where = "b"
	fileOf(t, disk, "/f", entryOf(1, "one"), other)
	_, _, err := imports(disk, s, func(o *ImportOptions) { o.Group = "column:where" }, "/f")
	must.OK(t, err)
	if s.data("a", 1) != "one" || s.data("b", 2) != "two" {
		t.Error(s.records)
	}
	_, _, err = imports(disk, s, func(o *ImportOptions) { o.Group = "c" }, "/f")
	must.OK(t, err)
	if s.data("c", 1) != "one" || s.data("c", 2) != "two" {
		t.Error(s.records)
	}
}

// What is wrong with the options or with any file ends an import before anything is stored.
func TestAnImportIsCheckedBeforeItStores(t *testing.T) {
	disk := vfstest.NewMem()
	fileOf(t, disk, "/good", entryOf(1, "one"))
	must.OK(t, errors.Join(vfs.WriteAside(disk, "/text", []byte("this is some text, and no Parquet file")),
		vfs.WriteAside(disk, "/empty", nil), disk.MkdirAll("/folder")))
	whole, err := target{disk, "/"}.read("good")
	must.OK(t, err)
	must.OK(t, vfs.WriteAside(disk, "/cut", whole[:len(whole)-1]))
	for want, change := range map[string]func(*ImportOptions){
		"name the Parquet files":               func(o *ImportOptions) { o.Files = nil },
		"needs --id COLUMN and --data COLUMN":  func(o *ImportOptions) { o.ID = "" },
		"needs --id COLUMN and --data  COLUMN": func(o *ImportOptions) { o.Data = "" },
		"/text: it is no Parquet file":         func(o *ImportOptions) { o.Files = append(o.Files, "/text") },
		"/empty: it is no Parquet file":        func(o *ImportOptions) { o.Files = append(o.Files, "/empty") },
		"/cut: it is cut short":                func(o *ImportOptions) { o.Files = append(o.Files, "/cut") },
		"/folder: it is no file":               func(o *ImportOptions) { o.Files = append(o.Files, "/folder") },
		"/missing: ":                           func(o *ImportOptions) { o.Files = append(o.Files, "/missing") },
		`/good: it has no column "no"`:         func(o *ImportOptions) { o.ID = "no" },
		`column "value" is STRING`:             func(o *ImportOptions) { o.ID = "value" },
		`column "other" is nested`:             func(o *ImportOptions) { o.Data = "other" },
		"leave --group out":                    func(o *ImportOptions) { o.Group = "g" },
		"the name of a column":                 func(o *ImportOptions) { o.Group = "column:" },
		"--senders":                            func(o *ImportOptions) { o.Senders = -1 },
	} {
		s := newStore()
		_, _, err := imports(disk, s, change, "/good")
		says(t, err, strings.ReplaceAll(want, "  ", " "))
		if cli.ExitCode(err) != 2 || len(s.records) > 0 {
			t.Errorf("%q: exit code %d, %d records", want, cli.ExitCode(err), len(s.records))
		}
	}
	s := newStore()
	s.named = true
	_, _, err = imports(disk, s, nil, "/good")
	says(t, err, "column:COLUMN")
}

// A file whose pages are damaged is a failure, which says from which row on. The other files are imported.
func TestDamagedFilesOfAnImport(t *testing.T) {
	disk, s := vfstest.NewMem(), newStore()
	var rows []entry
	for i := range uint64(200) {
		rows = append(rows, entryOf(i, "value"))
	}
	fileOf(t, disk, "/bad", rows...)
	fileOf(t, disk, "/good", entryOf(1000, "good"))
	b, err := target{disk, "/"}.read("bad")
	must.OK(t, err)
	second := bytes.LastIndex(b, []byte("value\x05\x00\x00\x00value"))
	if second < 0 {
		second = bytes.LastIndex(b, []byte("valuevalue"))
	}
	clear(b[second-200 : second+5]) // in the pages of the second row group
	must.OK(t, vfs.WriteAside(disk, "/bad", b))
	r, said, err := imports(disk, s, nil, "/bad", "/good")
	must.OK(t, err)
	if r.Failed[Unreadable] != 1 || r.Stored != 101 || s.data("", 1000) != "good" {
		t.Errorf("%+v", r)
	}
	if !strings.Contains(said, "unreadable: /bad: from row 100 on") {
		t.Error(said)
	}
}

// Puts whose outcome is not known are repeated with the same request id, and counted once. An import gives up after a
// minute without success, and at once if the store is full.
func TestRetriesOfAnImport(t *testing.T) {
	away := refused(codes.Unavailable, "", "away")
	synctest.Test(t, func(t *testing.T) {
		disk, s := vfstest.NewMem(), newStore()
		fileOf(t, disk, "/f", entryOf(1, "one"), entryOf(2, "two"))
		tried := map[int64]string{}
		s.beforePut = func(items []client.PutItem) error {
			s.mu.Lock()
			defer s.mu.Unlock()
			id, request := items[0].Key.ID, string(items[0].Options.RequestID)
			if first, again := tried[id]; again {
				if first != request {
					t.Error("another request id")
				}
				return nil
			}
			tried[id] = request
			if id == 1 { // stored, but the answer is lost
				s.records[items[0].Key] = client.Record{Data: items[0].Data,
					Attributes: map[string][]byte{"request": []byte(request)}}
			}
			return away
		}
		r, _, err := imports(disk, s, nil, "/f")
		if err != nil || r.Stored != 2 || r.Failed.Total() != 0 || r.AlreadyThere != 0 {
			t.Errorf("%+v %v", r, err)
		}
	})
	synctest.Test(t, func(t *testing.T) {
		disk, s := vfstest.NewMem(), newStore()
		fileOf(t, disk, "/f", entryOf(1, "one"))
		s.beforePut = func([]client.PutItem) error { return away }
		begin := time.Now()
		_, _, err := imports(disk, s, nil, "/f")
		says(t, err, "stored nothing for", "--resume", "away")
		if took := time.Since(begin); took < time.Minute || took > 2*time.Minute {
			t.Errorf("gave up after %v", took)
		}
		s.beforePut = func([]client.PutItem) error { return refused(codes.ResourceExhausted, reason.DiskFull, "full") }
		_, _, err = imports(disk, s, nil, "/f")
		says(t, err, "/f row 0", "--resume", "full")
		s.beforePut = func([]client.PutItem) error { return refused(codes.InvalidArgument, "", "bad") }
		r, _, err := imports(disk, s, nil, "/f")
		if err != nil || r.Failed[failRefused] != 1 {
			t.Errorf("%+v %v", r, err)
		}
	})
}
