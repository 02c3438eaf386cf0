package access

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"pgregory.net/rapid"

	"sheaf.dev/sheaf/internal/security/identity"
	"sheaf.dev/sheaf/internal/test/soaktest"
)

func certificate(name string) *Caller {
	c := Certified(identity.Identity{Store: store, Role: identity.Client, Name: name})
	return &c
}

func compiled(t testing.TB, grants ...Grant) *Compiled {
	t.Helper()
	c, err := Compile(&Table{Version: 3, Grants: grants})
	if err != nil {
		t.Fatal(err)
	}
	return c
}

func TestWhatGrantsAllow(t *testing.T) {
	team := func(kind SubjectKind, issuer, namespace, name string) []Subject {
		return []Subject{{kind, issuer, namespace, name}}
	}
	const id = "https://id.example.org"
	table := &Table{Version: 3, Audience: "sheaf/prod/quotes", Issuers: []Issuer{issuerOf(t, id, false)}, Grants: []Grant{
		{"all", team(Certificate, "", "", "root"), []Verb{Get, Put, Delete, Scan, Watch, AdminRead, AdminWrite},
			Groups{All: true}},
		{"names", team(Certificate, "", "", "a"), []Verb{Get, Put}, Groups{Names: []string{"x", "y"}}},
		{"prefix", team(Certificate, "", "", "a"), []Verb{Scan}, Groups{Prefixes: []string{"team-", "team-a-"}}},
		{"longer", team(Certificate, "", "", "a"), []Verb{Delete}, Groups{Prefixes: []string{"team-a-", "team-b"}}},
		{"account", team(ServiceAccount, "", "prod", "loader"), []Verb{Put}, Groups{Names: []string{"x"}}},
		{"accounts", team(ServiceAccounts, "", "prod", ""), []Verb{Get}, Groups{Names: []string{"x"}}},
		{"user", team(OIDC, id, "", "ada"), []Verb{Get}, Groups{Names: []string{"u"}}},
		{"ops", team(OIDCGroup, id, "", "ops"), []Verb{AdminRead}, Groups{All: true}},
		{"known", team(Anybody, "", "", ""), []Verb{Get}, Groups{Names: []string{"public"}}},
	}}
	c, err := Compile(table)
	if err != nil {
		t.Fatal(err)
	}
	account := func(ns, name string) *Caller { c := account(ns, name); return &c }
	user := func(issuer, name string, groups ...string) *Caller { c := user(issuer, name, groups); return &c }
	process := Certified(identity.Identity{Store: store, Role: identity.Gateway})
	admin := Certified(identity.Identity{Store: store, Role: identity.Admin, Name: "ada"})
	for _, tt := range []struct {
		who   *Caller
		verb  Verb
		group string
		may   bool
	}{
		{certificate("root"), AdminWrite, "", true}, {certificate("root"), Get, "anything", true},
		{certificate("a"), Get, "x", true}, {certificate("a"), Put, "y", true}, {certificate("a"), Get, "z", false},
		{certificate("a"), Get, "", false},
		{certificate("a"), Get, "xx", false}, {certificate("a"), Delete, "x", false},
		{certificate("a"), AdminRead, "x", false},
		{certificate("a"), Scan, "team-", true}, {certificate("a"), Scan, "team-z", true},
		{certificate("a"), Scan, "team", false}, {certificate("a"), Scan, "", false},
		{certificate("a"), Scan, "team-a-1", true}, {certificate("a"), Scan, "team-b", true},
		{certificate("a"), Delete, "team-a-1", true},
		{certificate("a"), Delete, "team-a", false}, {certificate("a"), Delete, "team-bb", true},
		{certificate("a"), Delete, "team-c", false},
		{certificate("a"), Get, "public", true}, {certificate("nobody-known"), Get, "public", true},
		{certificate("nobody-known"), Get, "x", false},
		{account("prod", "loader"), Put, "x", true}, {account("prod", "loader"), Get, "x", true},
		{account("prod", "other"), Put, "x", false},
		{account("prod", "other"), Get, "x", true}, {account("dev", "loader"), Get, "x", false},
		{account("dev", "loader"), Put, "x", false},
		{user(id, "ada"), Get, "u", true}, {user("https://other.example.org", "ada"), Get, "u", false},
		{user(id, "bob"), Get, "u", false},
		{user(id, "bob", "x", "ops"), AdminRead, "", true}, {user(id, "ops"), AdminRead, "", false},
		{user("https://other.example.org", "bob", "ops"), AdminRead, "", false},
		{&process, AdminWrite, "", true}, {&admin, AdminWrite, "x", true},
	} {
		err := c.Decide(tt.who, tt.verb, tt.group)
		if (err == nil) != tt.may || err != nil && status.Code(err) != codes.PermissionDenied {
			t.Errorf("%s, %s in %q: %v, and must be %v", tt.who, tt.verb, tt.group, err, tt.may)
		}
		if err != nil && (!strings.Contains(err.Error(), tt.who.String()) ||
			!strings.Contains(err.Error(), tt.verb.String()) || !strings.Contains(err.Error(), where(tt.group))) {
			t.Errorf("the error does not say who, what and where: %v", err)
		}
	}
	if err := c.Decide(&Caller{}, Get, "public"); status.Code(err) != codes.Unauthenticated ||
		!strings.Contains(err.Error(), table.Audience) {
		t.Error(err)
	}
}

