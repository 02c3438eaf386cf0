package workload

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"

	corev1 "k8s.io/api/core/v1"
)

// templateHash returns a hash of a pod template. It ignores annotations that must not restart a pod. It also ignores
// empty fields, so that a new field in a Go type does not change the hash. No template contains the operator's
// version, so an upgrade of the operator does not change the hash either.
func templateHash(template corev1.PodTemplateSpec) (string, error) {
	bytes, err := json.Marshal(template)
	if err != nil {
		return "", err
	}
	var fields map[string]any
	if err := json.Unmarshal(bytes, &fields); err != nil {
		return "", err
	}
	if metadata, ok := fields["metadata"].(map[string]any); ok {
		if annotations, ok := metadata["annotations"].(map[string]any); ok {
			delete(annotations, AnnotationTemplate)
			delete(annotations, AnnotationVolume)
		}
	}
	bytes, err = json.Marshal(trim(fields)) // json.Marshal sorts map keys
	if err != nil {
		return "", err
	}
	sum := sha256.Sum256(bytes)
	return hex.EncodeToString(sum[:8]), nil
}

// trim removes nulls and empty maps and lists.
func trim(value any) any {
	switch value := value.(type) {
	case map[string]any:
		for key, v := range value {
			if v = trim(v); v == nil {
				delete(value, key)
			} else {
				value[key] = v
			}
		}
		if len(value) == 0 {
			return nil
		}
	case []any:
		for n := range value {
			value[n] = trim(value[n])
		}
		if len(value) == 0 {
			return nil
		}
	}
	return value
}
