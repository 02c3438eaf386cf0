package floors

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"

	"sheaf.dev/sheaf/internal/test/pagetest"
)

// makefile holds the variables and targets of a Makefile.
type makefile struct {
	variables map[string]string // maps each name to the text of all its assignments
	targets   map[string]target
}

// target holds the prerequisites of a target and its recipe.
type target struct{ needs, runs string }

var (
	assignment = regexp.MustCompile(`^(?:export +|override +)*([A-Za-z_]\w*) *[:?+]?= *(.*)`)
	aRule      = regexp.MustCompile(`^([^\s#=:.][^=:#]*):(?:$|[^=](.*)$)`)
	aTool      = regexp.MustCompile(`\(call tool,([\w-]+)`)
	recursion  = regexp.MustCompile(`\$\(MAKE\)([^;|&)]*)`)
	ofVariable = regexp.MustCompile(`\$[({]([A-Za-z_]\w*)`)
	ofScript   = regexp.MustCompile(`(?:hack|internal|examples|e2e|\.ci)/[\w./-]+`)
	setting    = regexp.MustCompile(`^([A-Za-z_]\w*)[:?+]?=`)
)

func readMakefile(name string) (makefile, error) {
	text, err := os.ReadFile(name)
	m := makefile{variables: map[string]string{}, targets: map[string]target{}}
	for _, tool := range aTool.FindAllStringSubmatch(string(text), -1) {
		m.targets["bin/tools/"+tool[1]] = target{}
	}
	var now []string // targets whose recipe is being read
	for line := range strings.Lines(strings.ReplaceAll(string(text), "\\\n", " ")) {
		if recipe, ok := strings.CutPrefix(line, "\t"); ok {
			for _, name := range now {
				m.targets[name] = target{m.targets[name].needs, m.targets[name].runs + recipe}
			}
			continue
		}
		line = strings.TrimRight(line, "\n")
		if a := assignment.FindStringSubmatch(line); a != nil {
			m.variables[a[1]] += a[2] + "\n"
			continue
		}
		line, _, _ = strings.Cut(line, "##")
		rule := aRule.FindStringSubmatch(line)
		if rule == nil {
			continue
		}
		now = strings.Fields(strings.ReplaceAll(rule[1], "$(TOOLS)", strings.TrimSpace(m.variables["TOOLS"])))
		for _, name := range now {
			m.targets[name] = target{m.targets[name].needs + rule[2] + "\n", m.targets[name].runs}
		}
	}
	return m, err
}

// reach collects everything that targets run, including the variables' text. It follows prerequisites and the scripts
// that are called.
type reach struct {
	makefile
	seen map[string]bool
	text strings.Builder
}

func (r *reach) target(name string) {
	if there, ok := r.targets[name]; ok && r.first("target "+name) {
		r.add(there.needs + there.runs)
		for _, need := range strings.Fields(there.needs) {
			r.target(need)
		}
	}
}

func (r *reach) first(what string) bool {
	seen := r.seen[what]
	r.seen[what] = true
	return !seen
}

func (r *reach) add(text string) {
	r.text.WriteString(text)
	for _, v := range ofVariable.FindAllStringSubmatch(text, -1) {
		if r.first("variable " + v[1]) {
			r.add(r.variables[v[1]])
		}
	}
	for _, again := range recursion.FindAllStringSubmatch(text, -1) {
		for _, word := range strings.Fields(again[1]) {
			begin, _, open := strings.Cut(word, "$") // a word such as soak-$$part stands for all targets that begin with soak-
			for name := range r.targets {
				if name == word || open && begin != "" && strings.HasPrefix(name, begin) {
					r.target(name)
				}
			}
		}
	}
	for _, script := range ofScript.FindAllString(text, -1) {
		if !r.first("script " + script) {
			continue
		}
		if content, err := os.ReadFile(filepath.Join(root, script)); err == nil {
			r.add(string(content))
		}
	}
}

// check checks a make command against the Makefile. Each target must exist, and each variable must be read by
// something that one of the targets runs, or by Go code as an environment variable.
func (m makefile) check(c pagetest.Command, code sources) (bool, error) {
	if c.Words[0] != "make" {
		return false, nil
	}
	all := reach{makefile: m, seen: map[string]bool{}}
	variables := append([]string{}, c.Env...)
	for _, word := range c.Words[1:] {
		_, there := m.targets[word]
		switch v := setting.FindStringSubmatch(word); {
		case v != nil:
			variables = append(variables, v[1])
		case strings.HasPrefix(word, "-") || pagetest.Placeholder(word):
		case !there:
			return true, fmt.Errorf("the Makefile has no target %s", word)
		default:
			all.target(word)
		}
	}
	for _, v := range variables {
		if !expands(all.text.String(), v) && !code.readsVariable(v) && (!ourVariable.MatchString(v) || !code.reads(v)) {
			return true, fmt.Errorf("neither these targets nor the scripts that they call read %s", v)
		}
	}
	return true, nil
}

// checkScript checks that a script in a command exists, and that it reads the variables that the command sets.
func (m makefile) checkScript(c pagetest.Command) (bool, error) {
	name := strings.TrimPrefix(c.Words[0], "./")
	if c.Dir != "" || len(c.Env) == 0 || ofScript.FindString(name) != name {
		return false, nil
	}
	all := reach{makefile: m, seen: map[string]bool{}}
	all.add(name)
	for _, v := range c.Env {
		if v != "PATH" && !expands(all.text.String(), v) {
			return true, fmt.Errorf("neither %s nor a script that it calls reads %s", name, v)
		}
	}
	return true, nil
}
