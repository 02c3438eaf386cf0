package main

import (
	"regexp"
	"strings"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
)

// redacted replaces a text that is, or may be, a secret.
const redacted = "[left out]"

// secretWords matches names of fields, annotations and variables that may hold a secret.
var secretWords = regexp.MustCompile(`(?i)passw|secret|token|credential|private|api-?_?key|authorization`)

// secretTexts match secrets within texts, for example in logs. The text that matches the first group of an expression
// is kept.
var secretTexts = []*regexp.Regexp{
	regexp.MustCompile(`(?i)(://[^/@\s:"']+:)[^/@\s"']+(?:@)`),
	regexp.MustCompile(`(?i)((?:bearer|basic)\s+)[A-Za-z0-9._~+/=-]{8,}`),
	regexp.MustCompile(`(?i)((?:passw(?:or)?d|secret|token|api-?_?key|authorization)["']?\s*[:=]\s*["']?)[^\s"',}&]+`),
	regexp.MustCompile(`(?s)(-----BEGIN [A-Z ]*PRIVATE KEY-----).*?-----END [A-Z ]*PRIVATE KEY-----`),
	regexp.MustCompile(`()eyJ[A-Za-z0-9_-]{10,}\.[A-Za-z0-9_-]{10,}\.[A-Za-z0-9_-]*`), // a JSON web token
}

// redactText removes secrets from a text.
func redactText(text string) string {
	for _, form := range secretTexts {
		text = form.ReplaceAllString(text, "${1}"+redacted)
	}
	return text
}

// redactObject removes useless fields and possible secrets from an object: values of environment variables, annotations
// that repeat the object or have names that suggest a secret, and secrets within texts.
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
