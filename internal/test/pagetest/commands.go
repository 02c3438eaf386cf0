package pagetest

import (
	"fmt"
	"path"
	"regexp"
	"slices"
	"strings"

	"mvdan.cc/sh/v3/syntax"
)

// Command is a command line of a page.
type Command struct {
	Line int // line of the page, from 1
	// Words holds the words that a program receives from the shell. Parts that only a shell can expand, such as $x, are
	// unchanged.
	Words []string
	Env   []string // names of the variables that are set only for this command
	Dir   string   // folder in which the command runs, relative to the root; empty unless an earlier cd changes it
	// Mentioned is true if the command is in a sentence or has an ellipsis. In this case, parts of the command may be
	// missing.
	Mentioned bool
}

// String returns the command in one line.
func (c Command) String() string { return strings.Join(c.Words, " ") }

// Args returns the arguments if the command runs the given program, no matter whether the program is called by its
// name, as a file in bin, or as the program of an image. The kubectl plugin is named "kubectl sheaf".
func (c Command) Args(program string) ([]string, bool) {
	words := strings.Fields(program)
	if len(c.Words) < len(words) || !slices.Equal(c.Words[1:len(words)], words[1:]) {
		return nil, false
	}
	dir, name := path.Split(c.Words[0])
	if name != words[0] || dir != "" && dir != "/" && !strings.HasSuffix("/"+dir, "/bin/") {
		return nil, false
	}
	return c.Words[len(words):], true
}

var (
	// known matches a line that begins with a command of a program whose commands are checked. It matches neither output
	// nor sentences.
	known = regexp.MustCompile(`^(?:[A-Z_][A-Z0-9_]*=\S* +)*(?:(?:sudo|time) +)?` +
		`(?:(?:(?:\S*/)?bin/|/)?(?:sheaf|sheaf-bench|sheaf-operator|kubectl-sheaf|kubectl|helm|grpcurl)|make|` +
		`go (?:test|run|build|vet|get|tool|mod)|` +
		`(?:\./)?(?:hack|e2e|examples|internal)/\S*\.sh|(?:\./)?hack/cluster/cluster|(?:\./)?\.ci/run)(?: |$)`)
	script   = regexp.MustCompile(`^(?:\./)?(?:hack|e2e|examples|internal|\.ci)/`)
	prompt   = regexp.MustCompile(`^\s*\$ (.*)`)
	inAngles = regexp.MustCompile(`(^|[^<A-Za-z0-9_])<([A-Za-z](?:[\w. /-]*\w)?)>`)
	capitals = regexp.MustCompile(`(^|[^A-Za-z0-9_])[A-Z][A-Z0-9_]*([^A-Za-z0-9_]|$)`)
	shells   = []string{"sh", "bash", "shell", "console"}
)

// Placeholder reports whether the actual value of a word is unknown, because the reader must fill it in or because
// only a shell can expand it. Examples are NAME, <name>, $name, and words with an ellipsis.
func Placeholder(word string) bool {
	return strings.Contains(word, "$") || strings.Contains(word, "...") || capitals.MatchString(word)
}

// Commands returns the command lines of a page, both in code blocks and in sentences. The result bad holds the lines
// that begin like a command but are not valid shell code.
func Commands(text string) (found []Command, bad []string) {
	for _, s := range snippets(text) {
		var cs []Command
		var err error
		switch {
		case s.span:
			s.text = strings.TrimPrefix(s.text, "$ ")
			// Code that consists only of a program's name is not a command. A script's name is a path, so it is checked even
			// if it stands alone.
			if known.MatchString(s.text) && (strings.Contains(s.text, " ") || script.MatchString(s.text)) {
				cs, err = parse(s.text, s.line)
			}
			for i := range cs {
				cs[i].Mentioned = true
			}
		case s.info == "" || slices.Contains(shells, s.info):
			cs, err = block(s)
		}
		if err != nil {
			bad = append(bad, err.Error())
		}
		found = append(found, cs...)
	}
	return found, bad
}

// commandLine is one command line in a block, including its continuation lines.
type commandLine struct {
	line int
	text string
}

