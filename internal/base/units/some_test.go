package units

import "testing"

func TestSome(t *testing.T) {
	for _, c := range []struct {
		names []string
		most  int
		want  string
	}{
		{nil, 2, ""},
		{[]string{"a"}, 2, "a"},
		{[]string{"a", "b"}, 2, "a, b"},
		{[]string{"a", "b", "c"}, 2, "a, b and 1 more"},
		{[]string{"a", "b", "c", "d"}, 1, "a and 3 more"},
	} {
		if got := Some(c.names, c.most); got != c.want {
			t.Errorf("%q, at most %d: %q, want %q", c.names, c.most, got, c.want)
		}
	}
}
