package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"sheaf.dev/sheaf/internal/status/finding"
)

// The doctor checks a healthy store and a store with a damaged segment, each with and without a process that serves the
// store. It also checks folders and addresses that are not stores.
func TestDoctor(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	p := startDev(t, dir, "--groups", "2")
	p.do(t, "some text that is harmed", "put", "1").Want(t, 0)
	p.do(t, "", "doctor").Want(t, 0).Has(t, "nothing is wrong")
	sheaf(t, nil, "doctor", p.server).Want(t, 0).Has(t, "nothing is wrong")
	sheaf(t, nil, "doctor", dir).Want(t, 1).Has(t, "a process serves")
	p.stop(t)
	sheaf(t, nil, "doctor", dir).Want(t, 0).Has(t, "nothing is wrong")

	segment := damageSegment(t, dir, "some text that is harmed")
	tells := func(o outcome, words ...string) {
		t.Helper()
		o.Want(t, 1).Has(t, "1 problem,")
		for _, w := range words {
			if !strings.Contains(o.Stdout, w) {
				t.Errorf("stdout does not say %q: %s", w, o.Stdout)
			}
		}
	}
	tells(sheaf(t, nil, "doctor", dir), "problem  group", filepath.Base(segment), "--repair")
	p = startDev(t, dir, "--groups", "2")
	tells(p.do(t, "", "doctor"), "problem  group", "sheaf group accept-loss")
	var told struct{ Findings []finding.Finding }
	p.do(t, "", "doctor", "-o", "json").Want(t, 1).JSON(t, &told)
	if len(told.Findings) != 1 || told.Findings[0].Severity != finding.Problem {
		t.Errorf("%+v", told)
	}

	sheaf(t, nil, "doctor", "nowhere").Want(t, 2).Has(t, "neither a folder nor HOST:PORT")
	sheaf(t, nil, "doctor", t.TempDir()).Want(t, 1).Has(t, "neither a volume nor a group")
	sheaf(t, nil, "doctor", "127.0.0.1:1").Want(t, 1).Has(t, "nobody answers")
	if _, err := os.Stat(filepath.Join(filepath.Dir(segment), "quarantine")); err == nil {
		t.Error("the doctor changed something")
	}
}

// damageSegment changes a byte of the given text in a segment below dir.
func damageSegment(t *testing.T, dir, text string) (segment string) {
	t.Helper()
	segments, err := filepath.Glob(filepath.Join(dir, "shards", "*", "groups", "*", "segment-*"))
	must(t, err)
	for _, name := range segments {
		data, err := os.ReadFile(name)
		must(t, err)
		if at := strings.Index(string(data), text); at >= 0 {
			data[at+3] ^= 1
			must(t, os.WriteFile(name, data, 0o600))
			return name
		}
	}
	t.Fatalf("the text is in none of %v", segments)
	return ""
}
