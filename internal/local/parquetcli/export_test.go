package parquetcli

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc/codes"

	"sheaf.dev/sheaf/client"
	"sheaf.dev/sheaf/client/call/reason"
	"sheaf.dev/sheaf/internal/local/cli"
	"sheaf.dev/sheaf/internal/local/parquetfile"
	"sheaf.dev/sheaf/internal/storage/vfs"
	"sheaf.dev/sheaf/internal/test/must"
	"sheaf.dev/sheaf/internal/test/vfstest"
)

const dir = "/export"

// filled returns a store with three groups.
func filled() *store {
	s := newStore()
	for i := range int64(12) {
		s.put(fmt.Sprint("g", i%3), i-6, fmt.Appendf(nil, "data %d", i))
	}
	return s
}

// export runs an export, and returns what it has printed as messages.
func export(fsys vfs.FS, s *store, change ...func(*ExportOptions)) (ExportReport, string, error) {
	opts := ExportOptions{Dir: dir, Expires: time.Hour, Quiet: true, Workers: 1}
	for _, c := range change {
		c(&opts)
	}
	var said bytes.Buffer
	r, err := Export(context.Background(), fsys, s, &cli.Output{Out: io.Discard, Err: &said}, opts)
	return r, said.String(), err
}

// The decoders of zstd have channels, and are kept for the whole process. So no bubble may read Parquet files: a
// goroutine outside of all bubbles does.
var calls, ended = make(chan func()), make(chan struct{})

func init() {
	go func() {
		for f := range calls {
			f()
			ended <- struct{}{}
		}
	}()
}

// outside calls a function outside of the bubble. The function must not end the test.
func outside(f func()) {
	calls <- f
	<-ended
}

// content returns a file.
func content(t testing.TB, fsys vfs.FS, name string) []byte {
	t.Helper()
	b, err := target{fsys, dir}.read(name)
	must.OK(t, err)
	return b
}

// exported checks a complete export: the folder has nothing but the manifest and its files, whose digests and counts
// are right, and no view is open. It returns the rows as "group/id=data" and the manifest.
func exported(t testing.TB, fsys vfs.FS, s *store) (rows []string, m manifest) {
	t.Helper()
	must.OK(t, json.Unmarshal(content(t, fsys, manifestName), &m))
	if !m.Complete || len(s.views) > 0 {
		t.Errorf("complete %v, %d views are open", m.Complete, len(s.views))
	}
	names, err := fsys.List(dir)
	must.OK(t, err)
	want := []string{manifestName}
	for _, f := range m.Files {
		want = append(want, f.Name)
		b := content(t, fsys, f.Name)
		if sum := sha256.Sum256(b); f.SHA256 != hex.EncodeToString(sum[:]) || f.FileBytes != int64(len(b)) {
			t.Errorf("%s: %+v", f.Name, f)
		}
		var n, size int64
		outside(func() {
			p, err := parquetfile.Open(bytes.NewReader(b), int64(len(b)))
			if err != nil {
				t.Errorf("%s: %v", f.Name, err)
				return
			}
			err = p.Read(parquetfile.Selection{ID: "id", Data: "data", Group: "group"}, func(r parquetfile.Row) error {
				n, size = n+1, size+int64(len(r.Data))
				if r.Bad == nil {
					rows = append(rows, fmt.Sprintf("%s/%d=%s", r.Group, r.ID, r.Data))
				}
				return nil
			})
			if err != nil {
				t.Errorf("%s: %v", f.Name, err)
			}
		})
		if f.Records != n || f.Bytes != size {
			t.Errorf("%s has %d rows of %d bytes: %+v", f.Name, n, size, f)
		}
	}
	if slices.Sort(want); !slices.Equal(names, want) {
		t.Errorf("the folder has %v, want %v", names, want)
	}
	return rows, m
}

// all returns the rows of a store as exported does.
func all(s *store) (rows []string) {
	v, _ := s.OpenView(context.Background(), nil, time.Hour)
	for _, r := range s.views[v.ID].records {
		rows = append(rows, fmt.Sprintf("%s/%d=%s", r.Key.Group, r.Key.ID, r.Data))
	}
	_ = s.CloseView(context.Background(), v.ID)
	return rows
}

