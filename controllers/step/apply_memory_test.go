package step

import (
	"fmt"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

func TestMatchIsRememberedUntilEitherSideChanges(t *testing.T) {
	m := &appliedMemory{objects: map[types.UID]appliedObject{}}
	at := func(uid, version string) *corev1.Service {
		return &corev1.Service{ObjectMeta: metav1.ObjectMeta{UID: types.UID(uid), ResourceVersion: version}}
	}
	m.note(at("", ""), "a")
	if m.is(at("", ""), "a") {
		t.Error("an object without a UID is remembered")
	}
	m.note(at("x", "1"), "a")
	for name, c := range map[string]struct {
		object *corev1.Service
		wanted string
		is     bool
	}{
		"the same":          {at("x", "1"), "a", true},
		"it was edited":     {at("x", "2"), "a", false},
		"another is wanted": {at("x", "1"), "b", false},
		"another object":    {at("y", "1"), "a", false},
	} {
		if got := m.is(c.object, c.wanted); got != c.is {
			t.Errorf("%s: %t", name, got)
		}
	}
	for n := range appliedMax + 10 {
		m.note(at(fmt.Sprint(n), "1"), "a")
		if len(m.objects) > appliedMax {
			t.Fatalf("%d objects are remembered", len(m.objects))
		}
	}
}