// commandLines returns the command lines of a block. If some lines of the block begin with a prompt, only these lines
// are commands, and the others are output.
func commandLines(s snippet) (found []commandLine, prompts bool) {
	lines := strings.Split(s.text, "\n")
	prompts = slices.ContainsFunc(lines, prompt.MatchString)
	for i := 0; i < len(lines); i++ {
		at, line := i, lines[i]
		if prompts {
			m := prompt.FindStringSubmatch(line)
			if m == nil {
				continue
			}
			line = m[1]
		}
		for strings.HasSuffix(lines[i], `\`) && i+1 < len(lines) {
			i++
			line += "\n" + lines[i]
		}
		found = append(found, commandLine{s.line + at, line})
	}
	return found, prompts
}

// block finds the commands in a code block. A block that is marked as shell is parsed as a whole. A block without a
// mark may contain anything: if it looks like a script, it is parsed as a whole, and otherwise only its lines that
// begin like a command are parsed.
func block(s snippet) ([]Command, error) {
	us, prompts := commandLines(s)
	if !prompts {
		whole, err := parse(s.text, s.line)
		missed := func(l commandLine) bool { return begins(l.text) && !startsAt(whole, l.line) }
		if err == nil && !slices.ContainsFunc(us, missed) {
			return whole, nil
		}
		if s.info != "" && err != nil {
			return nil, err
		}
	}
	var found []Command
	for _, u := range us {
		if !prompts && !begins(u.text) {
			continue
		}
		cs, err := parse(u.text, u.line)
		if err != nil {
			return found, err
		}
		found = append(found, cs...)
	}
	return found, nil
}

func begins(line string) bool { return known.MatchString(strings.TrimSpace(line)) }

func startsAt(cs []Command, line int) bool {
	return slices.ContainsFunc(cs, func(c Command) bool { return c.Line == line })
}

// parse parses text as bash does.
func parse(text string, line int) ([]Command, error) {
	text = inAngles.ReplaceAllStringFunc(text, func(m string) string {
		parts := inAngles.FindStringSubmatch(m)
		return parts[1] + strings.ToUpper(regexp.MustCompile(`\W`).ReplaceAllString(parts[2], "_"))
	})
	file, err := syntax.NewParser(syntax.Variant(syntax.LangBash)).Parse(strings.NewReader(text), "")
	if err != nil {
		return nil, fmt.Errorf("line %d: no shell can read %q: %w", line, text, err)
	}
	r := reader{text: text, line: line}
	for _, stmt := range file.Stmts {
		before := r.dir
		syntax.Walk(stmt, r.visit)
		if call, ok := stmt.Cmd.(*syntax.CallExpr); !ok || len(call.Args) == 0 || call.Args[0].Lit() != "cd" {
			r.dir = before // the cd in `cd x && y` affects only its own line
		}
	}
	return r.found, nil
}

// reader collects the commands of a syntax tree.
type reader struct {
	text  string
	line  int // line of the page where the text begins
	dir   string
	found []Command
}

func (r *reader) visit(node syntax.Node) bool {
	call, ok := node.(*syntax.CallExpr)
	if !ok || len(call.Args) == 0 {
		return true
	}
	c := Command{Line: r.line + int(call.Pos().Line()) - 1, Dir: r.dir}
	for _, a := range call.Assigns {
		c.Env = append(c.Env, a.Name.Value)
	}
	for _, arg := range call.Args {
		switch word, literal := r.word(arg.Parts), arg.Lit() != ""; {
		case word == "...":
			c.Mentioned = true
		case literal && len(word) > 2 && (word[0] == '[' || strings.HasSuffix(word, "]") && !strings.Contains(word, "[")):
			// The page shows an optional part in brackets, as in [--from CURSOR].
			c.Words = append(c.Words, strings.Trim(word, "[]"))
		default:
			c.Words = append(c.Words, word)
		}
	}
	r.add(c)
	return true
}

// add records a command without a prefix such as sudo or env. For kubectl exec, it also records the inner command.
func (r *reader) add(c Command) {
	for len(c.Words) > 1 && slices.Contains([]string{"sudo", "nohup", "setsid", "env", "exec", "command"}, c.Words[0]) {
		c.Words = c.Words[1:]
		for c.Words[0] != "" && strings.Contains(c.Words[0], "=") && len(c.Words) > 1 {
			name, _, _ := strings.Cut(c.Words[0], "=")
			c.Env, c.Words = append(c.Env, name), c.Words[1:]
		}
	}
	if len(c.Words) == 0 {
		return
	}
	if c.Words[0] == "cd" && len(c.Words) == 2 {
		r.dir = path.Join(r.dir, c.Words[1])
	}
	r.found = append(r.found, c)
	if at := slices.Index(c.Words, "--"); c.Words[0] == "kubectl" && at > 0 && at+1 < len(c.Words) {
		inner := c
		inner.Words, inner.Env = c.Words[at+1:], nil
		r.add(inner)
	}
}

// word returns a word as the shell would pass it on. Parts that need expansion remain unchanged.
func (r *reader) word(parts []syntax.WordPart) string {
	var b strings.Builder
	for _, part := range parts {
		switch p := part.(type) {
		case *syntax.Lit:
			b.WriteString(regexp.MustCompile(`\\(.)`).ReplaceAllString(p.Value, "$1"))
		case *syntax.SglQuoted:
			b.WriteString(p.Value)
		case *syntax.DblQuoted:
			b.WriteString(r.word(p.Parts))
		default:
			b.WriteString(r.text[part.Pos().Offset():part.End().Offset()])
		}
	}
	return b.String()
}
