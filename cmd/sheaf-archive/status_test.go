package main

import (
	"strings"
	"testing"
)

func TestStatusOfAnArchive(t *testing.T) {
	url := archiveOfTests(t)
	if code, out, errs := runArchive(t, "status", url); code != 1 || !strings.Contains(out, "archived through") ||
		!strings.Contains(errs, "behind, and --lag-max is 15m0s") {
		t.Errorf("%d, %q, %q", code, out, errs)
	}
	if code, out, errs := runArchive(t, "status", url, "-o", "json", "--lag-max", "1000000h"); code != 0 ||
		!strings.Contains(out, `"lagSeconds": `) {
		t.Errorf("%d, %q, %q", code, out, errs)
	}
}
