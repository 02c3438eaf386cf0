package step

import (
	"fmt"
	"strings"

	"sheaf.dev/sheaf/internal/base/units"
)

// number is a type constraint for counts.
type number interface{ ~int | ~int32 | ~int64 }

// Count returns a number with its noun, such as "1 group" or "2,000 groups". A verb may follow the noun, as in "group
// serves" and "groups serve".
func Count[N number](n N, one, many string) string { return units.Count(int64(n), one, many) }

// CountOf returns a part and the total with a noun, such as "0 of 1 group" or "1 of 12 groups".
func CountOf[N number](part, all N, one, many string) string {
	return units.Number(int64(part)) + " of " + Count(all, one, many)
}

// All returns a total with its noun, such as "all 12 groups". A total of one is "the only group".
func All[N number](n N, one, many string) string {
	if n == 1 {
		return "the only " + one
	}
	return "all " + Count(n, one, many)
}

// Tail returns the end of a text. It is used for a process's output, because the end of the output shows why the
// process ended.
func Tail(text string, bytes int) string {
	if len(text) <= bytes {
		return text
	}
	return "..." + strings.ToValidUTF8(text[len(text)-bytes:], "")
}

// ShardWords joins the first three texts about shards, and adds the number of the others.
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
