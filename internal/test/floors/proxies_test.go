package floors

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"path/filepath"
	"strings"
	"testing"

	"sheaf.dev/sheaf/internal/test/must"
)

// proxyAllowed lists the files whose connections may use a proxy, with the reason. These are only connections that
// leave the store.
var proxyAllowed = map[string]string{
	"internal/operator/issuers.go": "issuers of tokens are servers of others",
}

// throughProxies returns the functions of a file that make connections for which proxies are not disabled.
func throughProxies(file *ast.File) (wrong []string) {
	for _, d := range file.Decls {
		f, is := d.(*ast.FuncDecl)
		if !is {
			continue
		}
		connects, direct := "", false
		ast.Inspect(f, func(n ast.Node) bool {
			s, is := n.(*ast.SelectorExpr)
			if !is {
				return true
			}
			of, _ := s.X.(*ast.Ident)
			if of == nil {
				return true
			}
			switch name := of.Name + "." + s.Sel.Name; name {
			case "grpc.NewClient", "grpc.Dial", "grpc.DialContext", "clientv3.New", "clientv3.NewFromURL":
				connects = name
			case "http.DefaultClient", "http.DefaultTransport", "http.Get", "http.Post", "http.ProxyFromEnvironment":
				wrong = append(wrong, f.Name.Name+" uses "+name)
			case "grpc.WithNoProxy":
				direct = true
			}
			return true
		})
		if connects != "" && !direct {
			wrong = append(wrong, f.Name.Name+" calls "+connects+" without grpc.WithNoProxy()")
		}
	}
	return wrong
}

// TestConnectionsIgnoreProxies checks that connections within a store ignore the proxy that the environment names, for
// example in HTTPS_PROXY. A company may set such a variable on all machines. proxy_test.go in cmd/sheaf also tests this
// with processes.
func TestConnectionsIgnoreProxies(t *testing.T) {
	files, unused := 0, len(proxyAllowed)
	err := filepath.WalkDir(root, func(name string, entry fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case entry.IsDir() && (strings.HasPrefix(entry.Name(), ".") && name != root || entry.Name() == "bin"):
			return fs.SkipDir
		}
		path := strings.TrimPrefix(filepath.ToSlash(name), root+"/")
		top, _, _ := strings.Cut(path, "/")
		if entry.IsDir() || !strings.HasSuffix(path, ".go") || strings.HasSuffix(path, "_test.go") || top == "bench" ||
			top == "hack" || top == "examples" || strings.HasPrefix(path, "internal/test/") {
			return nil
		}
		files++
		file, err := parser.ParseFile(token.NewFileSet(), name, nil, parser.SkipObjectResolution)
		if err != nil {
			return err
		}
		wrong := throughProxies(file)
		if proxyAllowed[path] != "" && len(wrong) > 0 {
			unused--
			return nil
		}
		for _, w := range wrong {
			t.Errorf("%s: %s: a proxy of the environment would take part", path, w)
		}
		return nil
	})
	if err != nil || files < 300 {
		t.Fatalf("%d files were read: %v", files, err)
	}
	if unused != 0 {
		t.Error("an exception is needed by nobody")
	}
}

func TestThroughProxies(t *testing.T) {
	for source, wrong := range map[string]int{
		`func f() { grpc.NewClient("a") }`:                                  1,
		`func f() { clientv3.New(c) }`:                                      1,
		`func f() { http.DefaultClient.Do(r) }`:                             1,
		`func f() { grpc.NewClient("a", grpc.WithNoProxy()) }`:              0,
		`func f() { o := grpc.WithNoProxy(); clientv3.New(o) }`:             0,
		`func g() { grpc.WithNoProxy() }; func f() { grpc.NewClient("a") }`: 1,
	} {
		file, err := parser.ParseFile(token.NewFileSet(), "f.go", "package p; "+source, 0)
		must.OK(t, err)
		if got := throughProxies(file); len(got) != wrong {
			t.Errorf("%s: %q, want %d", source, got, wrong)
		}
	}
}
