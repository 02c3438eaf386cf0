package main

import (
	"bytes"
	"os"
	"runtime"
	"runtime/debug"
	"strings"
	"testing"
	"time"

	cdx "github.com/CycloneDX/cyclonedx-go"
)

// The list names each module in the binary, the standard library, and nothing else.
func TestTheListNamesTheModulesOfTheBinary(t *testing.T) {
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	binary, err := os.ReadFile(self)
	if err != nil {
		t.Fatal(err)
	}
	data, err := bom(binary, "image", "v1", time.Unix(1700000000, 0).UTC())
	if err != nil {
		t.Fatal(err)
	}
	var got cdx.BOM
	if err := cdx.NewBOMDecoder(bytes.NewReader(data), cdx.BOMFileFormatJSON).Decode(&got); err != nil {
		t.Fatal(err)
	}
	info, ok := debug.ReadBuildInfo()
	if !ok {
		t.Fatal("this test does not know what it was made from")
	}
	want := map[string]string{"pkg:golang/std@" + strings.TrimPrefix(runtime.Version(), "go"): ""}
	for _, m := range info.Deps {
		want["pkg:golang/"+m.Path+"@"+m.Version] = m.Sum
	}
	if len(want) < 3 || len(*got.Components) != len(want) {
		t.Errorf("%d modules, and %d in the list", len(want), len(*got.Components))
	}
	for _, c := range *got.Components {
		sum, known := want[c.PackageURL]
		if !known || sum != "" && (*c.Properties)[0].Value != sum {
			t.Errorf("in the list, and not in the binary: %+v", c)
		}
	}
	if m := got.Metadata; m.Component.Name != "image" || m.Component.Version != "v1" ||
		m.Timestamp != "2023-11-14T22:13:20Z" {
		t.Errorf("%+v", m)
	}
	if _, err := bom([]byte("#!/bin/sh"), "x", "v1", time.Time{}); err == nil {
		t.Error("a script has a list")
	}
}
