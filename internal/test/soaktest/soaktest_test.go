package soaktest

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"sheaf.dev/sheaf/internal/test/must"
)

func TestASeedIsFixedOutsideASoak(t *testing.T) {
	report := filepath.Join(t.TempDir(), "report")
	t.Setenv(Variable, "")
	t.Setenv(SeedVariable, "")
	t.Setenv(ReportVariable, report)
	if got := Seed(t, 42); got != 42 {
		t.Fatalf("seed %d, want the fixed one", got)
	}
	t.Setenv(SeedVariable, "77")
	if got := Seed(t, 42); got != 77 {
		t.Fatalf("seed %d, want that of the environment", got)
	}
	t.Setenv(SeedVariable, "")
	t.Setenv(Variable, "1")
	if a, b := Seed(t, 42), Seed(t, 42); a == b || a == 42 {
		t.Fatalf("seeds %d and %d of a soak, want random ones", a, b)
	}
	lines, err := os.ReadFile(report)
	must.OK(t, err)
	if n := strings.Count(string(lines), t.Name()+": seed "); n != 4 {
		t.Fatalf("%d seeds in the report, want 4: %s", n, lines)
	}
}

func TestASoakDoesMore(t *testing.T) {
	t.Setenv(Variable, "")
	want := 2
	if testing.Short() {
		want = 1
	}
	if got := Pick(2, 3, 1); got != want {
		t.Fatalf("%d outside a soak, want %d", got, want)
	}
	t.Setenv(Variable, "1")
	if got := Pick(2, 3, 1); got != 3 {
		t.Fatalf("%d in a soak", got)
	}
}

func TestOnlySkipsOutsideASoak(t *testing.T) {
	t.Setenv(Variable, "")
	skipped := false
	t.Run("outside", func(t *testing.T) {
		defer func() { skipped = t.Skipped() }()
		Only(t, "proc", "it loads the machine")
	})
	if !skipped {
		t.Fatal("a test of the soak ran outside of it")
	}
	t.Setenv(Variable, "1")
	ran := false
	t.Run("inside", func(t *testing.T) {
		Only(t, "proc", "it loads the machine")
		ran = true
	})
	if !ran {
		t.Fatal("a test of the soak was skipped in it")
	}
}

func TestNoteAppendsALine(t *testing.T) {
	notes := filepath.Join(t.TempDir(), "notes")
	t.Setenv(NotesVariable, "")
	Note(t, "nobody asks")
	t.Setenv(NotesVariable, notes)
	Note(t, "PIN %s", "one")
	Note(t, "PIN %s", "two")
	if got, err := os.ReadFile(notes); err != nil || string(got) != "PIN one\nPIN two\n" {
		t.Errorf("%q, %v", got, err)
	}
}
