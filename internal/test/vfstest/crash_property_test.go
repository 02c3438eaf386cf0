package vfstest_test

import (
	"bytes"
	"fmt"
	"io"
	"maps"
	"slices"
	"testing"

	"pgregory.net/rapid"

	"sheaf.dev/sheaf/internal/test/soaktest"
	"sheaf.dev/sheaf/internal/test/vfstest"
)

// sectorAt returns sector i of content. Bytes after the end of content are zero.
func sectorAt(content []byte, i int) []byte {
	out := make([]byte, sector)
	if i*sector < len(content) {
		copy(out, content[i*sector:])
	}
	return out
}

// TestCrashContentIsFromHistory makes random writes, truncations and syncs, both on a file and on a naive model, which
// is a list of all contents since the last sync. After a crash, each sector must have one of the contents that it had
// at the last sync or later, and the file must have a size that it had at the last sync or later.
func TestCrashContentIsFromHistory(t *testing.T) {
	soaktest.Check(t, func(t *rapid.T) {
		m := vfstest.NewMem()
		f, err := m.Create("f")
		ok(t, err)
		ok(t, m.SyncDir("."))
		history := [][]byte{nil} // begins with the content at the last sync, and ends with the current content
		for step := range rapid.IntRange(1, 25).Draw(t, "steps") {
			now := bytes.Clone(history[len(history)-1])
			offset := rapid.IntRange(0, 6000).Draw(t, "offset")
			length := rapid.IntRange(1, 3000).Draw(t, "length")
			switch rapid.SampledFrom([]string{"write", "write", "append", "truncate", "allocate", "sync"}).Draw(t, "op") {
			case "append":
				offset = len(now)
				fallthrough
			case "write":
				p := bytes.Repeat([]byte{byte(step + 1)}, length)
				_, err := f.WriteAt(p, int64(offset))
				ok(t, err)
				now = append(now, make([]byte, max(0, offset+length-len(now)))...)
				copy(now[offset:], p)
			case "truncate":
				ok(t, f.Truncate(int64(offset)))
				now = append(now, make([]byte, max(0, offset-len(now)))...)[:offset]
			case "allocate":
				ok(t, f.Allocate(int64(offset), int64(length)))
				now = append(now, make([]byte, max(0, offset+length-len(now)))...)
			case "sync":
				ok(t, f.Sync())
				history = nil
			}
			history = append(history, now)
			for _, kind := range vfstest.SurvivalKinds {
				s := vfstest.Survival{Kind: kind, Seed: rapid.Uint64Range(0, 1000).Draw(t, "seed")}
				disk := m.CrashClone(s)
				got := contentOf(t, disk, "f")
				checkContent(t, s, got, history)
				g, err := disk.OpenWrite("f")
				ok(t, err)
				ok(t, g.Truncate(int64(len(got)+5000)))
				if !bytes.Equal(contentOf(t, disk, "f"), append(got, make([]byte, 5000)...)) {
					t.Fatalf("%s: what stood behind the end shows when the file grows", s)
				}
			}
		}
	})
}

func checkContent(t *rapid.T, s vfstest.Survival, got []byte, history [][]byte) {
	first, last := history[0], history[len(history)-1]
	switch s.Kind {
	case vfstest.SurviveNone:
		if !bytes.Equal(got, first) {
			t.Fatalf("%s: not the content as of the last sync", s)
		}
	case vfstest.SurviveAll:
		if !bytes.Equal(got, last) {
			t.Fatalf("%s: not the present content", s)
		}
	case vfstest.SurviveNames:
		if len(got) != len(last) {
			t.Fatalf("%s: size %d, present size %d", s, len(got), len(last))
		}
	case vfstest.SurviveRandom:
		if !slices.ContainsFunc(history, func(h []byte) bool { return len(h) == len(got) }) {
			t.Fatalf("%s: size %d was never one since the last sync", s, len(got))
		}
	}
	for i := 0; i*sector < len(got); i++ {
		have := got[i*sector : min(len(got), (i+1)*sector)]
		known := slices.ContainsFunc(history, func(h []byte) bool { return bytes.Equal(sectorAt(h, i)[:len(have)], have) })
		// The size that survives may end in the middle of a sector. If it is larger than the content that survives, zeros
		// follow the content.
		if !known && !prefixOfHistory(have, i, history) {
			t.Fatalf("%s: sector %d of %d bytes is none that the file had since the last sync", s, i, len(got))
		}
	}
}