func TestAnExportIsAllRecords(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		disk, s := vfstest.NewMem(), filled()
		want := all(s)
		r, _, err := export(disk, s)
		must.OK(t, err)
		rows, m := exported(t, disk, s)
		if !slices.Equal(rows, want) || m.Records != 12 || len(m.Files) != 3 || m.Store != s.uuid || m.View != r.View {
			t.Errorf("%v, want %v; %+v", rows, want, m)
		}
		if r.Records != 12 || r.Files != 3 || r.Earlier != 0 || !r.Complete || r.Bytes != m.Bytes {
			t.Errorf("%+v", r)
		}
		// Again: nothing to do.
		s.put("g1", 99, nil)
		opened := s.opened
		r, _, err = export(disk, s)
		must.OK(t, err)
		if rows, _ := exported(t, disk, s); !slices.Equal(rows, want) || r.Earlier != 3 || s.opened != opened {
			t.Errorf("%+v, %v", r, rows)
		}
		// A complete export that lost a file cannot be mended, because its view is closed.
		must.OK(t, disk.Remove(dir+"/part-00001.parquet"))
		_, _, err = export(disk, s)
		says(t, err, "part-00001.parquet", r.View, "another folder")
	})
}

func says(t testing.TB, err error, words ...string) {
	t.Helper()
	for _, w := range words {
		if err == nil || !strings.Contains(err.Error(), w) {
			t.Errorf("the error %v does not say %q", err, w)
		}
	}
}

// A power cut at each operation: the next run completes the export, of one view, and never writes a file again that is
// complete. The records change between the runs.
func TestAnExportSurvivesPowerCuts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		disk := vfstest.NewMem()
		_, _, err := export(disk, filled())
		must.OK(t, err)
		for n := range disk.OpCount() + 1 {
			for i, kind := range vfstest.SurvivalKinds {
				disk, s := vfstest.NewMem(), filled()
				want := all(s) // opens view-1
				disk.CrashAfter(n)
				_, _, _ = export(disk, s) // most of them crash
				again := disk.CrashClone(vfstest.Survival{Kind: kind, Seed: uint64(n)*7 + uint64(i)})
				s.put("g0", 1000, []byte("new"))
				later := all(s)
				_, _, err := export(again, s)
				if err != nil {
					t.Fatalf("cut after %d, %s: %v", n, kind, err)
				}
				v := s.views
				s.views = nil // a view that no manifest names expires
				rows, m := exported(t, again, s)
				s.views = v
				if _, open := v[m.View]; open {
					t.Errorf("cut after %d, %s: view %s is open", n, kind, m.View)
				}
				if m.View == "view-2" && !slices.Equal(rows, want) || m.View != "view-2" && !slices.Equal(rows, later) {
					t.Fatalf("cut after %d, %s: view %s: %v", n, kind, m.View, rows)
				}
			}
		}
	})
}

// Each operation fails once, as on a full disk: the run says so, and the next one completes the same view.
func TestAnExportSurvivesFullDisks(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for n := int64(0); ; n++ {
			s := filled()
			want := all(s)
			disk := vfstest.NewFaulty(vfstest.NewMem())
			fault := disk.Add(&vfstest.Fault{Skip: n, Count: 1, Err: syscall.ENOSPC, Effect: vfstest.EffectPart})
			r, _, err := export(disk, s)
			if fault.Fired() == 0 {
				if err != nil || n < 30 {
					t.Errorf("%v after %d operations", err, n)
				}
				return
			}
			if err != nil && !errors.Is(err, syscall.ENOSPC) {
				t.Errorf("operation %d: %v", n, err)
			}
			begun := r.View != ""
			if begun && err != nil && !r.Complete {
				says(t, err, "run it again", r.View)
			}
			s.put("g0", 1000, []byte("new"))
			if !begun {
				want = all(s)
			}
			r2, _, err := export(disk, s)
			if err != nil {
				t.Fatalf("operation %d: %v", n, err)
			}
			if rows, _ := exported(t, disk, s); !slices.Equal(rows, want) || begun && r2.View != r.View {
				t.Errorf("operation %d: views %s and %s, %v", n, r.View, r2.View, rows)
			}
		}
	})
}

