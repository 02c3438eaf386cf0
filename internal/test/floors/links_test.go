package floors

import (
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"unicode"

	"sheaf.dev/sheaf/internal/test/must"
)

var (
	link    = regexp.MustCompile(`\]\(([^)\s]+)\)`)
	heading = regexp.MustCompile(`(?m)^#+ (.+)$`)
	fenced  = regexp.MustCompile("(?ms)^```.*?^```")
	code    = regexp.MustCompile("`[^`\n]*`")
)

// ignoredFolders lists folders that hold pages of other projects, or generated pages.
var ignoredFolders = []string{"bin", ".git", ".cache", "node_modules", "venv"}

// anchorOf returns the fragment that links to a page's heading, as GitHub makes it.
func anchorOf(heading string) string {
	var b strings.Builder
	for _, r := range strings.ToLower(link.ReplaceAllString(heading, "")) {
		switch {
		case r == ' ':
			b.WriteByte('-')
		case r == '-', r == '_', unicode.IsLetter(r), unicode.IsDigit(r):
			b.WriteRune(r)
		}
	}
	return b.String()
}

// badLinks returns a page's links whose target does not exist in the tree below root.
func badLinks(root, page, text string) (bad []string) {
	prose := code.ReplaceAllString(fenced.ReplaceAllString(text, ""), "")
	for _, m := range link.FindAllStringSubmatch(prose, -1) {
		target, anchor, _ := strings.Cut(m[1], "#")
		if strings.Contains(target, "://") {
			continue
		}
		there := text
		if target != "" {
			path := filepath.Join(root, filepath.Dir(page), target)
			info, err := os.Stat(path)
			if err != nil {
				bad = append(bad, m[1])
				continue
			}
			if anchor == "" || info.IsDir() || filepath.Ext(path) != ".md" {
				continue
			}
			content, err := os.ReadFile(path)
			if err != nil {
				bad = append(bad, m[1])
				continue
			}
			there = string(content)
		}
		if anchor != "" && !hasAnchor(there, anchor) {
			bad = append(bad, m[1])
		}
	}
	return bad
}

// hasAnchor reports whether a page has a heading for this fragment.
func hasAnchor(page, anchor string) bool {
	for _, m := range heading.FindAllStringSubmatch(fenced.ReplaceAllString(page, ""), -1) {
		if anchorOf(m[1]) == anchor {
			return true
		}
	}
	return strings.Contains(page, `id="`+anchor+`"`)
}

func TestLinksOfPagesLeadSomewhere(t *testing.T) {
	pages := 0
	err := filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case d.IsDir() && slices.Contains(ignoredFolders, d.Name()):
			return filepath.SkipDir
		case d.IsDir() || filepath.Ext(path) != ".md":
			return nil
		}
		text, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		page, err := filepath.Rel(root, path)
		if err != nil {
			return err
		}
		pages++
		for _, bad := range badLinks(root, page, string(text)) {
			t.Errorf("%s: the link %s leads nowhere", page, bad)
		}
		return nil
	})
	must.OK(t, err)
	if pages < 50 {
		t.Errorf("only %d pages were looked at", pages)
	}
}

func TestBadLinks(t *testing.T) {
	const text = "# A page, of `words`\n[a](#a-page-of-words) [b](#b) [c](README.md) [d](no.md) [e](README.md#no)\n" +
		"[f](https://example.com/#x) `[g](no.md)` [h](docs)\n```\n[i](no.md)\n# B\n```\n"
	if got := strings.Join(badLinks(root, "x.md", text), " "); got != "#b no.md README.md#no" {
		t.Errorf("%s", got)
	}
}
