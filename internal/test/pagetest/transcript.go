package pagetest

import (
	"fmt"
	"regexp"
	"strings"
)

// Step is a command that a page shows with a prompt, and the output that the page shows for it.
type Step struct {
	Line    int    // line number in the page, from 1
	Command string // with its continuation lines
	Prints  []string
}

// Transcript returns the commands of a page that are shown with a prompt, in order. These are the commands that a
// reader of the page types.
func Transcript(text string) (steps []Step) {
	for _, s := range snippets(text) {
		if s.span || s.info != "" {
			continue
		}
		lines := strings.Split(s.text, "\n")
		us, prompts := commandLines(s)
		for i, u := range us {
			if !prompts {
				break
			}
			end := len(lines)
			if i+1 < len(us) {
				end = us[i+1].line - s.line
			}
			begin := u.line - s.line + 1 + strings.Count(u.text, "\n")
			steps = append(steps, Step{Line: u.line, Command: u.text, Prints: lines[begin:end]})
		}
	}
	return steps
}

var fileName = regexp.MustCompile(`^# ([\w./-]+/[\w.-]+)\n`)

// Files returns the code blocks of a page whose first line is a comment with a path. A reader creates those files from
// the blocks.
func Files(text string) map[string]string {
	files := map[string]string{}
	for _, s := range snippets(text) {
		if m := fileName.FindStringSubmatch(s.text); m != nil && !s.span {
			files[m[1]] = s.text + "\n"
		}
	}
	return files
}

// variableParts matches those parts of an output that differ each time: sizes and rates, times, UUIDs, and nodes of the
// test cluster. It matches them both as the page shows them and as a command prints them.
var variableParts = regexp.MustCompile(`\d+(?:\.\d+)? (?:B|KiB|MiB|s)\b|\b(?:\d+[dhms])+\b|\bn[1-9]\b|` +
	`\b[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}\b|\.\.\.|\s+`)

func mayBe(found string) string {
	switch {
	case found == "...":
		return `.*`
	case strings.TrimSpace(found) == "":
		return `\s+`
	case strings.Contains(found, " "):
		return `[\d.]+ \w+`
	case found[0] == 'n':
		return `n\d`
	case len(found) == 36:
		return `[0-9a-f-]{36}`
	}
	return `(\d+[dhms])+`
}

// pattern returns a pattern for one line of a page. It matches those lines that a command may print where the page
// shows this line.
func pattern(shown string) *regexp.Regexp {
	var b strings.Builder
	at := 0
	for _, m := range variableParts.FindAllStringIndex(shown, -1) {
		b.WriteString(regexp.QuoteMeta(shown[at:m[0]]) + mayBe(shown[m[0]:m[1]]))
		at = m[1]
	}
	return regexp.MustCompile(`^` + b.String() + regexp.QuoteMeta(shown[at:]) + `$`)
}

// Check returns an error unless a command has printed all lines that the page shows, in the same order. Other lines
// may be between them, and the parts that differ each time need not be equal.
func (s Step) Check(printed string) error {
	rest := strings.Split(printed, "\n")
	for i, shown := range s.Prints {
		shown = strings.TrimRight(shown, " ")
		if shown == "" || shown == "..." {
			continue
		}
		wanted, at := pattern(shown), 0
		for at < len(rest) && !wanted.MatchString(strings.TrimRight(rest[at], " \r")) {
			at++
		}
		if at == len(rest) {
			return fmt.Errorf("line %d, which is %q, is not among what `%s` printed:\n%s",
				s.Line+strings.Count(s.Command, "\n")+1+i, shown, s.Command, printed)
		}
		rest = rest[at+1:]
	}
	return nil
}
