package finding

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"sheaf.dev/sheaf/internal/test/must"
)

// TestEachKindHasOneRule checks that each kind that this package reports has a rule, and that each rule belongs to such
// a kind.
func TestEachKindHasOneRule(t *testing.T) {
	reported := map[Kind]bool{}
	for kind := range kindsIn(t, "store.go") {
		reported[kind] = true
	}
	ruled := map[Kind]bool{}
	for i := range Rules {
		rule := &Rules[i]
		if ruled[rule.Kind] {
			t.Errorf("%s has two rules", rule.Kind)
		}
		ruled[rule.Kind] = true
		if !reported[rule.Kind] {
			t.Errorf("%s has a rule, and is never reported", rule.Kind)
		}
		if rule.Cause == "" || rule.Why == "" || rule.Within < 0 || rule.Gone < 0 || !slices.Contains(order, rule.Severity) {
			t.Errorf("the rule %+v is not complete", rule)
		}
		if rule.Kind.severity() != rule.Severity {
			t.Errorf("the severity of %s is %s, not that of its rule", rule.Kind, rule.Kind.severity())
		}
	}
	for kind := range reported {
		if !ruled[kind] {
			t.Errorf("%s is reported, and Rules has no row for it", kind)
		}
	}
	if len(reported) < 20 {
		t.Errorf("only %d kinds are reported in store.go", len(reported))
	}
	if unknown := Kind("Unknown").severity(); unknown != Problem {
		t.Errorf("an unknown kind is a %s", unknown)
	}
}

// kindsIn returns the kinds that a file passes to Add and ofGroup.
func kindsIn(t *testing.T, name string) map[Kind]bool {
	t.Helper()
	file, err := parser.ParseFile(token.NewFileSet(), name, nil, 0)
	must.OK(t, err)
	kinds := map[Kind]bool{}
	ast.Inspect(file, func(n ast.Node) bool {
		call, ok := n.(*ast.CallExpr)
		if !ok || len(call.Args) == 0 {
			return true
		}
		if method, ok := call.Fun.(*ast.SelectorExpr); ok && (method.Sel.Name == "Add" || method.Sel.Name == "ofGroup") {
			// The value of each constant is its own name.
			if name, ok := call.Args[0].(*ast.Ident); ok {
				kinds[Kind(name.Name)] = true
			}
		}
		return true
	})
	return kinds
}

// TestThePageHasTheRules compares the table of findings in the page with Rules.
func TestThePageHasTheRules(t *testing.T) {
	const page = "../../../docs/operations/troubleshooting.md"
	content, err := os.ReadFile(page)
	must.OK(t, err)
	var want strings.Builder
	want.WriteString("| kind | severity | cause | reported within | gone within | why |\n|---|---|---|---|---|---|\n")
	for i := range Rules {
		r := &Rules[i]
		fmt.Fprintf(&want, "| %s | %s | %s | %s | %s | %s |\n", r.Kind, r.Severity, r.Cause, words(r.Within), words(r.Gone),
			r.Why)
	}
	if !strings.Contains(string(content), "\n\n"+want.String()+"\n") {
		t.Errorf("%s does not contain this table, which kinds.go determines:\n%s", page, want.String())
	}
}

// words returns a duration as the page writes it.
func words(d time.Duration) string {
	switch {
	case d == 0:
		return "at once"
	case d >= time.Minute:
		return fmt.Sprintf("%d min", int(d.Minutes()))
	}
	return fmt.Sprintf("%d s", int(d.Seconds()))
}
