package floors

import (
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"sheaf.dev/sheaf/internal/test/must"
)

var (
	quoted   = regexp.MustCompile("`([^`\\s]+)`")
	aFile    = regexp.MustCompile(`[a-z*]\.(go|md|proto|yaml)$`)
	aMethod  = regexp.MustCompile(`^(?:[a-z]+\.)?\(?\*?([A-Za-z]+)\)?\.([A-Za-z]+)$`)
	word     = regexp.MustCompile(`[A-Za-z][A-Za-z0-9_]*`)
	declared = regexp.MustCompile(`(?m)^func \(\w+ \*?(\w+)(?:\[[^\]]*\])?\) (\w+)|^(?:func |type |var |\t)(\w+)`)
	anIdent  = regexp.MustCompile(`^[A-Za-z]{3,}$`)
	others   = regexp.MustCompile(`^(chromium|golangci-lint|depguard)$`) // programs of other projects
)

// tree holds everything that a page can name.
type tree struct {
	files []string
	words map[string]bool // all words in code
	// declared holds two forms of names: methods as Receiver.Method; functions, types and other identifiers that are
	// declared at the beginning of a line, as folder.Name.
	declared map[string]bool
}

func readTree(t *testing.T, root string) tree {
	t.Helper()
	there := tree{words: map[string]bool{}, declared: map[string]bool{}}
	err := filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case d.IsDir() && (d.Name() == "bin" || d.Name() == ".git"):
			return filepath.SkipDir
		case d.IsDir():
			return nil
		}
		there.files = append(there.files, filepath.ToSlash(path))
		if ext := filepath.Ext(path); ext != ".go" && ext != ".proto" {
			return nil
		}
		text, err := os.ReadFile(path)
		for _, w := range word.FindAllString(string(text), -1) {
			there.words[w] = true
		}
		for _, m := range declared.FindAllStringSubmatch(string(text), -1) {
			there.declared[m[1]+"."+m[2]], there.declared[filepath.Base(filepath.Dir(path))+"."+m[3]] = true, true
		}
		return err
	})
	must.OK(t, err)
	return there
}

// missing checks a name that occurs in a page. It returns "" if everything that the name refers to is in the tree, or
// if the name does not look like code. Otherwise it describes what is missing.
func (there tree) missing(name string) string {
	switch method := aMethod.FindStringSubmatch(name); {
	case others.MatchString(name):
	case aFile.MatchString(name):
		pattern := regexp.MustCompile(`(^|/)` + strings.ReplaceAll(regexp.QuoteMeta(name), `\*`, `[^/]*`) + `$`)
		for _, file := range there.files {
			if pattern.MatchString(file) {
				return ""
			}
		}
		return "there is no such file"
	case method != nil:
		if !there.declared[method[1]+"."+method[2]] {
			return "there is no such method, function or type"
		}
	case anIdent.MatchString(name):
		if !there.words[name] {
			return "no code has this word"
		}
	}
	return ""
}

// TestPagesNameWhatExists checks that the files, functions and methods that docs/architecture.md and docs/raft.md name
// exist. A page with a name that was changed or removed would mislead its readers.
func TestPagesNameWhatExists(t *testing.T) {
	there, named := readTree(t, root), 0
	for _, page := range []string{"architecture.md", "raft.md"} {
		text, err := os.ReadFile(filepath.Join(root, "docs", page))
		must.OK(t, err)
		for _, match := range quoted.FindAllStringSubmatch(string(text), -1) {
			if why := there.missing(match[1]); why != "" {
				t.Errorf("%s names `%s`: %s", page, match[1], why)
			}
			named++
		}
	}
	if named < 100 {
		t.Errorf("only %d names were found", named)
	}
}
