package archivecli

import (
	"bytes"
	"encoding/base64"
	"encoding/json"
	"flag"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"

	"sheaf.dev/sheaf/internal/archive/object"
	"sheaf.dev/sheaf/internal/local/cli"
	"sheaf.dev/sheaf/internal/test/archivetest"
)

var update = flag.Bool("update", false, "write the golden files anew")

// commandResult holds what a command printed, its exit code and its error.
type commandResult struct {
	out, messages string
	code          int
	err           error
}

func run(asJSON bool, command func(out *cli.Output) error) commandResult {
	var out, messages bytes.Buffer
	err := command(&cli.Output{Out: &out, Err: &messages, JSON: asJSON})
	return commandResult{out: out.String(), messages: messages.String(), code: cli.ExitCode(err), err: err}
}

func sample(t *testing.T) (Source, *archivetest.Memory, *archivetest.Writer) {
	b := archivetest.NewMemory()
	w := archivetest.Sample(t, b, object.Key{}, 50)
	return Source{Bucket: b}, b, w
}

// Each command must print the contents of its golden file. After a run with -update, check the changes to these files.
func TestCommandOutput(t *testing.T) {
	s, _, w := sample(t)
	list := func(out *cli.Output) error { return List(t.Context(), out, s) }
	verify := func(out *cli.Output) error { return Verify(t.Context(), out, s, VerifyOptions{}) }
	show := func(opts ShowOptions) func(out *cli.Output) error {
		return func(out *cli.Output) error { return Show(t.Context(), out, s, opts) }
	}
	cat := func(opts CatOptions) func(out *cli.Output) error {
		return func(out *cli.Output) error { return Cat(t.Context(), out, s, opts) }
	}
	for name, command := range map[string]func(out *cli.Output) error{
		"list": list, "verify": verify, "show-group": show(ShowOptions{Group: "alpha"}),
		"show-record": show(ShowOptions{Group: "alpha", ID: "1"}), "show-log": show(ShowOptions{Object: object.LogName(4)}),
		"cat": cat(CatOptions{ID: "12", Group: "beta"}),
	} {
		for _, asJSON := range []bool{false, true} {
			got := run(asJSON, command)
			if got.err != nil {
				t.Errorf("%s: %v", name, got.err)
				continue
			}
			if asJSON && !json.Valid([]byte(got.out)) {
				t.Errorf("%s prints no JSON: %s", name, got.out)
			}
			text := got.out + "---\n" + got.messages
			if name == "show-log" && asJSON {
				continue // the output differs from run to run, because it contains the object's random id
			}
			golden(t, name+map[bool]string{true: ".json", false: ".txt"}[asJSON], text)
		}
	}
	_ = w
}

// sizes matches the sizes of objects in JSON. The golden files contain 0 in their place, because the size of a log
// object depends on the checksums in its header, which differ from run to run.
var sizes = regexp.MustCompile(`"bytes": [0-9]+`)

