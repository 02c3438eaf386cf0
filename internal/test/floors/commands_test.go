package floors

import (
	"fmt"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"sheaf.dev/sheaf/internal/test/must"
	"sheaf.dev/sheaf/internal/test/pagetest"
)

// root is the repository's root, relative to this package's folder.
const root = "../../.."

// sort describes one sort of commands that pages contain.
type sort struct {
	name  string
	least int // the pages must contain at least this many such commands, so that a check that finds none cannot pass
	// check reports whether a command is of this sort, and returns an error if something is wrong with the command.
	check func(c pagetest.Command) (applies bool, wrong error)
}

// sorts returns the sorts of commands that can be checked without knowing a program's command line. All other
// commands are checked by the tests of the programs.
func sorts(t *testing.T) []sort {
	t.Helper()
	rules, err := readMakefile(filepath.Join(root, "Makefile"))
	must.OK(t, err)
	kinds, err := readKinds()
	must.OK(t, err)
	sources, err := readSources()
	must.OK(t, err)
	return []sort{
		{"make", 80, func(c pagetest.Command) (bool, error) { return rules.check(c, sources) }},
		{"script", 3, rules.checkScript},
		{"go", 22, checkGo},
		{"path", 30, checkPaths},
		{"helm", 7, checkHelm},
		{"grpcurl", 3, checkGrpcurl},
		{"kubectl", 50, kinds.check},
		{"label", 5, sources.checkLabels},
	}
}

// TestCommandsOfPagesExist checks the commands of the pages against the tree. It runs none of them.
func TestCommandsOfPagesExist(t *testing.T) {
	all := sorts(t)
	pages, err := pagetest.Pages(root)
	must.OK(t, err)
	checked := map[string]int{}
	for _, page := range pages {
		commands, bad := pagetest.Commands(page.Text)
		for _, b := range bad {
			t.Errorf("%s: %s", page.Name, b)
		}
		for _, c := range commands {
			for _, s := range all {
				applies, wrong := s.check(c)
				if applies {
					checked[s.name]++
				}
				if wrong != nil {
					t.Errorf("%s:%d: `%s`: %v", page.Name, c.Line, c, wrong)
				}
			}
		}
	}
	t.Logf("%v commands of %d pages were checked", checked, len(pages))
	for _, s := range all {
		if checked[s.name] < s.least {
			t.Errorf("only %d commands of the sort %q were found, at least %d are wanted", checked[s.name], s.name, s.least)
		}
	}
}

var ourVariable = regexp.MustCompile(`\bSHEAF_[A-Z0-9_]*[A-Z0-9]\b`)

// TestVariablesOfPagesAreRead checks that something in the tree reads each environment variable that a page names.
func TestVariablesOfPagesAreRead(t *testing.T) {
	sources, err := readSources()
	must.OK(t, err)
	pages, err := pagetest.Pages(root)
	must.OK(t, err)
	named := 0
	for _, page := range pages {
		for _, v := range ourVariable.FindAllString(page.Text, -1) {
			named++
			if !sources.reads(v) && !readsWithDefault(page.Text, v) {
				t.Errorf("%s names the variable %s: nothing reads it", page.Name, v)
			}
		}
	}
	if named < 40 {
		t.Errorf("only %d mentions of variables were found", named)
	}
	if made := "SHEAF_" + "NOBODY_READS"; sources.reads(made) || readsWithDefault("${"+made+"}", made) {
		t.Errorf("%s is read, it is said", made)
	}
}

// readsWithDefault reports whether a script in a page reads a variable that may be unset.
func readsWithDefault(text, variable string) bool { return strings.Contains(text, "${"+variable+":-") }

// sources holds the source text of programs and scripts. This package's own source is left out, because its tables name
// variables that do not exist.
type sources struct{ golang, scripts []string }

func readSources() (sources, error) {
	var found sources
	err := filepath.WalkDir(root, func(file string, d os.DirEntry, err error) error {
		name := filepath.ToSlash(strings.TrimPrefix(file, root+"/"))
		switch {
		case err != nil:
			return err
		case d.IsDir() && slices.Contains([]string{"bin", ".git", ".cache", "floors", "pagetest"}, d.Name()):
			return filepath.SkipDir
		case d.IsDir() || !d.Type().IsRegular():
			return nil
		}
		into := &found.scripts
		switch ext := path.Ext(name); {
		case ext == ".go":
			into = &found.golang
		case ext != ".sh" && name != "Makefile" && name != ".ci/run" && name != "hack/cluster/cluster":
			return nil
		}
		text, err := os.ReadFile(file)
		*into = append(*into, string(text))
		return err
	})
	return found, err
}