func TestFirstUseIsReportedOnce(t *testing.T) {
	c := compiled(t,
		Grant{"one", []Subject{{Kind: Certificate, Name: "a"}}, []Verb{Get, Put}, Groups{Prefixes: []string{"t"}}},
		Grant{"two", []Subject{{Kind: Certificate, Name: "a"}}, []Verb{Scan}, Groups{Prefixes: []string{"te"}}})
	for _, tt := range []struct {
		verb  Verb
		first bool
		grant string
	}{{Get, true, "one"}, {Get, false, "one"}, {Put, true, "one"}, {Scan, true, "two"}, {Put, false, "one"}} {
		u, ok := c.find(certificate("a"), tt.verb, "team")
		if !ok || u.first() != tt.first || strings.Join(c.grantsOf(u), ",") != tt.grant {
			t.Errorf("%v: %v", tt, ok)
		}
	}
}

// TestDecisionsMatchLinearSearch compares the decisions with those of a simple linear search through the whole
// table.
func TestDecisionsMatchLinearSearch(t *testing.T) {
	soaktest.Check(t, func(t *rapid.T) {
		word := rapid.StringOfN(rapid.RuneFrom([]rune("ab")), 1, 4, -1)
		var table Table
		table.Version = 1
		for i := range rapid.IntRange(0, 8).Draw(t, "grants") {
			g := Grant{Name: fmt.Sprint(i), Subjects: []Subject{{Kind: Certificate, Name: word.Draw(t, "subject")}}}
			g.Verbs = rapid.SliceOfN(rapid.Map(rapid.IntRange(int(Get), int(AdminWrite)), func(v int) Verb {
				return Verb(v)
			}), 1, 3).Draw(t, "verbs")
			if g.Groups.All = rapid.IntRange(0, 5).Draw(t, "all") == 0; !g.Groups.All {
				g.Groups.Names = rapid.SliceOfN(word, 0, 2).Draw(t, "names")
				g.Groups.Prefixes = rapid.SliceOfN(word, 1, 4).Draw(t, "prefixes")
			}
			table.Grants = append(table.Grants, g)
		}
		c, err := Compile(&table)
		if err != nil {
			t.Fatal(err)
		}
		for range 30 {
			who, group := word.Draw(t, "who"), rapid.OneOf(word, rapid.Just("")).Draw(t, "group")
			verb := Verb(rapid.IntRange(int(Get), int(AdminWrite)).Draw(t, "verb"))
			want := false
			for _, g := range table.Grants {
				in := g.Groups.All
				for _, name := range g.Groups.Names {
					in = in || name == group
				}
				for _, prefix := range g.Groups.Prefixes {
					in = in || group != "" && strings.HasPrefix(group, prefix)
				}
				for _, v := range g.Verbs {
					want = want || in && v == verb && g.Subjects[0].Name == who
				}
			}
			if got := c.Decide(certificate(who), verb, group) == nil; got != want {
				t.Fatalf("%s %s in %q: %v, and must be %v", who, verb, group, got, want)
			}
		}
	})
}

