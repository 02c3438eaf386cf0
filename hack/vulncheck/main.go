// Command vulncheck reads the output of `govulncheck -format json` (golang.org/x/vuln) and lists the vulnerabilities.
// It exits with status 1 if code of this module can reach a vulnerability in a required module, which must then be
// upgraded. Vulnerabilities in the standard library are also listed, but they need a newer Go on the build machine and
// no change in this repository.
//
// With -imported, the output is that of `govulncheck -scan package`, which takes a second, where the search for calls
// takes minutes. The exit status is then 1 if a package with a vulnerability is imported from a required module: only
// the search for calls says if its code is also reached.
package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"slices"
)

// message is one JSON message in the output of govulncheck. It has only the fields that this program needs.
type message struct {
	OSV *struct {
		ID      string `json:"id"`
		Summary string `json:"summary"`
	} `json:"osv"`
	Finding *struct {
		OSV          string `json:"osv"`
		FixedVersion string `json:"fixed_version"`
		Trace        []struct {
			Module, Version, Package, Function string
		} `json:"trace"` // the first element is what is vulnerable
	} `json:"finding"`
}

// how says how code of this module gets to a vulnerability.
type how string

const (
	called   how = "called"
	imported how = "imported"
)

func main() {
	by := called
	if slices.Equal(os.Args[1:], []string{"-imported"}) {
		by = imported
	}
	bad, err := read(os.Stdin, os.Stdout, by)
	if err != nil {
		fmt.Fprintln(os.Stderr, "vulncheck:", err)
		os.Exit(2)
	}
	if bad > 0 {
		os.Exit(1)
	}
}

// read prints a line for each vulnerability whose code is called, or whose package is imported. It returns how many of
// these vulnerabilities are in required modules, and not in the standard library.
func read(in io.Reader, out io.Writer, by how) (bad int, err error) {
	summaries, lines := map[string]string{}, map[string]string{}
	said := false
	for d := json.NewDecoder(in); ; {
		var m message
		if err := d.Decode(&m); errors.Is(err, io.EOF) {
			break
		} else if err != nil {
			return 0, fmt.Errorf("read what govulncheck says: %w", err)
		}
		said = true
		if m.OSV != nil {
			summaries[m.OSV.ID] = m.OSV.Summary
		}
		f := m.Finding
		if f == nil || len(f.Trace) == 0 || lines[f.OSV] != "" {
			continue
		}
		at, what := f.Trace[0], string(by)
		if at.Function == "" && (by == called || at.Package == "") {
			continue // the module is required, and its vulnerable code is not used
		}
		if at.Module == "stdlib" {
			what = "listed: build with a newer Go"
		} else {
			bad++
		}
		lines[f.OSV] = fmt.Sprintf("%s in %s@%s, fixed in %s (%s)", f.OSV, at.Module, at.Version, f.FixedVersion, what)
	}
	if !said {
		return 0, errors.New("govulncheck has said nothing")
	}
	for _, id := range slices.Sorted(maps.Keys(lines)) {
		fmt.Fprintf(out, "%s: %s\n", lines[id], summaries[id])
	}
	fmt.Fprintf(out, "%d vulnerabilities are %s, %d of them of modules\n", len(lines), by, bad)
	return bad, nil
}