// readsVariable reports whether Go code reads an environment variable by its name.
func (s sources) readsVariable(variable string) bool {
	return slices.ContainsFunc(s.golang, func(text string) bool {
		return strings.Contains(text, `env("`+variable+`"`) || strings.Contains(text, `Env("`+variable+`"`)
	})
}

// quotes reports whether Go code contains a word in quotes.
func (s sources) quotes(word string) bool {
	word = `"` + word + `"`
	return slices.ContainsFunc(s.golang, func(text string) bool { return strings.Contains(text, word) })
}

// reads reports whether Go code or a script reads an environment variable.
func (s sources) reads(variable string) bool {
	return s.quotes(variable) || slices.ContainsFunc(s.scripts, func(text string) bool { return expands(text, variable) })
}

// expands reports whether a script contains ${NAME} (possibly with an operator), $NAME or $(NAME).
func expands(text, name string) bool {
	return regexp.MustCompile(`\$[({]?` + regexp.QuoteMeta(name) + `\b`).MatchString(text)
}

var ourKey = regexp.MustCompile(`(?:^|[^\w./-])(sheaf\.dev/[A-Za-z0-9-]+)`)

// checkLabels checks the keys of labels and annotations in a command against those in Go code.
func (s sources) checkLabels(command pagetest.Command) (bool, error) {
	if command.Words[0] != "kubectl" {
		return false, nil
	}
	applies := false
	for _, word := range command.Words[1:] {
		for _, m := range ourKey.FindAllStringSubmatch(word, -1) {
			key := strings.TrimSuffix(m[1], "-") // a trailing "-" removes an annotation
			if applies = true; !s.quotes(key) {
				return true, fmt.Errorf("no code has the label or annotation %s", key)
			}
		}
	}
	return applies, nil
}

var treePath = regexp.MustCompile(`(?:^|[=:@,])(?:\./)?` +
	`((?:hack|charts|config|api|internal|cmd|e2e|examples|bench|docs|\.ci)/[\w./*-]*)`)

// checkPaths checks that all paths in a command that lead into the repository's folders exist.
func checkPaths(c pagetest.Command) (bool, error) {
	applies := false
	for _, word := range c.Words {
		if _, ours := packageFolder(c.Dir, word); ours && c.Words[0] == "go" {
			continue // a package, which checkGo handles
		}
		for _, m := range treePath.FindAllStringSubmatch(word, -1) {
			if pagetest.Placeholder(word) || strings.Contains(m[1], "/target/") { // a Maven build creates this file
				continue
			}
			applies = true
			pattern := strings.TrimSuffix(m[1], "/...")
			if found, err := filepath.Glob(filepath.Join(root, c.Dir, pattern)); err != nil || len(found) == 0 {
				return true, fmt.Errorf("there is no %s", path.Join(c.Dir, pattern))
			}
		}
	}
	return applies, nil
}

var aCall = regexp.MustCompile(`^(sheaf\.[\w.]*\.[A-Z]\w*)(?:[/.](\w+))?$`)

// checkGrpcurl checks services and methods against the .proto files.
func checkGrpcurl(c pagetest.Command) (bool, error) {
	if path.Base(c.Words[0]) != "grpcurl" {
		return false, nil
	}
	applies := false
	for _, word := range c.Words[1:] {
		m := aCall.FindStringSubmatch(word)
		if m == nil {
			if strings.HasPrefix(word, "sheaf.") && !pagetest.Placeholder(word) {
				return true, fmt.Errorf("%s is no method, such as sheaf.record.v1.RecordService/Get", word)
			}
			continue
		}
		applies = true
		dot := strings.LastIndexByte(m[1], '.')
		if err := checkContract(m[1][:dot], m[1][dot+1:], m[2]); err != nil {
			return true, err
		}
	}
	return applies, nil
}

// checkContract returns an error if a package lacks a service or message, or if a service lacks a method.
func checkContract(pkg, name, method string) error {
	files, err := filepath.Glob(filepath.Join(root, "api", strings.ReplaceAll(pkg, ".", "/"), "*.proto"))
	if err != nil {
		return err
	}
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			return err
		}
		block := regexp.MustCompile(`(?ms)^(?:service|message|enum) ` + regexp.QuoteMeta(name) + ` \{.*?^\}`).Find(text)
		rpc := regexp.MustCompile(`(?m)^\s*rpc ` + regexp.QuoteMeta(method) + `\(`)
		if block != nil && (method == "" || rpc.Match(block)) {
			return nil
		}
	}
	return fmt.Errorf("api has no %s.%s/%s", pkg, name, method)
}
