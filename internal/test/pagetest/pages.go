// Package pagetest finds the commands in the repository's pages. Tests check these commands against the targets of the
// Makefile, a program's flags, and the kinds of the CRDs. The package runs none of the commands.
package pagetest

import (
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
)

// Page is a Markdown document.
type Page struct {
	Name string // path relative to the repository's root
	Text string
}

// Pages returns the pages below a root that describe the current state. Dated reports and the change log are left
// out, because they describe the past.
func Pages(root string) ([]Page, error) {
	var pages []Page
	err := filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		name, err := filepath.Rel(root, path)
		if err != nil {
			return err
		}
		name = filepath.ToSlash(name)
		switch {
		case d.IsDir() && slices.Contains([]string{"bin", ".git", ".cache", "node_modules"}, d.Name()),
			name == "docs/reports":
			return filepath.SkipDir
		case d.IsDir() || name == "CHANGELOG.md" || !strings.HasSuffix(name, ".md") && !strings.HasSuffix(name, ".md.gotmpl"):
			return nil
		}
		text, err := os.ReadFile(path)
		pages = append(pages, Page{name, string(text)})
		return err
	})
	return pages, err
}

// snippet is a code block, or code in a sentence.
type snippet struct {
	line int // line number of the first line of code, from 1
	info string
	text string
	span bool // whether the code is in a sentence
}

var (
	fence = regexp.MustCompile("^ *(```+|~~~+) *([A-Za-z0-9_+-]*)")
	item  = regexp.MustCompile(`^ *([-*+]|\d+[.)]) `)
)

// snippets returns the code blocks of a page and the code in its sentences.
func snippets(text string) (found []snippet) {
	lines := strings.Split(text, "\n")
	inList := false
	for i := 0; i < len(lines); i++ {
		switch line := lines[i]; {
		case fence.MatchString(line):
			open := fence.FindStringSubmatch(line)
			first := i + 1
			for i++; i < len(lines) && !strings.HasPrefix(strings.TrimLeft(lines[i], " "), open[1]); i++ {
			}
			text := strings.Join(lines[first:min(i, len(lines))], "\n")
			found = append(found, snippet{line: first + 1, info: open[2], text: text})
		case strings.HasPrefix(line, "    ") && !inList && (i == 0 || lines[i-1] == ""):
			first := i
			for ; i < len(lines) && (strings.HasPrefix(lines[i], "    ") || lines[i] == ""); i++ {
			}
			text := strings.ReplaceAll("\n"+strings.Join(lines[first:i], "\n"), "\n    ", "\n")[1:]
			i--
			found = append(found, snippet{line: first + 1, text: text})
		case line != "":
			first := i
			for ; i < len(lines) && lines[i] != "" && !fence.MatchString(lines[i]); i++ {
				if item.MatchString(lines[i]) {
					inList = true
				} else if i == first && !strings.HasPrefix(lines[i], " ") {
					inList = false
				}
			}
			found = append(found, spans(first+1, lines[first:i])...)
			i--
		}
	}
	return found
}

// spans returns the code in the sentences of a paragraph. Code begins with one or more backticks, and ends with the
// same number of backticks.
func spans(line int, paragraph []string) (found []snippet) {
	for i, l := range paragraph {
		// In a row of a table, code ends at the end of the row at the latest, and a vertical bar in code is written with a
		// backslash.
		if strings.HasPrefix(l, "|") {
			found = append(found, spans(line+i, []string{strings.ReplaceAll(strings.TrimLeft(l, "|"), `\|`, "|")})...)
			paragraph[i] = ""
		}
	}
	rest := strings.Join(paragraph, "\n")
	for {
		begin := strings.IndexByte(rest, '`')
		if begin < 0 {
			return found
		}
		line += strings.Count(rest[:begin], "\n")
		rest = rest[begin:]
		ticks := rest[:len(rest)-len(strings.TrimLeft(rest, "`"))]
		rest = rest[len(ticks):]
		end := closing(rest, ticks)
		if end < 0 {
			continue
		}
		text := strings.ReplaceAll(strings.TrimSpace(rest[:end]), "\n", " ")
		found = append(found, snippet{line: line, text: text, span: true})
		line += strings.Count(rest[:end], "\n")
		rest = rest[end+len(ticks):]
	}
}

// closing returns the offset, in text, of the first run of backticks that is exactly as long as ticks, or -1 if there
// is none.
func closing(text, ticks string) int {
	for at := 0; ; {
		next := strings.Index(text[at:], ticks)
		if next < 0 {
			return -1
		}
		at += next
		run := len(text[at:]) - len(strings.TrimLeft(text[at:], "`"))
		if run == len(ticks) {
			return at
		}
		at += run
	}
}
