package floors

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"sheaf.dev/sheaf/internal/test/must"
)

// countedByHand matches a format with a number that is followed by a plural noun. If the number is 1, such a message
// is wrong.
var countedByHand = regexp.MustCompile(`%d (?:(?:other|free|more|older|failure|whole) )?(?:groups|shards|disks|copies|` +
	`members|volumes|claims|pods|gateways|pools|domains|issuers|grants|tenants|restarts|others|ones)\b`)

// pluralsByHand returns the strings in a file that match countedByHand. Strings that are joined by + count as one
// string.
func pluralsByHand(file *ast.File) (wrong []string) {
	ast.Inspect(file, func(n ast.Node) bool {
		switch n.(type) {
		case *ast.BinaryExpr, *ast.BasicLit:
		default:
			return true
		}
		joined := ""
		ast.Inspect(n, func(part ast.Node) bool {
			if text, is := part.(*ast.BasicLit); is && text.Kind == token.STRING {
				word, _ := strconv.Unquote(text.Value) // the parser has already accepted this literal
				joined += word
			}
			return true
		})
		wrong = append(wrong, countedByHand.FindAllString(joined, -1)...)
		return false
	})
	return wrong
}

// TestMessagesCountInWords checks that no message of a controller can say "1 groups". Messages must use step.Count,
// step.CountOf or step.All, which choose the singular or plural of the noun.
func TestMessagesCountInWords(t *testing.T) {
	const sample = "package p\nvar a, b, c = \"holds %d groups\", \"%d other \" +\n\"disks\", \"%d of its groups\""
	file, err := parser.ParseFile(token.NewFileSet(), "sample.go", sample, 0)
	must.OK(t, err)
	if found := pluralsByHand(file); len(found) != 2 {
		t.Fatalf("found are %q", found)
	}
	files := 0
	err = filepath.WalkDir(filepath.Join(root, "controllers"), func(name string, entry fs.DirEntry, err error) error {
		if err != nil || entry.IsDir() || !strings.HasSuffix(name, ".go") || strings.HasSuffix(name, "_test.go") {
			return err
		}
		file, err := parser.ParseFile(token.NewFileSet(), name, nil, parser.SkipObjectResolution)
		if err != nil {
			return err
		}
		files++
		for _, format := range pluralsByHand(file) {
			t.Errorf("%s: %q is wrong for the number 1: use step.Count", name, format)
		}
		return nil
	})
	if err != nil || files < 50 {
		t.Errorf("%d files: %v", files, err)
	}
}