func TestInvalidTables(t *testing.T) {
	good := `{"version":1,"grants":[{"name":"a","subjects":[{"kind":"Certificate","name":"x"}],"verbs":["get"],"groups":{"all":true}}]}`
	if _, err := ParseTable([]byte(good)); err != nil {
		t.Fatal(err)
	}
	for _, tt := range []struct{ from, to, words string }{
		{`"version":1`, `"version":0`, "version: is 0"},
		{`"version":1`, `"version":1,"extra":2`, "extra"},
		{`"name":"a"`, `"name":""`, "grants[0].name: is required"},
		{`"name":"a"`, `"name":"` + strings.Repeat("n", 254) + `"`, "254 bytes"},
		{`"name":"a"`, `"name":"a\u0007"`, "no text"},
		{`"Certificate"`, `"User"`, `grants[0] (a).subjects[0].kind: "User"`},
		{`"name":"x"`, `"name":""`, "subjects[0].name: is required"},
		{`"name":"x"`, `"name":"x","namespace":"prod"`, `subjects[0].namespace: is "prod"`},
		{`"kind":"Certificate"`, `"kind":"OIDC","issuer":"https://none.example.org"`, "none.example.org"},
		{`"kind":"Certificate"`, `"kind":"Anybody"`, `subjects[0].name: is "x"`},
		{`[{"kind":"Certificate","name":"x"}]`, `[]`, "subjects: is empty"},
		{`["get"]`, `[]`, "verbs: is empty"},
		{`["get"]`, `["read"]`, `"read" is no verb`},
		{`["get"]`, `[""]`, `is no verb`},
		{`{"all":true}`, `{}`, "names no group"},
		{`{"all":true}`, `{"all":true,"names":["x"]}`, "has all"},
		{`{"all":true}`, `{"names":[""]}`, "names[0]: is required"},
		{`{"all":true}`, `{"prefixes":[""]}`, "prefixes[0]: is required"},
		{`"grants"`, `"audience":"a","issuers":[{"url":"quotes","keys":{}}],"grants"`, `issuers[0].url: "quotes"`},
		{`"grants"`, `"issuers":[{"url":"https://a","keys":{}}],"grants"`, "audience: is required"},
		{`"grants"`, `"audience":"a","issuers":[{"url":"https://a","keys":{"keys":[]}}],"grants"`, "has no key"},
		{`]}`, `]}{}`, "something follows"},
	} {
		if !strings.Contains(good, tt.from) {
			t.Fatalf("%s is not there", tt.from)
		}
		_, err := ParseTable([]byte(strings.Replace(good, tt.from, tt.to, 1)))
		if !errors.Is(err, ErrTable) || !strings.Contains(err.Error(), tt.words) {
			t.Errorf("%s in place of %s: %v", tt.to, tt.from, err)
		}
	}
	double := strings.Replace(good, `"all":true}}`,
		`"all":true}},{"name":"a","subjects":[{"kind":"Anybody"}],"verbs":["get"],"groups":{"all":true}}`, 1)
	if _, err := ParseTable([]byte(double)); !errors.Is(err, ErrTable) ||
		!strings.Contains(err.Error(), "grants[0], too") {
		t.Error(err)
	}
	parsed, err := ParseTable([]byte(good))
	if err != nil {
		t.Fatal(err)
	}
	if again, err := parsed.Encode(); err != nil || string(again) != good {
		t.Errorf("%s, %v", again, err)
	}
}

