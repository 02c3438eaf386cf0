package step

import (
	"fmt"
	"strings"
)

// Tail returns the end of a text, because the end of a process's output says why the process ended.
func Tail(text string, bytes int) string {
	if len(text) <= bytes {
		return text
	}
	return "..." + text[len(text)-bytes:]
}

// ShardWords joins the first three texts about shards, and adds how many more there are.
func ShardWords(words []string) string {
	const show = 3
	if len(words) <= show {
		return strings.Join(words, "; ")
	}
	return fmt.Sprintf("%s; and %d more", strings.Join(words[:show], "; "), len(words)-show)
}

// Truncate truncates a text to at most bytesMax bytes.
func Truncate(text string, bytesMax int) string {
	if len(text) <= bytesMax {
		return text
	}
	return strings.ToValidUTF8(text[:bytesMax-3], "") + "..."
}

// Annotate sets an annotation, or removes it if the value is empty.
func Annotate(annotations *map[string]string, key, value string) {
	if value == "" {
		delete(*annotations, key)
		return
	}
	if *annotations == nil {
		*annotations = map[string]string{}
	}
	(*annotations)[key] = value
}

// Colon puts a colon before a text, unless the text is empty.
func Colon(text string) string {
	if text == "" {
		return ""
	}
	return ": " + text
}
