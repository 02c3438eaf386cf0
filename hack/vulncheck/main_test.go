package main

import (
	"strings"
	"testing"
)

func TestModulesFailAndTheStandardLibraryIsListed(t *testing.T) {
	const (
		start   = `{"config":{"protocol_version":"v1.0.0"}}` + "\n"
		about   = `{"osv":{"id":"GO-1","summary":"all is lost"}}` + "\n"
		unused  = `{"finding":{"osv":"GO-1","fixed_version":"v1.2.4","trace":[{"module":"example.org/a","version":"v1.2.3"}]}}` + "\n"
		calls   = `{"finding":{"osv":"GO-1","fixed_version":"v1.2.4","trace":[{"module":"example.org/a","version":"v1.2.3","function":"F"}]}}` + "\n"
		inside  = `{"finding":{"osv":"GO-1","fixed_version":"v1.2.4","trace":[{"module":"example.org/a","version":"v1.2.3","package":"example.org/a/p"}]}}` + "\n"
		library = `{"finding":{"osv":"GO-2","fixed_version":"v1.26.9","trace":[{"module":"stdlib","version":"v1.26.8","function":"F"}]}}` + "\n"
	)
	for name, c := range map[string]struct {
		in   string
		by   how
		bad  int
		says string
	}{
		"none":         {start + about, called, 0, "0 vulnerabilities"},
		"not called":   {start + about + unused + inside, called, 0, "0 vulnerabilities are called"},
		"not imported": {start + about + unused, imported, 0, "0 vulnerabilities are imported"},
		"imported": {start + about + unused + inside, imported, 1,
			"GO-1 in example.org/a@v1.2.3, fixed in v1.2.4 (imported): all is lost\n1 vulnerabilities"},
		"called": {start + about + unused + calls + calls, called, 1,
			"GO-1 in example.org/a@v1.2.3, fixed in v1.2.4 (called): all is lost\n1 vulnerabilities"},
		"the standard library": {start + library, called, 0, "a newer Go"},
	} {
		var out strings.Builder
		bad, err := read(strings.NewReader(c.in), &out, c.by)
		if err != nil || bad != c.bad || !strings.Contains(out.String(), c.says) {
			t.Errorf("%s: %d, %v, %s", name, bad, err, out.String())
		}
	}
	for _, in := range []string{"", "{", start + "x"} {
		if _, err := read(strings.NewReader(in), &strings.Builder{}, called); err == nil {
			t.Errorf("%q is taken", in)
		}
	}
}