// killed leaves an export in which one file is complete.
func killed(t testing.TB, s *store) *vfstest.Mem {
	t.Helper()
	disk := vfstest.NewMem()
	s.scanErr["g1"] = refused(codes.Unavailable, "", "the store is away")
	r, _, err := export(disk, s)
	delete(s.scanErr, "g1")
	says(t, err, "the store is away", "run it again before", r.View)
	if r.Files != 1 || r.Complete || len(s.views) != 1 {
		t.Fatalf("%+v, %d views", r, len(s.views))
	}
	return disk
}

func TestAResumedExportKeepsFiles(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := filled()
		want := all(s)
		disk := killed(t, s)
		before := content(t, disk, "part-00000.parquet")
		s.scanErr["g0"] = errors.New("the first file is read again")
		r, said, err := export(disk, s)
		must.OK(t, err)
		if rows, _ := exported(t, disk, s); !slices.Equal(rows, want) || r.Earlier != 1 ||
			!bytes.Equal(before, content(t, disk, "part-00000.parquet")) {
			t.Errorf("%+v: %v", r, rows)
		}
		if !strings.Contains(said, "1 of 3 files") {
			t.Error(said)
		}
	})
}

// A file that was changed is written again.
func TestAChangedFileIsWrittenAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := filled()
		want := all(s)
		disk := killed(t, s)
		f, err := disk.OpenWrite(dir + "/part-00000.parquet")
		must.OK(t, err)
		must.OK(t, errors.Join(f.Truncate(10), f.Close()))
		r, _, err := export(disk, s)
		must.OK(t, err)
		if rows, _ := exported(t, disk, s); !slices.Equal(rows, want) || r.Earlier != 0 {
			t.Errorf("%+v: %v", r, rows)
		}
	})
}

// An export whose view has ended is refused, and no view is opened in its place.
func TestAViewThatHasEnded(t *testing.T) {
	for name, end := range map[string]func(*store){
		"closed":  func(s *store) { clear(s.views) },
		"expired": func(*store) { time.Sleep(2 * time.Hour) },
		"lost":    func(s *store) { s.views["view-1"].lost = map[string]string{"g1": "too much was kept"} },
	} {
		synctest.Test(t, func(t *testing.T) {
			s := filled()
			disk := killed(t, s)
			end(s)
			_, _, err := export(disk, s)
			says(t, err, "view view-1", "has ended", "another folder")
			if !errors.Is(err, client.ErrViewExpired) && name != "lost" || s.opened != 1 {
				t.Errorf("%s: %v, %d views were opened", name, err, s.opened)
			}
		})
	}
}

// The view is renewed while the export runs, however long that takes. A view that ends meanwhile ends the export.
func TestTheViewIsRenewed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := filled()
		s.afterScan = func() { time.Sleep(20 * time.Minute) }
		disk := vfstest.NewMem()
		_, _, err := export(disk, s)
		must.OK(t, err)
		if exported(t, disk, s); s.renewed < 20 {
			t.Errorf("renewed %d times in 4 hours", s.renewed)
		}
	})
	synctest.Test(t, func(t *testing.T) {
		s := filled()
		s.afterScan = func() {
			time.Sleep(20 * time.Minute)
			s.mu.Lock()
			defer s.mu.Unlock()
			s.renewErr = expired("view-1")
		}
		begin := time.Now()
		_, _, err := export(vfstest.NewMem(), s)
		if says(t, err, "view view-1", "has ended", "another folder"); time.Since(begin) > time.Hour {
			t.Errorf("the export ended after %v", time.Since(begin))
		}
	})
}

