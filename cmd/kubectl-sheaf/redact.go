package main

import (
	"regexp"
	"strings"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
)

// redacted replaces a string that is a secret or may be one.
const redacted = "[left out]"

// secretWords matches names of fields, annotations and variables that may hold a secret.
var secretWords = regexp.MustCompile(`(?i)passw|secret|token|credential|private|api-?_?key|authorization`)

// secretTexts match secrets inside longer strings, such as logs. The text in the first group of a match is kept.
var secretTexts = []*regexp.Regexp{
	regexp.MustCompile(`(?i)(://[^/@\s:"']+:)[^/@\s"']+(?:@)`),
	regexp.MustCompile(`(?i)((?:bearer|basic)\s+)[A-Za-z0-9._~+/=-]{8,}`),
	regexp.MustCompile(`(?i)((?:passw(?:or)?d|secret|token|api-?_?key|authorization)["']?\s*[:=]\s*["']?)[^\s"',}&]+`),
	regexp.MustCompile(`(?s)(-----BEGIN [A-Z ]*PRIVATE KEY-----).*?-----END [A-Z ]*PRIVATE KEY-----`),
	regexp.MustCompile(`()eyJ[A-Za-z0-9_-]{10,}\.[A-Za-z0-9_-]{10,}\.[A-Za-z0-9_-]*`), // a JSON web token
}

// redactText returns the text with the secrets in it replaced.
func redactText(text string) string {
	for _, form := range secretTexts {
		text = form.ReplaceAllString(text, "${1}"+redacted)
	}
	return text
}

// redactObject removes possible secrets from an object. These are the values of environment variables, annotations
// whose name suggests a secret, and secrets inside strings. It also removes fields that are useless in a report, such
// as annotations that repeat the whole object.
func redactObject(u *unstructured.Unstructured) {
	u.SetManagedFields(nil)
	annotations := u.GetAnnotations()
	for name := range annotations {
		if strings.HasSuffix(name, "/last-applied-configuration") {
			delete(annotations, name)
		} else if secretWords.MatchString(name) {
			annotations[name] = redacted
		}
	}
	if len(annotations) > 0 {
		u.SetAnnotations(annotations)
	} else {
		u.SetAnnotations(nil)
	}
	redactValue("", u.Object)
}

// redactValue redacts v and its fields. The argument key is the name of the field that holds v.
func redactValue(key string, v any) any {
	switch v := v.(type) {
	case map[string]any:
		for name, value := range v {
			v[name] = redactValue(name, value)
		}
	case []any:
		for n, item := range v {
			if key == "env" || key == "extraEnv" {
				if variable, ok := item.(map[string]any); ok && variable["value"] != nil {
					variable["value"] = redacted
				}
			}
			v[n] = redactValue("", item)
		}
	case string:
		return redactText(v)
	}
	return v
}
