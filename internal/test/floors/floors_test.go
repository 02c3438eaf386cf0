package floors

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"sigs.k8s.io/yaml"

	"sheaf.dev/sheaf/internal/test/must"
)

const module = "sheaf.dev/sheaf/"

// floor is one folder of packages, and the folders from which it may import.
type floor struct {
	name, folder string
	allow        []string // folders that the floor may import, relative to the module
}

// aboveFloors are the folders that are above all floors. No floor may import them.
var aboveFloors = []string{"bench", "cmd", "e2e", "examples", "hack", "internal/test", "sheaftest"}

var floorRow = regexp.MustCompile(`(?m)^ {8}floor-([a-z]+):`)

// readFloors reads the floors from the linter's configuration, which lists them from the bottom to the top.
func readFloors(t *testing.T) []floor {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(root, ".golangci.yml"))
	must.OK(t, err)
	var config struct {
		Linters struct {
			Settings struct {
				Depguard struct {
					Rules map[string]struct {
						Files, Allow []string
						Deny         []struct{ Pkg string }
					}
				}
			}
		}
	}
	must.OK(t, yaml.Unmarshal(text, &config))
	var floors []floor
	for _, m := range floorRow.FindAllStringSubmatch(string(text), -1) {
		rule := config.Linters.Settings.Depguard.Rules["floor-"+m[1]]
		f := floor{name: m[1]}
		for _, allowed := range rule.Allow {
			f.allow = append(f.allow, strings.TrimPrefix(allowed, module))
		}
		if len(rule.Files) != 2 || rule.Files[1] != "!$test" {
			t.Fatalf("floor-%s is for the files %q: name one folder, and \"!$test\"", f.name, rule.Files)
		}
		f.folder = strings.TrimSuffix(strings.TrimSuffix(strings.TrimPrefix(rule.Files[0], "**/"), "/**"), "/*.go")
		if len(rule.Deny) == 0 || rule.Deny[0].Pkg+"/" != module {
			t.Fatalf("floor-%s does not deny %s: what it does not allow would not be refused", f.name,
				strings.TrimSuffix(module, "/"))
		}
		floors = append(floors, f)
	}
	return floors
}

// within reports whether a package is the folder or is below it.
func within(pkg, folder string) bool { return pkg == folder || strings.HasPrefix(pkg, folder+"/") }

// permits reports whether a permission to import a folder also covers a package. As in the linter's configuration, a
// permission that ends with $ covers only the package of this name, and not the packages below it.
func permits(folder, pkg string) bool {
	alone, isAlone := strings.CutSuffix(folder, "$")
	return pkg == alone || !isAlone && within(pkg, folder)
}

// judge returns all mistakes: those in the list of floors, and the packages with forbidden imports.
func judge(floors []floor, imports map[string][]string) (wrong []string) {
	used := map[string]bool{}
	for pkg, imported := range imports {
		if slices.ContainsFunc(aboveFloors, func(folder string) bool { return within(pkg, folder) }) {
			continue
		}
		i := slices.IndexFunc(floors, func(f floor) bool { return within(pkg, f.folder) })
		if i < 0 {
			wrong = append(wrong,
				pkg+" stands on no floor: put it into a folder that is one, or add a floor to .golangci.yml and "+
					"docs/architecture.md")
			continue
		}
		for _, to := range imported {
			allowed := slices.IndexFunc(floors[i].allow, func(folder string) bool { return permits(folder, to) })
			if allowed < 0 {
				wrong = append(wrong, pkg+" imports "+to+", which floor-"+floors[i].name+" does not allow")
				continue
			}
			used[floors[i].name+" "+floors[i].allow[allowed]] = true
		}
	}
	for i, f := range floors {
		for _, folder := range f.allow {
			switch j := slices.IndexFunc(floors, func(f floor) bool { return f.folder == strings.TrimSuffix(folder, "$") }); {
			case j < 0 || j > i:
				wrong = append(wrong, "floor-"+f.name+" allows "+folder+", which does not stand below it")
			case j < i && !used[f.name+" "+folder]:
				wrong = append(wrong, "floor-"+f.name+" allows "+folder+", which nothing there imports")
			}
		}
	}
	return wrong
}

// TestImportsFollowFloors checks that each package is on a floor, and imports only what its floor allows. The linter
// checks the same list. This test also finds a package that is on no floor, and a permission that no package needs.
func TestImportsFollowFloors(t *testing.T) {
	out, err := exec.CommandContext(t.Context(), "go", "list", "-json=ImportPath,Imports", module+"...").Output()
	if err != nil {
		t.Fatalf("go list: %v", err)
	}
	imports := map[string][]string{}
	for d := json.NewDecoder(bytes.NewReader(out)); ; {
		var p struct {
			ImportPath string
			Imports    []string
		}
		if err := d.Decode(&p); errors.Is(err, io.EOF) {
			break
		} else if err != nil {
			t.Fatal(err)
		}
		pkg := strings.TrimPrefix(p.ImportPath, module)
		imports[pkg] = nil
		for _, i := range p.Imports {
			if to, ours := strings.CutPrefix(i, module); ours {
				imports[pkg] = append(imports[pkg], to)
			}
		}
	}
	floors := readFloors(t)
	if len(floors) < 10 || len(imports) < 80 {
		t.Fatalf("only %d floors and %d packages were found", len(floors), len(imports))
	}
	for _, w := range judge(floors, imports) {
		t.Error(w)
	}
	folders := map[string]bool{}
	for pkg := range imports {
		if parts := strings.Split(pkg, "/"); parts[0] == "internal" && len(parts) > 1 {
			folders[parts[1]] = true
		}
	}
	if len(folders) > 14 {
		t.Errorf("%d folders stand directly below internal; a reader finds a package by its folder only while there are at "+
			"most 14", len(folders))
	}
}

