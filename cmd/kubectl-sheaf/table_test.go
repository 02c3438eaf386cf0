package main

import (
	"slices"
	"strings"
	"testing"
)

func TestTables(t *testing.T) {
	tab := table{columns: []column{{name: "NAME"}, {name: "SIZE", drop: 1, right: true}, {name: "EMPTY", drop: 3},
		{name: "WHERE", drop: 2}}}
	tab.add("quotes-a-long-name-0", "1 GiB", "", "here")
	tab.add("größe", "12 GiB", "", "there and elsewhere")
	for width, want := range map[int][]string{
		80: {"NAME                    SIZE  WHERE", "quotes-a-long-name-0   1 GiB  here",
			"größe                 12 GiB  there and elsewhere"},
		30: {"NAME                    SIZE", "quotes-a-long-name-0   1 GiB", "größe                 12 GiB"},
		20: {"NAME", "quotes-a-long-name-0", "größe"},
		15: {"NAME", "quotes-..name-0", "größe"},
	} {
		if got := tab.lines(width); !slices.Equal(got, want) {
			t.Errorf("at %d columns:\n%s\nnot\n%s", width, strings.Join(got, "\n"), strings.Join(want, "\n"))
		}
	}
}

func TestWrap(t *testing.T) {
	got := wrap("one two  three\nfour averyverylongword five", 9)
	if want := []string{"one two", "three", "four", "averyverylongword", "five"}; !slices.Equal(got, want) {
		t.Errorf("%q, not %q", got, want)
	}
	if got := wrap("", 9); len(got) != 1 {
		t.Errorf("of nothing: %q", got)
	}
}
