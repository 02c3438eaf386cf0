// Command vulncheck reads the output of `govulncheck -format json` (golang.org/x/vuln) and lists the vulnerabilities.
// It exits with status 1 if code of this module can reach a vulnerability in a required module, which must then be
// upgraded. Vulnerabilities in the standard library are also listed, but they need a newer Go on the build machine and
// no change in this repository.
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
			Module, Version, Function string
		} `json:"trace"` // the first element is the vulnerable symbol; if its Function is set, code of this module calls it
	} `json:"finding"`
}

func main() {
	bad, err := read(os.Stdin, os.Stdout)
	if err != nil {
		fmt.Fprintln(os.Stderr, "vulncheck:", err)
		os.Exit(2)
	}
	if bad > 0 {
		os.Exit(1)
	}
}

// read prints a line for each vulnerability whose code is called. It returns how many of these vulnerabilities are in
// required modules, and not in the standard library.
func read(in io.Reader, out io.Writer) (bad int, err error) {
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
		if f == nil || len(f.Trace) == 0 || f.Trace[0].Function == "" || lines[f.OSV] != "" {
			continue
		}
		at, what := f.Trace[0], "called"
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
	fmt.Fprintf(out, "%d vulnerabilities are called, %d of them of modules\n", len(lines), bad)
	return bad, nil
}
