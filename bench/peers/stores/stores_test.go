package stores

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
	"sync"
	"testing"

	"sheaf.dev/sheaf/bench/drive"
	"sheaf.dev/sheaf/bench/peers/store"
)

// data returns the bytes of a record's version. Their length depends on the id and the version. No two versions have
// the same bytes, even if they belong to different records.
func data(id, version int64) []byte {
	d := binary.LittleEndian.AppendUint64(nil, uint64(id))
	d = binary.LittleEndian.AppendUint64(d, uint64(version))
	return append(d, bytes.Repeat([]byte{byte(id), byte(version)}, int(50+version*100+id%7))...)
}

// contract checks that a store does everything that the interface store.Store requires.
func contract(t *testing.T, k store.Kind, inMemory bool) {
	dir := t.TempDir()
	open := func() store.Store {
		s, err := k.Open(dir, store.Options{CacheBytes: 1 << 20, InMemory: inMemory})
		if err != nil {
			t.Fatal(err)
		}
		return s
	}
	const records = 2300 // more than two folders of the store "files" hold
	put := func(s store.Store, version int64, step int) {
		t.Helper()
		err := drive.Parallel(4, func(w int) error {
			for from := w * 100; from < records; from += 400 {
				var batch []store.Record
				for id := from; id < min(from+100, records); id += step {
					batch = append(batch, store.Record{ID: int64(id), Data: data(int64(id), version)})
				}
				if err := s.Put(batch); err != nil {
					return err
				}
			}
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	check := func(s store.Store, when string, version func(id int64) int64) {
		t.Helper()
		var mu sync.Mutex
		seen := map[int64]string{}
		m := store.NewMemory(3)
		m.Each = func(id int64, d []byte) {
			mu.Lock()
			defer mu.Unlock()
			if _, twice := seen[id]; twice {
				t.Errorf("%s: LoadAll gave %d twice", when, id)
			}
			seen[id] = string(d)
		}
		if n, err := s.LoadAll(3, m); err != nil || n != records {
			t.Fatalf("%s: LoadAll: %d records, %v", when, n, err)
		}
		before := []byte("before")
		for id := range int64(records) {
			want := data(id, version(id))
			got, err := s.Get(id, before)
			if err != nil || string(got) != "before"+string(want) {
				t.Fatalf("%s: Get %d: %d bytes, %v; want %d", when, id, len(got), err, len(want)+len(before))
			}
			if seen[id] != string(want) {
				t.Fatalf("%s: LoadAll gave %d bytes of %d", when, len(seen[id]), id)
			}
		}
		if n, err := s.LoadAll(2, store.NewMemory(2)); err != nil || n != records {
			t.Fatalf("%s: LoadAll without Each: %d records, %v", when, n, err)
		}
	}
	s := open()
	if n, err := s.LoadAll(2, store.NewMemory(2)); err != nil || n != 0 {
		t.Fatalf("an empty store has %d records, %v", n, err)
	}
	if _, err := s.Get(7, nil); !errors.Is(err, store.ErrNotFound) {
		t.Fatalf("Get of nothing: %v", err)
	}
	put(s, 1, 1)
	first := func(int64) int64 { return 1 }
	check(s, "written", first)
	put(s, 2, 2)
	half := func(id int64) int64 { return 2 - id%100%2 }
	check(s, "half overwritten", half)
	for _, step := range []struct {
		name string
		do   func() error
	}{{"compacted", func() error { return s.Compact() }}, {"opened again", func() error {
		err := s.Close()
		s = open()
		return err
	}}, {"compacted again", func() error { return s.Compact() }}} {
		if err := step.do(); err != nil {
			t.Fatalf("%s: %v", step.name, err)
		}
		check(s, step.name, half)
	}
	if _, err := s.Get(records, nil); !errors.Is(err, store.ErrNotFound) {
		t.Errorf("Get of a record behind the last one: %v", err)
	}
	if err := s.Close(); err != nil {
		t.Error(err)
	}
}

func TestContract(t *testing.T) {
	for _, k := range All() {
		for _, inMemory := range []bool{false, true} {
			if inMemory && !k.Ours {
				continue // only Sheaf supports the option InMemory
			}
			t.Run(fmt.Sprintf("%s, in memory %v", k.Name, inMemory), func(t *testing.T) {
				t.Parallel()
				contract(t, k, inMemory)
			})
		}
		if k.Version == "" || k.Settings == "" || Find(k.Name) == nil {
			t.Errorf("%q says neither version nor settings: %q, %q", k.Name, k.Version, k.Settings)
		}
	}
	if Find("none") != nil {
		t.Error("found a store that is none")
	}
}

// writerEnv is an environment variable with the name and the folder of a store. If it is set, the test program writes
// to this store until it is killed.
const writerEnv = "PEERS_TEST_WRITER"

func TestMain(m *testing.M) {
	if what := os.Getenv(writerEnv); what != "" {
		name, dir, _ := strings.Cut(what, "=")
		fmt.Fprintln(os.Stderr, write(name, dir))
		os.Exit(1)
	}
	os.Exit(m.Run())
}

// write puts batches until the process is killed. It prints each batch once it is durable.
func write(name, dir string) error {
	s, err := Find(name).Open(dir, store.Options{})
	if err != nil {
		return err
	}
	var say sync.Mutex
	return drive.Parallel(4, func(w int) error {
		for n := int64(0); ; n++ {
			var batch []store.Record
			for i := range int64(10) {
				id := n*40 + int64(w)*10 + i
				batch = append(batch, store.Record{ID: id, Data: data(id, 3)})
			}
			if err := s.Put(batch); err != nil {
				return err
			}
			say.Lock()
			_, err := fmt.Printf("%d\n", batch[0].ID)
			say.Unlock()
			if err != nil {
				return err
			}
		}
	})
}

// When a program is killed, its store loses no acknowledged write.
func TestKilledStoreKeepsAcknowledgedWrites(t *testing.T) {
	for _, k := range All() {
		t.Run(k.Name, func(t *testing.T) {
			t.Parallel()
			dir := t.TempDir()
			cmd := exec.Command(os.Args[0])
			cmd.Env = append(os.Environ(), writerEnv+"="+k.Name+"="+dir)
			var stderr bytes.Buffer
			cmd.Stderr = &stderr
			out, err := cmd.StdoutPipe()
			if err != nil {
				t.Fatal(err)
			}
			if err := cmd.Start(); err != nil {
				t.Fatal(err)
			}
			var acknowledged []int64
			for len(acknowledged) < 40 {
				var id int64
				if _, err := fmt.Fscanln(out, &id); err != nil {
					_ = cmd.Wait()
					t.Fatalf("the writer ended early: %v\n%s", err, &stderr)
				}
				acknowledged = append(acknowledged, id)
			}
			if err := cmd.Process.Kill(); err != nil {
				t.Fatal(err)
			}
			rest, _ := io.ReadAll(out) // the lines that the program printed before it was killed
			for line := range strings.Lines(string(rest)) {
				var id int64
				if strings.HasSuffix(line, "\n") {
					if _, err := fmt.Sscan(line, &id); err == nil {
						acknowledged = append(acknowledged, id)
					}
				}
			}
			_ = cmd.Wait()
			s, err := k.Open(dir, store.Options{})
			if err != nil {
				t.Fatalf("after the kill: %v", err)
			}
			defer s.Close()
			for _, first := range acknowledged {
				for id := first; id < first+10; id++ {
					if got, err := s.Get(id, nil); err != nil || !bytes.Equal(got, data(id, 3)) {
						t.Fatalf("record %d of %d acknowledged batches: %d bytes, %v", id, len(acknowledged), len(got), err)
					}
				}
			}
		})
	}
}