func golden(t *testing.T, name, got string) {
	t.Helper()
	got = sizes.ReplaceAllString(got, `"bytes": 0`)
	path := filepath.Join("testdata", name)
	if *update {
		if err := os.WriteFile(path, []byte(got), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if got != string(want) {
		t.Errorf("%s: printed\n%s\nand the golden file has\n%s", name, got, want)
	}
}

func TestCat(t *testing.T) {
	s, _, w := sample(t)
	at := func(index uint64) string {
		return time.Unix(0, w.Groups[0].CommitTime(index)).UTC().Format(time.RFC3339Nano)
	}
	for what, c := range map[string]struct {
		opts CatOptions
		want string // the data; if the command fails, a part of the error
		code int
	}{
		"the end":             {CatOptions{ID: "3"}, "three, second", 0},
		"a time":              {CatOptions{ID: "3", Group: "alpha", At: at(5)}, "three", 0},
		"an index":            {CatOptions{ID: "3", Group: "alpha", At: "index:6"}, "three", 0},
		"a group by its UUID": {CatOptions{ID: "10", Group: w.Groups[1].UUID.String()}, "ten anew", 0},
		"a negative id":       {CatOptions{ID: "-2", Group: "alpha", At: "index:5"}, "minus two", 0},
		"deleted":             {CatOptions{ID: "-2", Group: "alpha"}, "no such record", 3},
		"never there":         {CatOptions{ID: "77"}, "no such record", 3},
		"no such group":       {CatOptions{ID: "3", Group: "omega"}, `no group "omega"`, 3},
		"two groups":          {CatOptions{ID: "1"}, "alpha and delta", 2},
		"below the floor":     {CatOptions{ID: "3", Group: "alpha", At: at(3)}, "below the history floor, index 4", 1},
		"in the hole": {CatOptions{ID: "12", Group: "beta", At: "index:6"}, "index 4, time 2026-11-01T12:00:14",
			1},
		"a hole may hide it":       {CatOptions{ID: "3", At: "index:6"}, "in the hole from index 5 to 7", 1},
		"before it was deleted":    {CatOptions{ID: "5", At: "2026-11-01T12:00:13Z"}, "five", 0},
		"a deleted group":          {CatOptions{ID: "5", Group: "gamma", At: at(10)}, "the group was deleted", 1},
		"a bad id":                 {CatOptions{ID: "x"}, "x", 2},
		"a bad time":               {CatOptions{ID: "3", At: "yesterday"}, "is not a point in time", 2},
		"a bad index":              {CatOptions{ID: "3", At: "index:0"}, "from 1 on", 2},
		"a time beyond the format": {CatOptions{ID: "3", At: "9999-01-01T00:00:00Z"}, "is not a point in time", 2},
	} {
		got := run(false, func(out *cli.Output) error { return Cat(t.Context(), out, s, c.opts) })
		switch {
		case got.code != c.code:
			t.Errorf("%s: exit code %d, not %d: %v", what, got.code, c.code, got.err)
		case c.code == 0 && got.out != c.want:
			t.Errorf("%s: %q, not %q", what, got.out, c.want)
		case c.code != 0 && (!strings.Contains(got.err.Error(), c.want) || got.out != ""):
			t.Errorf("%s: printed %q, error %v", what, got.out, got.err)
		}
	}
}

// A line of JSON contains the metadata and all the data, even if the data is a blob.
func TestCatAsJSON(t *testing.T) {
	s, _, w := sample(t)
	got := run(true, func(out *cli.Output) error { return Cat(t.Context(), out, s, CatOptions{ID: "11"}) })
	var r cli.RecordJSON
	if err := json.Unmarshal([]byte(got.out), &r); err != nil || r.Data == nil {
		t.Fatalf("%q: %v, %v", got.out, err, got.err)
	}
	data, err := base64.StdEncoding.DecodeString(*r.Data)
	want := w.Groups[1].State(8)[11]
	if err != nil || !bytes.Equal(data, want.Data) || r.SizeBytes != int64(len(want.Data)) || r.Group != "beta" {
		t.Errorf("%+v, error %v", r, err)
	}
}

// With Hash routing, the id determines the group, so no other group is read.
func TestCatOfHashRouting(t *testing.T) {
	b := archivetest.NewMemory()
	w := archivetest.New(t, b, archivetest.SampleStore, object.Key{})
	for i, name := range []string{"0", "1"} {
		g := w.NewGroup(name, byte(i+1))
		g.Put(0, "in "+name)
		g.Put(-1, "in "+name)
		w.Copy(g, 9)
	}
	b.Set(w.Name(object.ArchiveName), w.Encode(&object.Archive{Store: "h", Routing: "hash", Groups: 2, Lanes: 1}, nil))
	// With two groups, id 0 belongs to group 0, and id -1 to group 1.
	for id, want := range map[string]string{"0": "in 0", "-1": "in 1"} {
		got := run(false, func(out *cli.Output) error { return Cat(t.Context(), out, Source{Bucket: b}, CatOptions{ID: id}) })
		if got.out != want {
			t.Errorf("record %s: %q, %v", id, got.out, got.err)
		}
	}
}

func TestVerifyFailsWithWhatIsWrong(t *testing.T) {
	s, b, w := sample(t)
	name := object.LogName(2)
	whole := bytes.Clone(b.Get(w.Name(name)))
	whole[len(whole)-1] ^= 1
	b.Set(w.Name(name), whole)
	for _, asJSON := range []bool{false, true} {
		got := run(asJSON, func(out *cli.Output) error { return Verify(t.Context(), out, s, VerifyOptions{}) })
		if got.code != 1 || !strings.Contains(got.out, name) || !strings.Contains(got.err.Error(), "problem") {
			t.Errorf("exit code %d, %s, %v", got.code, got.out, got.err)
		}
	}
	got := run(false, func(out *cli.Output) error { return Verify(t.Context(), out, s, VerifyOptions{Sample: 101}) })
	if got.code != 2 {
		t.Errorf("a sample of 101 percent: exit code %d, %v", got.code, got.err)
	}
}

// If the URL contains several stores, a command asks the user to choose one. If one of the stores cannot be read, list
// fails, but prints the others.
func TestSeveralStores(t *testing.T) {
	s, b, w := sample(t)
	other := archivetest.New(t, b, uuid.UUID{0xee}, archivetest.SampleKey(t))
	other.Log(other.NewGroup("locked", 1))
	cat := func(s Source) commandResult {
		return run(false, func(out *cli.Output) error { return Cat(t.Context(), out, s, CatOptions{ID: "3"}) })
	}
	if got := cat(s); got.code != 2 || !strings.Contains(got.err.Error(), w.Store.String()) {
		t.Errorf("exit code %d, %v", got.code, got.err)
	}
	s.Store = w.Store.String()
	if got := cat(s); got.out != "three, second" {
		t.Errorf("%q, %v", got.out, got.err)
	}
	s.Store = "quotes"
	if got := cat(s); got.code != 2 {
		t.Errorf("a name in place of a UUID: exit code %d, %v", got.code, got.err)
	}
	s.Store = uuid.UUID{1}.String()
	if got := cat(s); got.code != 3 {
		t.Errorf("a store that is not there: exit code %d, %v", got.code, got.err)
	}
	s.Store = ""
	got := run(false, func(out *cli.Output) error { return List(t.Context(), out, s) })
	if got.code != 1 || !strings.Contains(got.out, "alpha") || !strings.Contains(got.out, other.Store.String()) ||
		!strings.Contains(got.out, "the key of the object is not known") {
		t.Errorf("exit code %d\n%s", got.code, got.out)
	}
	empty := Source{Bucket: archivetest.NewMemory()}
	if got := run(false, func(out *cli.Output) error { return List(t.Context(), out, empty) }); got.code != 3 {
		t.Errorf("an empty URL: exit code %d, %v", got.code, got.err)
	}
}

func TestShowRefuses(t *testing.T) {
	s, _, _ := sample(t)
	for what, c := range map[string]struct {
		opts ShowOptions
		code int
	}{
		"nothing": {ShowOptions{}, 2}, "both": {ShowOptions{Object: "x", Group: "y"}, 2}, "no object's name": {
			ShowOptions{Object: "x"}, 2}, "a missing object": {ShowOptions{Object: object.LogName(99)}, 3},
		"a missing group": {ShowOptions{Group: "omega"}, 3}, "a missing record": {ShowOptions{Group: "beta", ID: "99"}, 3},
		"an id without a group": {ShowOptions{Object: object.LogName(1), ID: "9"}, 2},
	} {
		if got := run(false, func(out *cli.Output) error { return Show(t.Context(), out, s, c.opts) }); got.code != c.code {
			t.Errorf("%s: exit code %d, not %d: %v", what, got.code, c.code, got.err)
		}
	}
}
