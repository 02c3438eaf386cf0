package access

import (
	"errors"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"sheaf.dev/sheaf/internal/test/soaktest"
)

func TestInvalidTenants(t *testing.T) {
	good := `{"version":1,"grants":[],"tenants":[{"name":"a","prefix":"team-a-","quotas":{"records":1}},{"name":"b","prefix":"team-b-","quotas":{"storedBytes":5}}]}`
	parsed, err := ParseTable([]byte(good))
	if err != nil {
		t.Fatal(err)
	}
	if again, err := parsed.Encode(); err != nil || string(again) != good {
		t.Errorf("%s, %v", again, err)
	}
	for _, tt := range []struct{ from, to, words string }{
		{`"name":"a"`, `"name":""`, "tenants[0].name: is required"},
		{`"name":"b"`, `"name":"a"`, `tenants[1].name: "a" is the name of tenants[0], too`},
		{`"prefix":"team-a-"`, `"prefix":""`, "tenants[0] (a).prefix: is required"},
		{`"prefix":"team-a-"`, `"prefix":"` + strings.Repeat("p", 254) + `"`, "254 bytes"},
		{`"prefix":"team-a-"`, `"prefix":"team-"`,
			`tenants[1] (b).prefix: "team-b-" and "team-" of tenants[0] (a) have groups in common`},
		{`"prefix":"team-a-"`, `"prefix":"team-b-"`, "have groups in common"},
		{`"prefix":"team-a-"`, `"prefix":"team-b-1"`, `tenants[0] (a).prefix: "team-b-1" and "team-b-" of tenants[1] (b)`},
		{`{"records":1}`, `{}`, "tenants[0] (a).quotas: is empty"},
		{`{"records":1}`, `{"records":0}`, "tenants[0] (a).quotas: is empty"},
		{`{"records":1}`, `{"records":-1}`, "tenants[0] (a).quotas.records: is -1"},
		{`{"records":1}`, `{"callsAtOnce":-7,"records":1}`, "quotas.callsAtOnce: is -7"},
		{`{"records":1}`, `{"groups":-1}`, "quotas.groups: is -1"},
		{`{"records":1}`, `{"shards":1}`, "shards"},
	} {
		if !strings.Contains(good, tt.from) {
			t.Fatalf("%s is not there", tt.from)
		}
		_, err := ParseTable([]byte(strings.Replace(good, tt.from, tt.to, 1)))
		if !errors.Is(err, ErrTable) || !strings.Contains(err.Error(), tt.words) {
			t.Errorf("%s in place of %s: %v", tt.to, tt.from, err)
		}
	}
}

// TestOverlapsAreFound compares the results of OverlapOf with a comparison of every pair of prefixes.
func TestOverlapsAreFound(t *testing.T) {
	soaktest.Check(t, func(t *rapid.T) {
		word := rapid.StringOfN(rapid.RuneFrom([]rune("ab-")), 1, 4, -1)
		var tenants []Tenant
		for _, prefix := range rapid.SliceOfN(word, 0, 6).Draw(t, "prefixes") {
			tenants = append(tenants, Tenant{Prefix: prefix})
		}
		want := false
		for i := range tenants {
			for j := range tenants {
				want = want || i != j && strings.HasPrefix(tenants[i].Prefix, tenants[j].Prefix)
			}
		}
		one, other, got := OverlapOf(tenants)
		if got != want || got && (one == other || !strings.HasPrefix(tenants[other].Prefix, tenants[one].Prefix)) {
			t.Fatalf("%v: %d, %d, %v", tenants, one, other, got)
		}
	})
}