// Folders that are not of this export are refused, and stay as they are.
func TestForeignFolders(t *testing.T) {
	put := func(name, text string) func(*testing.T, vfs.FS) {
		return func(t *testing.T, fsys vfs.FS) {
			must.OK(t, fsys.MkdirAll(dir))
			must.OK(t, vfs.WriteAside(fsys, dir+"/"+name, []byte(text)))
		}
	}
	for want, make := range map[string]func(*testing.T, vfs.FS){
		`it has "other.parquet"`: put("other.parquet", "x"),
		"was not written by":     put(manifestName, "{"),
		"was not written by `":   put(manifestName, `{"format": "other"}`),
		"version 2":              put(manifestName, `{"format": "sheaf-parquet-export", "version": 2}`),
		`has the name "../x"`:    put(manifestName, `{"format": "sheaf-parquet-export", "version": 1, "files": [{"name": "../x"}]}`),
		"is of store other":      put(manifestName, `{"format": "sheaf-parquet-export", "version": 1, "store": "other"}`),
		"is of group g9":         put(manifestName, `{"format": "sheaf-parquet-export", "version": 1, "store": "11111111-aaaa", "group": "g9"}`),
		"another export writes": func(t *testing.T, f vfs.FS) {
			must.OK(t, f.MkdirAll(dir))
			_, err := f.Lock(dir + "/" + lockName)
			must.OK(t, err)
		},
		"the folder to export to": func(t *testing.T, f vfs.FS) { must.OK(t, vfs.WriteAside(f, dir, nil)) },
	} {
		synctest.Test(t, func(t *testing.T) {
			disk, s := vfstest.NewMem(), filled()
			make(t, disk)
			_, _, err := export(disk, s)
			if says(t, err, want); s.opened != 0 {
				t.Errorf("%q: a view was opened", want)
			}
		})
	}
}

func TestExportOptions(t *testing.T) {
	for _, change := range []func(*ExportOptions){
		func(o *ExportOptions) { o.Dir = "" },
		func(o *ExportOptions) { o.Expires = 0 },
		func(o *ExportOptions) { o.Expires = 721 * time.Hour },
		func(o *ExportOptions) { o.Workers = -1 },
		func(o *ExportOptions) { o.SplitBytes = 1<<20 - 1 },
		func(o *ExportOptions) { o.SplitBytes = 1<<40 + 1 },
	} {
		if _, _, err := export(vfstest.NewMem(), filled(), change); cli.ExitCode(err) != 2 {
			t.Errorf("%v", err)
		}
	}
}

// Records above 1 MiB are downloaded, and above 32 MiB they are rows without data, which are listed and counted.
func TestLargeRecordsOfAnExport(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newStore()
		large := bytes.Repeat([]byte("large"), 1<<18)
		s.put("g", 1, large)
		s.put("g", 2, make([]byte, parquetfile.DataBytesMax+1))
		s.put("g", 3, large)
		s.put("g", 4, large)
		s.loads[client.Key{Group: "g", ID: 3}] = refused(codes.DataLoss, reason.Damaged, "bad bytes")
		s.loads[client.Key{Group: "g", ID: 4}] = refused(codes.PermissionDenied, "", "no")
		disk := vfstest.NewMem()
		r, said, err := export(disk, s)
		must.OK(t, err)
		rows, m := exported(t, disk, s)
		if len(rows) != 1 || rows[0] != "g/1="+string(large) || m.Records != 4 || m.NoData != 3 || r.NoData != 3 ||
			r.Failed[failNoData] != 3 {
			t.Errorf("%d rows, %+v, %+v", len(rows), m, r)
		}
		for _, words := range []string{"record g/2: 32.0 MiB", "record g/3", "DAMAGED", "record g/4"} {
			if !strings.Contains(said, words) {
				t.Errorf("%s does not say %q", said, words)
			}
		}
		// Any other error ends the export.
		s.loads[client.Key{Group: "g", ID: 3}] = refused(codes.Unavailable, "", "away")
		must.OK(t, disk.MkdirAll("/other"))
		_, _, err = export(disk, s, func(o *ExportOptions) { o.Dir = "/other" })
		says(t, err, "away", "run it again")
	})
}

// Damaged entries of a split do not end an export. The manifest and the report name the file that lacks them.
func TestDamagedRecordsOfAnExport(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := filled()
		s.scanErr["g1"] = refused(codes.DataLoss, reason.Damaged, "an entry is bad")
		disk := vfstest.NewMem()
		r, _, err := export(disk, s)
		must.OK(t, err)
		_, m := exported(t, disk, s)
		if r.Damaged != 1 || !strings.Contains(m.Files[1].Damaged, "an entry is bad") || m.Files[0].Damaged != "" {
			t.Errorf("%+v, %+v", r, m)
		}
	})
}

func TestExportOfOneGroup(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		disk, s := vfstest.NewMem(), filled()
		_, _, err := export(disk, s, func(o *ExportOptions) { o.Group = "g2" })
		must.OK(t, err)
		if rows, m := exported(t, disk, s); len(rows) != 4 || m.Group != "g2" {
			t.Errorf("%v %+v", rows, m)
		}
	})
}
