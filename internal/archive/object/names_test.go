package object

import (
	"strings"
	"testing"
)

func TestNamesOfBasesPointsAndDrops(t *testing.T) {
	name := BaseName(group, 7)
	if id, n, ok := ParseBaseName(name); !ok || id != group || n != 7 {
		t.Errorf("%s: %s, %d, %v", name, id, n, ok)
	}
	for _, bad := range []string{"", "g/", "g/x/base/1", strings.Replace(name, "base", "cat", 1), name + "1", "x" + name,
		strings.ToUpper(name), CatalogueName(group, 1)} {
		if _, _, ok := ParseBaseName(bad); ok {
			t.Errorf("%q is the name of a base", bad)
		}
	}
	if n, ok := ParseDropName(DropName(8)); !ok || n != 8 {
		t.Errorf("%s: %d, %v", DropName(8), n, ok)
	}
	for _, bad := range []string{"drop/8", "8", LogName(8)} {
		if _, ok := ParseDropName(bad); ok {
			t.Errorf("%q is the name of a drop", bad)
		}
	}
	for _, good := range []string{"a", "0", "before-1.2", strings.Repeat("x", 63)} {
		if err := CheckPointName(good); err != nil {
			t.Error(err)
		}
	}
	for _, bad := range []string{"", "-a", ".", "A", "a b", "a/b", "ä", strings.Repeat("x", 64)} {
		if CheckPointName(bad) == nil {
			t.Errorf("%q can be the name of a point", bad)
		}
	}
}
