package floors

import (
	"fmt"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	"sheaf.dev/sheaf/internal/test/pagetest"
)

var (
	goTestAlone  = strings.Fields("v race short failfast json c x benchmem a n work i cover")
	goTestValued = strings.Fields("run bench skip fuzz timeout count benchtime fuzztime tags ldflags o p cpu parallel " +
		"coverprofile shuffle list exec vet mod")
	testFunction = regexp.MustCompile(`(?m)^func ((?:Test|Benchmark|Fuzz|Example)\w*)\(`)
	aFlag        = regexp.MustCompile(`flag\.\w*\((?:&[\w.]+, )?"([\w.-]+)"`)
	plainWords   = regexp.MustCompile(`^[A-Za-z0-9_-]+$`)
)

// checkGo checks the packages and tests in a go command against the tree.
func checkGo(c pagetest.Command) (bool, error) {
	if c.Words[0] != "go" || len(c.Words) < 2 {
		return false, nil
	}
	switch c.Words[1] {
	case "test":
		return true, checkGoTest(c, c.Words[2:])
	case "run", "build", "vet", "get":
		for _, word := range c.Words[2:] {
			if dir, ours := packageFolder(c.Dir, word); ours && len(packages(dir)) == 0 {
				return true, fmt.Errorf("there is no package %s", word)
			}
		}
		return true, nil
	}
	return false, nil
}

// packageFolder returns the folder of a package in this repository, relative to the root.
func packageFolder(dir, name string) (folder string, ours bool) {
	if below, ok := strings.CutPrefix(name, module); ok {
		return below, true
	}
	if name == "." || strings.HasPrefix(name, "./") || strings.HasPrefix(name, "../") {
		folder = path.Join(dir, name)
		if strings.HasSuffix(name, "/...") {
			folder = path.Join(dir, strings.TrimSuffix(name, "...")) + "/..."
		}
		return folder, !pagetest.Placeholder(strings.TrimSuffix(name, "..."))
	}
	return "", false
}

// packages returns the folders with Go code that a pattern names. The result is the folder itself and, if the pattern
// ends in /..., also the folders below it.
func packages(folder string) (found []string) {
	base, below := strings.CutSuffix(folder, "/...")
	if !below {
		if files, err := filepath.Glob(filepath.Join(root, folder, "*.go")); err == nil && len(files) > 0 {
			return []string{folder}
		}
		return nil
	}
	_ = filepath.WalkDir(filepath.Join(root, base), func(name string, d fs.DirEntry, err error) error {
		if err == nil && d.IsDir() && d.Name() != "bin" && d.Name() != ".git" {
			found = append(found, packages(strings.TrimPrefix(filepath.ToSlash(name), root+"/"))...)
		}
		return nil
	})
	return found
}

// goTest holds the packages, patterns and flags of a go test command.
type goTest struct {
	folders   []string
	patterns  map[string]string // patterns of the flags -run, -bench, -skip and -fuzz, by flag
	furthered []string          // flags that go test passes on to the test binary
}

func readGoTest(dir string, args []string) (g goTest, err error) {
	g.patterns = map[string]string{}
	for i := 0; i < len(args); i++ {
		if !strings.HasPrefix(args[i], "-") {
			folder, ours := packageFolder(dir, args[i])
			if ours && len(g.furthered) == 0 {
				if g.folders = append(g.folders, packages(folder)...); len(packages(folder)) == 0 {
					return g, fmt.Errorf("there is no package %s", args[i])
				}
			}
			continue
		}
		name, value, given := strings.Cut(strings.TrimLeft(args[i], "-"), "=")
		switch name = strings.TrimPrefix(name, "test."); {
		case slices.Contains(goTestAlone, name):
		case slices.Contains(goTestValued, name):
			if !given && i+1 < len(args) {
				i++
				value = args[i]
			}
			g.patterns[name] = value
		default:
			g.furthered = append(g.furthered, name)
		}
	}
	return g, nil
}

// checkGoTest checks that the packages exist, that they have a test for each pattern, and that either go test or the
// packages define each flag of the command.
func checkGoTest(c pagetest.Command, args []string) error {
	g, err := readGoTest(c.Dir, args)
	if err != nil || len(g.folders) == 0 && (c.Mentioned || c.Dir == "") {
		return err
	}
	var text strings.Builder
	for _, folder := range g.folders {
		files, err := filepath.Glob(filepath.Join(root, folder, "*.go"))
		if err != nil {
			return err
		}
		for _, file := range files {
			content, err := os.ReadFile(file)
			if err != nil {
				return err
			}
			text.Write(content)
		}
	}
	for _, name := range []string{"run", "bench", "fuzz", "skip"} {
		if err := hasTest(text.String(), name, g.patterns[name]); err != nil {
			return err
		}
	}
	flags := aFlag.FindAllStringSubmatch(text.String(), -1)
	for _, name := range g.furthered {
		if !slices.ContainsFunc(flags, func(m []string) bool { return m[1] == name }) {
			return fmt.Errorf("neither go test nor these packages have a flag -%s", name)
		}
	}
	return nil
}

// hasTest returns an error if no test in a package's source has a name that the pattern matches. If the pattern names
// a subtest, the subtest's name must also occur in the source, either unchanged or with spaces in place of its
// underscores.
func hasTest(text, flag, pattern string) error {
	if pattern == "" || pattern == "^$" || pagetest.Placeholder(strings.TrimSuffix(pattern, "$")) {
		return nil
	}
	first, part, _ := strings.Cut(pattern, "/")
	named, err := regexp.Compile(first)
	if err != nil {
		return err
	}
	if !slices.ContainsFunc(testFunction.FindAllStringSubmatch(text, -1), func(m []string) bool {
		return named.MatchString(m[1]) && strings.HasPrefix(m[1], "Benchmark") == (flag == "bench")
	}) {
		return fmt.Errorf("no test is called %s", first)
	}
	blanks := strings.ReplaceAll(part, "_", " ")
	if plainWords.MatchString(part) && !strings.Contains(text, part) && !strings.Contains(text, blanks) {
		return fmt.Errorf("no part of %s is called %s", first, part)
	}
	return nil
}
