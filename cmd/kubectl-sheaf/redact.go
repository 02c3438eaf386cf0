package main

import (
	"regexp"
	"strings"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
)

// redacted stands where a secret was, or may have been.
const redacted = "[left out]"

// secretWords are in names of fields, annotations and variables that may hold a secret.
var secretWords = regexp.MustCompile(`(?i)passw|secret|token|credential|private|api-?_?key|authorization`)

// secretTexts are forms of secrets inside of texts, such as logs: the part of the first group stays.
var secretTexts = []*regexp.Regexp{
	regexp.MustCompile(`(?i)(://[^/@\s:"']+:)[^/@\s"']+(?:@)`),
	regexp.MustCompile(`(?i)((?:bearer|basic)\s+)[A-Za-z0-9._~+/=-]{8,}`),
	regexp.MustCompile(`(?i)((?:passw(?:or)?d|secret|token|api-?_?key|authorization)["']?\s*[:=]\s*["']?)[^\s"',}&]+`),
	regexp.MustCompile(`(?s)(-----BEGIN [A-Z ]*PRIVATE KEY-----).*?-----END [A-Z ]*PRIVATE KEY-----`),
	regexp.MustCompile(`()eyJ[A-Za-z0-9_-]{10,}\.[A-Za-z0-9_-]{10,}\.[A-Za-z0-9_-]*`), // a JSON web token
}

// redactText takes secrets out of a text.
func redactText(text string) string {
	for _, form := range secretTexts {
		text = form.ReplaceAllString(text, "${1}"+redacted)
	}
	return text
}

// redactObject takes out of an object what nobody needs and what may be a secret: values of environment variables,
// annotations that repeat the object or have a name that sounds like one, and secrets inside of texts.
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

// redactValue goes through fields; key is the name of the field that v is in.
func redactValue(key string, v any) any {
	switch v := v.(type) {
	case map[string]any:
		for name, value := range v {
			v[name] = redactValue(name, value)
		}
	case []any:
		for n, item := range v {
			if key == "env" {
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
