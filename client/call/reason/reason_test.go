package reason

import (
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// The contract lists exactly the reasons that the program has.
func TestTheContractListsEveryReason(t *testing.T) {
	file, err := parser.ParseFile(token.NewFileSet(), "reason.go", nil, 0)
	if err != nil {
		t.Fatal(err)
	}
	var ours []string
	ast.Inspect(file, func(n ast.Node) bool {
		if spec, ok := n.(*ast.ValueSpec); ok && spec.Names[0].Name != "Domain" {
			text, err := strconv.Unquote(spec.Values[0].(*ast.BasicLit).Value)
			if err != nil {
				t.Fatal(err)
			}
			ours = append(ours, text)
		}
		return true
	})
	text, err := os.ReadFile("../../../api/sheaf/record/v1/record.proto")
	if err != nil {
		t.Fatal(err)
	}
	_, list, found := strings.Cut(string(text), "one of these reasons:")
	if !found {
		t.Fatal("record.proto does not list the reasons any more")
	}
	list, _, _ = strings.Cut(list, "\nservice ")
	codes := []string{"ABORTED", "NOT_FOUND", "ALREADY_EXISTS", "RESOURCE_EXHAUSTED", "FAILED_PRECONDITION", "DATA_LOSS",
		"OUT_OF_RANGE", "INVALID_ARGUMENT", "PERMISSION_DENIED"}
	var theirs []string
	for _, word := range regexp.MustCompile(`\b[A-Z]+(?:_[A-Z]+)+\b|\bDAMAGED\b|\bSTOPPING\b|\bOVERLOADED\b`).
		FindAllString(list, -1) {
		if !slices.Contains(theirs, word) && !slices.Contains(codes, word) {
			theirs = append(theirs, word)
		}
	}
	for _, reason := range ours {
		if !slices.Contains(theirs, reason) {
			t.Errorf("record.proto does not list %s", reason)
		}
	}
	for _, reason := range theirs {
		if !slices.Contains(ours, reason) {
			t.Errorf("record.proto lists %s, which is no reason here", reason)
		}
	}
}