// Programs that use Sheaf import the client's module. That module must not depend on any of the modules that servers
// need.
func TestClientImportsNoServerModules(t *testing.T) {
	for _, file := range []string{"client/go.mod", "client/go.sum"} {
		text, err := os.ReadFile(filepath.Join(root, file))
		must.OK(t, err)
		if !bytes.Contains(text, []byte("google.golang.org/grpc ")) {
			t.Errorf("%s names no gRPC: is it read right?", file)
		}
		for _, heavy := range []string{"k8s.io/", "go.etcd.io/", "sheaf.dev/sheaf ", "prometheus/client_golang "} {
			if bytes.Contains(text, []byte(heavy)) {
				t.Errorf("%s names %s: a program that only puts and gets would download it", file, strings.TrimSpace(heavy))
			}
		}
	}
}

// The libraries of cloud providers hold credentials, and double the size of a program. Therefore only sheaf-archive may
// use them.
func TestOnlyArchiveImportsCloudLibraries(t *testing.T) {
	clouds := []string{"gocloud.dev/", "cloud.google.com/", "google.golang.org/api/", "github.com/aws/",
		"github.com/Azure/azure-sdk-for-go/"}
	deps := func(dir string, packages ...string) (found []string) {
		list := exec.CommandContext(t.Context(), "go", append([]string{"list", "-deps"}, packages...)...)
		list.Dir = filepath.Join(root, dir)
		out, err := list.Output()
		if err != nil {
			t.Fatalf("go list in %s: %v", dir, err)
		}
		for pkg := range strings.Lines(string(out)) {
			pkg = strings.TrimSpace(pkg) + "/"
			if slices.ContainsFunc(clouds, func(cloud string) bool { return strings.HasPrefix(pkg, cloud) }) {
				found = append(found, pkg)
			}
		}
		return found
	}
	if found := deps(".", "./cmd/...", "./bench/sheaf-bench"); len(found) > 0 {
		t.Errorf("programs beside sheaf-archive contain %q", found)
	}
	if found := deps("cmd/sheaf-archive", "."); len(found) < 20 {
		t.Errorf("only %d packages of clouds are in sheaf-archive: are they named as here?", len(found))
	}
	text, err := os.ReadFile(filepath.Join(root, "go.mod"))
	if err != nil {
		t.Fatal(err)
	}
	for _, cloud := range clouds {
		if bytes.Contains(text, []byte("\t"+strings.TrimSuffix(cloud, "/"))) {
			t.Errorf("go.mod of the servers requires %s", cloud)
		}
	}
}

func TestJudge(t *testing.T) {
	floors := []floor{
		{name: "base", folder: "internal/base", allow: []string{"internal/base"}},
		{name: "shard", folder: "internal/shard", allow: []string{"internal/shard", "internal/base"}},
		{name: "gateway", folder: "internal/gateway", allow: []string{"internal/shard$"}},
	}
	good := map[string][]string{"internal/base/units": {"internal/base/longlock"},
		"internal/shard": {"internal/base/units", "internal/shard/serve"}, "bench": {"internal/shard"},
		"internal/gateway": {"internal/shard"}}
	for name, test := range map[string]struct {
		pkg, imports string
		allow        string // permission that the test case adds to the lowest floor
		want         string
	}{
		"all is well":              {},
		"an import goes up":        {pkg: "internal/base/units", imports: "internal/shard", want: "does not allow"},
		"a helper of tests":        {pkg: "internal/shard/serve", imports: "internal/test/loop", want: "does not allow"},
		"a package on no floor":    {pkg: "internal/util", want: "stands on no floor"},
		"below a package alone":    {pkg: "internal/gateway/page", imports: "internal/shard/serve", want: "does not allow"},
		"a name that begins alike": {pkg: "internal/shards", want: "stands on no floor"},
		"a permission to go up":    {allow: "internal/shard", want: "does not stand below it"},
		"a permission of nobody":   {pkg: "internal/shard", want: "which nothing there imports"},
	} {
		t.Run(name, func(t *testing.T) {
			imports := map[string][]string{}
			for pkg, to := range good {
				imports[pkg] = to
			}
			if test.pkg != "" {
				imports[test.pkg] = slices.DeleteFunc([]string{test.imports}, func(s string) bool { return s == "" })
			}
			floors := slices.Clone(floors)
			if test.allow != "" {
				floors[0].allow = append(slices.Clone(floors[0].allow), test.allow)
			}
			switch wrong := judge(floors, imports); {
			case test.want == "" && len(wrong) > 0:
				t.Error(wrong)
			case test.want != "" && (len(wrong) != 1 || !strings.Contains(wrong[0], test.want)):
				t.Errorf("found %q, want %q once", wrong, test.want)
			}
		})
	}
}