// prefixOfHistory reports whether a crash could leave a sector with the content have. Such a sector has one of the
// contents in the history, truncated at a size from the history and padded with zeros.
func prefixOfHistory(have []byte, i int, history [][]byte) bool {
	for _, h := range history {
		at := min(max(len(h)-i*sector, 0), len(have))
		if !bytes.Equal(have[at:], make([]byte, len(have)-at)) {
			continue
		}
		if slices.ContainsFunc(history, func(c []byte) bool { return bytes.Equal(sectorAt(c, i)[:at], have[:at]) }) {
			return true
		}
	}
	return false
}

func ok(t *rapid.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func contentOf(t *rapid.T, m *vfstest.Mem, name string) []byte {
	t.Helper()
	f, err := m.Open(name)
	ok(t, err)
	size, err := f.Size()
	ok(t, err)
	content := make([]byte, size)
	if n, err := f.ReadAt(content, 0); n != len(content) {
		t.Fatalf("read %d of %d: %v", n, size, err)
	}
	return content
}

// TestCrashNamesAreFromHistory is like TestCrashContentIsFromHistory, for names in two folders. Every file contains its
// number.
func TestCrashNamesAreFromHistory(t *testing.T) {
	names := []string{"a/x", "a/y", "b/x", "b/y"}
	soaktest.Check(t, func(t *rapid.T) {
		m := vfstest.NewMem()
		ok(t, m.MkdirAll("a"))
		ok(t, m.MkdirAll("b"))
		present, durable := map[string]string{}, map[string]string{}
		since := map[string][]string{} // for each name, the files to which it has referred since its folder was last synced
		remember := func(name string) { since[name] = append(since[name], present[name]) }
		for step := range rapid.IntRange(1, 20).Draw(t, "steps") {
			name := rapid.SampledFrom(names).Draw(t, "name")
			switch rapid.SampledFrom([]string{"create", "rename", "remove", "syncdir"}).Draw(t, "op") {
			case "create":
				if present[name] != "" {
					continue
				}
				f, err := m.Create(name)
				ok(t, err)
				_, err = fmt.Fprintf(io.NewOffsetWriter(f, 0), "%d", step)
				ok(t, err)
				ok(t, f.Sync())
				present[name] = fmt.Sprint(step)
				remember(name)
			case "rename":
				to := rapid.SampledFrom(names).Draw(t, "to")
				if present[name] == "" || to == name {
					continue
				}
				ok(t, m.Rename(name, to))
				present[to] = present[name]
				delete(present, name)
				remember(name)
				remember(to)
			case "remove":
				if present[name] == "" {
					continue
				}
				ok(t, m.Remove(name))
				delete(present, name)
				remember(name)
			case "syncdir":
				ok(t, m.SyncDir(name[:1]))
				for _, n := range names {
					if n[:1] == name[:1] {
						delete(durable, n)
						if present[n] != "" {
							durable[n] = present[n]
						}
						since[n] = nil
					}
				}
			}
			for _, kind := range vfstest.SurvivalKinds {
				s := vfstest.Survival{Kind: kind, Seed: rapid.Uint64Range(0, 1000).Draw(t, "seed")}
				checkNames(t, s, namesOf(t, m.CrashClone(s)), present, durable, since)
			}
		}
	})
}

func checkNames(t *rapid.T, s vfstest.Survival, got, present, durable map[string]string, since map[string][]string) {
	switch s.Kind {
	case vfstest.SurviveNone:
		if !maps.Equal(got, durable) {
			t.Fatalf("%s: names are %v, as of the last sync %v", s, got, durable)
		}
	case vfstest.SurviveRandom:
		for _, name := range []string{"a/x", "a/y", "b/x", "b/y"} {
			if got[name] != durable[name] && !slices.Contains(since[name], got[name]) {
				t.Fatalf("%s: %s means %q, which it never did since the last sync", s, name, got[name])
			}
		}
	default:
		if !maps.Equal(got, present) {
			t.Fatalf("%s: names are %v, present are %v", s, got, present)
		}
	}
}

func namesOf(t *rapid.T, m *vfstest.Mem) map[string]string {
	all := map[string]string{}
	for _, dir := range []string{"a", "b"} {
		names, err := m.List(dir)
		ok(t, err)
		for _, name := range names {
			all[dir+"/"+name] = string(contentOf(t, m, dir+"/"+name))
		}
	}
	return all
}
