package pagetest

import (
	"slices"
	"strings"
	"testing"
)

func TestTranscript(t *testing.T) {
	page := ticks.Replace("'''\n$ make a \\\n    b\none\n\ntwo\n$ make c\n'''\nSay ´$ make d´.\n'''\nmake e\n'''\n" +
		"'''yaml\n# x/a.yaml\na: b\n'''\n'''yaml\n# no file\nc: d\n'''\n'''\n$ make f\nthree\n'''\n")
	want := []Step{
		{Line: 2, Command: "make a \\\n    b", Prints: []string{"one", "", "two"}},
		{Line: 7, Command: "make c"},
		{Line: 22, Command: "make f", Prints: []string{"three"}},
	}
	got := Transcript(page)
	if !slices.EqualFunc(got, want, func(a, b Step) bool {
		return a.Line == b.Line && a.Command == b.Command && slices.Equal(a.Prints, b.Prints)
	}) {
		t.Errorf("%+v", got)
	}
	if files := Files(page); len(files) != 1 || files["x/a.yaml"] != "# x/a.yaml\na: b\n" {
		t.Errorf("%q", files)
	}
}

func TestStepCheck(t *testing.T) {
	for name, c := range map[string]struct {
		shown, printed string
		wrong          string // the line that is missing; empty if none is
	}{
		"as it is":               {"a b\nc", "a b\nc\n", ""},
		"more around it":         {"b\nd", "a\nb\nc\nd\ne", ""},
		"another order":          {"b\na", "a\nb\n", "a"},
		"a line that is missing": {"a\nb", "a\n", "b"},
		"only a part of a line":  {"a", "a b", "a"},
		"other columns":          {"NAME   AGE", "NAME         AGE  ", ""},
		"an ellipsis":            {"a ... c\n...\nlast", "a b c\nd\nlast", ""},
		"sizes and times":        {"1.5 MiB in 0.2 s, 22s, 3m5s", "310.0 KiB in 14 s, 1m2s, 40s", ""},
		"a node":                 {"shard n1 16", "shard n3 16", ""},
		"a UUID": {
			"n1 7cac8e9c-3d6c-4690-a10e-d9ef6330d517", "n2 26db42fb-1ff6-4647-9c6b-ee256d628e60", "",
		},
		"a count is one":     {"150 of 150 are there", "149 of 150 are there", "150 of 150"},
		"signs of a pattern": {"(a) [b] c.d", "(a) [b] cxd", "(a) [b] c.d"},
	} {
		err := Step{Line: 1, Command: "make a", Prints: strings.Split(c.shown, "\n")}.Check(c.printed)
		if (err == nil) != (c.wrong == "") || err != nil && !strings.Contains(err.Error(), `"`+c.wrong) {
			t.Errorf("%s: %v", name, err)
		}
	}
}
