package main

import (
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

var fencedBlock = regexp.MustCompile("(?m)^```(.*)\n((?:.*\n)*?)```$")

// TestClientsPageQuotesExamples checks the blocks of code in docs/clients.md. There must be one block for each
// language, and a second one in Python. A file of examples/ must contain the lines of a block in the same order and
// without gaps. The page may omit indentation that is common to all lines of a block.
func TestClientsPageQuotesExamples(t *testing.T) {
	page, err := os.ReadFile("../../docs/clients.md")
	must(t, err)
	var files [][]string
	must(t, filepath.WalkDir(examples, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		// These folders contain code that is not part of the examples.
		if d.IsDir() && slices.Contains([]string{"node_modules", "venv", "gen", "target"}, d.Name()) {
			return fs.SkipDir
		}
		if d.IsDir() || filepath.Ext(path) == ".md" {
			return nil
		}
		content, err := os.ReadFile(path)
		files = append(files, strings.Split(string(content), "\n"))
		return err
	}))
	languages := map[string]int{}
	for _, block := range fencedBlock.FindAllStringSubmatch(string(page), -1) {
		languages[block[1]]++
		lines := strings.Split(strings.TrimSuffix(block[2], "\n"), "\n")
		if !slices.ContainsFunc(files, func(file []string) bool { return quotes(file, lines) }) {
			t.Errorf("docs/clients.md has lines that no file of examples/ has one after another:\n%s", block[2])
		}
	}
	if want := map[string]int{"go": 1, "sh": 1, "python": 2, "js": 1, "java": 1}; !maps.Equal(languages, want) {
		t.Errorf("docs/clients.md has so many blocks of each language: %v, not %v", languages, want)
	}
}

// quotes reports whether the lines follow each other in the file, all with the same additional indentation.
func quotes(file, lines []string) bool {
	for at := 0; at+len(lines) <= len(file); at++ {
		indent, found := strings.CutSuffix(file[at], lines[0])
		if !found || strings.TrimLeft(indent, " \t") != "" {
			continue
		}
		same := true
		for i, line := range lines {
			same = same && (file[at+i] == indent+line || line == "" && file[at+i] == "")
		}
		if same {
			return true
		}
	}
	return false
}

func TestClientsQuotes(t *testing.T) {
	file := strings.Split("a\n\tb\n\n\t\tc\nd", "\n")
	for lines, want := range map[string]bool{
		"a": true, "b": true, "\tb": true, "b\n\n\tc": true, "a\n\tb": true,
		"b\n\nc": false, "b\n\tc": false, "c\n\td": false, "e": false, "": true, "d\n": false, "a\nb": false,
	} {
		if got := quotes(file, strings.Split(lines, "\n")); got != want {
			t.Errorf("%q is quoted: %v, not %v", lines, got, want)
		}
	}
}
