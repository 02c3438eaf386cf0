package cli

import (
	"strings"
	"testing"

	"sheaf.dev/sheaf/internal/status/finding"
	"sheaf.dev/sheaf/internal/storage/group/format"
)

func TestFindingsOfACheck(t *testing.T) {
	well := VerifyTreeReport{Groups: []VerifyGroupReport{{Group: "1"}}}
	if found := well.Findings(); len(found) != 0 {
		t.Fatalf("%+v", found)
	}
	report := VerifyTreeReport{Problems: []string{"superblock is gone"}, Groups: []VerifyGroupReport{
		{Group: "1", Dir: "/d/1", Damages: []format.Damage{{File: "segment-1", Offset: 9}}},
		{Group: "2", Dir: "/d/2", Error: "manifest: bad"},
		{Group: "3", Dir: "/d/3", TornBytes: 2048},
		{Group: "4", Dir: "/d/4", Joining: true},
	}}
	found := report.Findings()
	var got []string
	for _, f := range found {
		got = append(got, string(f.Severity)+" "+f.Where)
	}
	want := "problem group 1 in /d/1, problem group 2 in /d/2, problem volume, note group 3 in /d/3, note group 4 in /d/4"
	if strings.Join(got, ", ") != want {
		t.Fatalf("%v", got)
	}
	if what := found[3].What; !strings.HasPrefix(what, "a torn tail of 2.0 KiB: ") {
		t.Errorf("%q", what)
	}
	if finding.Count(found, finding.Problem) != 3 || !strings.Contains(found[0].Do, "sheaf verify /d/1 --repair") {
		t.Fatalf("%+v", found)
	}
}