func TestCallersComeBack(t *testing.T) {
	callers := []Caller{
		account("prod", "loader"), user("https://id.example.org/a b", "ada/x", []string{"ops", "a/b", ""}),
		*certificate("r.2"),
		Certified(identity.Identity{Role: identity.Admin, Name: "ada"}), Certified(identity.Identity{Role: identity.Gateway}),
		Certified(identity.Identity{Role: identity.Shard, Name: "q-0"}),
	}
	for _, c := range callers {
		back, err := ParseCaller(c.String())
		if err != nil || back.String() != c.String() || len(back.subjects) != len(c.subjects) || back.MayAll() != c.MayAll() {
			t.Errorf("%s: %v, %v", c.String(), back, err)
		}
		for i := range back.subjects {
			if back.subjects[i] != c.subjects[i] {
				t.Errorf("%s: %v", c.String(), back.subjects)
			}
		}
	}
	for _, text := range []string{"", "nobody", "root", "client", "client/", "gateway/x", "etcd", "serviceaccount/a",
		"serviceaccount//b", "serviceaccount/a/b/c", "oidc/x",
		"client/a%2", "client/%61", "admin/a/b", "archive", "archive/a", strings.Repeat("x", CallerBytesMax+1)} {
		if c, err := ParseCaller(text); !errors.Is(err, ErrCaller) {
			t.Errorf("%q: %v, %v", text, c, err)
		}
	}
}

func FuzzParseCaller(f *testing.F) {
	f.Add("oidc/https:%2F%2Fid.example.org/ada/ops")
	f.Fuzz(func(t *testing.T, text string) {
		if c, err := ParseCaller(text); err == nil && c.String() != text {
			t.Errorf("%q is read as %q", text, c.String())
		}
	})
}

func FuzzParseTable(f *testing.F) {
	f.Add([]byte(
		`{"version":1,"grants":[{"name":"a","subjects":[{"kind":"Certificate","name":"x"}],"verbs":["get"],"groups":{"all":true}}]}`))
	f.Fuzz(func(t *testing.T, text []byte) {
		table, err := ParseTable(text)
		if err != nil {
			return
		}
		if _, err := table.Encode(); err != nil {
			t.Error(err)
		}
	})
}

// large returns a table of n grants, a tenth of which name the same caller.
func large(n int) *Table {
	r := rand.New(rand.NewPCG(1, 2))
	t := &Table{Version: 1}
	for i := range n {
		subject := Subject{Kind: ServiceAccount, Namespace: fmt.Sprint("ns-", i%1000), Name: "loader"}
		if i%10 == 0 {
			subject = Subject{Kind: Certificate, Name: "a"}
		}
		prefix := fmt.Sprintf("tenant-%06d-", r.IntN(1_000_000))
		t.Grants = append(t.Grants, Grant{
			Name: fmt.Sprint("grant-", i), Subjects: []Subject{subject}, Verbs: []Verb{Get, Put},
			Groups: Groups{Prefixes: []string{prefix}, Names: []string{fmt.Sprint("group-", i)}},
		})
	}
	return t
}

func TestAllowedDecisionsNeedNoMemory(t *testing.T) {
	table := large(10_000)
	c, err := Compile(table)
	if err != nil {
		t.Fatal(err)
	}
	who, group := certificate("a"), table.Grants[500].Groups.Prefixes[0]+"one"
	if n := testing.AllocsPerRun(100, func() {
		if err := c.Decide(who, Put, group); err != nil {
			t.Fatal(err)
		}
	}); n != 0 {
		t.Errorf("%v allocations", n)
	}
}

func BenchmarkDecide(b *testing.B) {
	table := large(10_000)
	c, err := Compile(table)
	if err != nil {
		b.Fatal(err)
	}
	who, group := certificate("a"), table.Grants[500].Groups.Prefixes[0]+"one"
	b.ReportAllocs()
	for b.Loop() {
		if err := c.Decide(who, Get, group); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkCompile(b *testing.B) {
	table := large(10_000)
	for b.Loop() {
		if _, err := Compile(table); err != nil {
			b.Fatal(err)
		}
	}
}
