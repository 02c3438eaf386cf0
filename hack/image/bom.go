package main

import (
	"bytes"
	"debug/buildinfo"
	"fmt"
	"runtime/debug"
	"strings"
	"time"

	cdx "github.com/CycloneDX/cyclonedx-go"
)

// bomName is the path in the image at which its binary's modules are listed.
const bomName = "sbom.cdx.json"

// bom lists the contents of a Go binary in CycloneDX 1.6. The contents are the binary's modules, with the checksums
// from go.sum, and the standard library. It reads this information from the data that the linker has written into the
// binary. The same binary always results in the same list.
func bom(binary []byte, title, version string, created time.Time) ([]byte, error) {
	info, err := buildinfo.Read(bytes.NewReader(binary))
	if err != nil {
		return nil, fmt.Errorf("read what the binary was made from: %w", err)
	}
	root := cdx.Component{BOMRef: purl(info.Main.Path, version), Type: cdx.ComponentTypeApplication, Name: title,
		Version: version, PackageURL: purl(info.Main.Path, version)}
	components := []cdx.Component{library("std", strings.TrimPrefix(info.GoVersion, "go"), "")}
	for _, m := range info.Deps {
		used := m
		switch {
		case m.Replace != nil && strings.HasPrefix(m.Replace.Path, "."): // a module of this repository, at the same commit
			used = &debug.Module{Path: m.Path, Version: version}
		case m.Replace != nil:
			used = m.Replace
		}
		components = append(components, module(used))
	}
	refs := make([]string, 0, len(components))
	for _, c := range components {
		refs = append(refs, c.BOMRef)
	}
	out := cdx.NewBOM()
	out.Metadata = &cdx.Metadata{Timestamp: created.Format(time.RFC3339), Component: &root}
	out.Components = &components
	out.Dependencies = &[]cdx.Dependency{{Ref: root.BOMRef, Dependencies: &refs}}
	var buffer bytes.Buffer
	if err := cdx.NewBOMEncoder(&buffer, cdx.BOMFileFormatJSON).SetPretty(true).
		EncodeVersion(out, cdx.SpecVersion1_6); err != nil {
		return nil, fmt.Errorf("write the list of modules: %w", err)
	}
	return buffer.Bytes(), nil
}

func module(m *debug.Module) cdx.Component { return library(m.Path, m.Version, m.Sum) }

func library(name, version, sum string) cdx.Component {
	out := cdx.Component{BOMRef: purl(name, version), Type: cdx.ComponentTypeLibrary, Name: name, Version: version,
		PackageURL: purl(name, version)}
	if sum != "" {
		// CycloneDX has no field for a go.sum hash, which is a hash of hashes.
		out.Properties = &[]cdx.Property{{Name: "go.sum", Value: sum}}
	}
	return out
}

// purl returns the package URL of a module, as scanners use it (github.com/package-url/purl-spec, golang).
func purl(path, version string) string { return "pkg:golang/" + path + "@" + version }
