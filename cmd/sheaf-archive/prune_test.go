package main

import (
	"strings"
	"testing"
)

func TestPointsAndPruningOfAFolder(t *testing.T) {
	url := archiveOfTests(t)
	for _, c := range []struct {
		args []string
		code int
		says string
	}{
		{[]string{"point", "create", url, "before-1.2"}, 0, "point before-1.2: 2026-11-01T12:00:32Z, in 3 groups"},
		{[]string{"point", "create", url, "before-1.2"}, 1, "choose another name"},
		{[]string{"point", "create", url, "a/b"}, 2, "cannot be the name of a point"},
		{[]string{"point", "list", url, "-o", "json"}, 0, `"made": "hand"`},
		{[]string{"cat", url, "3", "--group", "alpha", "--at", "point:before-1.2"}, 0, "three, second"},
		{[]string{"prune", url, "--keep", "1s", "--dry-run"}, 0, "would leave out"},
		{[]string{"prune", url, "--keep", "1s"}, 0, "for deletion a day later"},
		{[]string{"cat", url, "3", "--group", "alpha", "--at", "point:before-1.2"}, 0, "three, second"},
		{[]string{"prune", url, "--points", "-1"}, 2, "must not be negative"},
		{[]string{"verify", url}, 0, "checked"},
		{[]string{"point", "delete", url, "before-1.2"}, 0, "not kept any more"},
		{[]string{"point", "delete", url, "none"}, 3, "no point"},
	} {
		if code, out, errs := runArchive(t, c.args...); code != c.code || !strings.Contains(out+errs, c.says) {
			t.Errorf("%q: %d, %q, %q", c.args, code, out, errs)
		}
	}
}
