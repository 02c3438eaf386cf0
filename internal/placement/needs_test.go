package placement

import (
	"encoding/json"
	"errors"
	"reflect"
	"strings"
	"testing"

	"github.com/google/uuid"
)

func metaOfTest(mode Mode, r *Restore) Meta {
	return Meta{StoreUUID: uuid.UUID{1}, Routing: Routing{Mode: mode, Groups: map[Mode]int{Hash: 8}[mode]}, Copies: 3,
		Restore: r}
}

// A version from before restores would create waiting groups empty, so it must refuse the meta of a restored store. Its
// decoder takes the fields that it knows, and then validates them.
func TestEarlierVersionsRefuseARestoredStore(t *testing.T) {
	for _, mode := range []Mode{Hash, Named} {
		for _, listing := range []bool{true, false} {
			m := metaOfTest(mode, &Restore{Source: "source:7640", Listing: listing})
			b, err := json.Marshal(m)
			if err != nil {
				t.Fatal(err)
			}
			var earlier plainMeta
			if err := json.Unmarshal(b, &earlier); err != nil {
				t.Fatal(err)
			}
			if err := Meta(earlier).Validate(); err == nil || !strings.Contains(err.Error(), "that knows: restore") {
				t.Errorf("%s: an earlier version says %v", b, err)
			}
			var again Meta
			if err := json.Unmarshal(b, &again); err != nil || !reflect.DeepEqual(again, m) {
				t.Errorf("%s: %+v, %v", b, again, err)
			}
			if err := again.Validate(); err != nil {
				t.Error(err)
			}
		}
	}
}

// A store that is no restore needs nothing, and its meta is what earlier versions wrote.
func TestOtherStoresNeedNothing(t *testing.T) {
	b, err := json.Marshal(metaOfTest(Hash, nil))
	const want = `{"storeUUID":"01000000-0000-0000-0000-000000000000","routing":{"mode":"Hash","groups":8},"copies":3,` +
		`"created":"","groupsMax":0}`
	if err != nil || string(b) != want {
		t.Errorf("%s, %v", b, err)
	}
}

func TestNeedsAreKnownOrRefused(t *testing.T) {
	for mode, c := range map[string]struct {
		unknown string // the needs that are refused
		valid   bool
	}{
		"Hash": {valid: true}, // also a restore that an earlier version of this one began
		"Hash; needs a Sheaf that knows: restore":               {valid: true},
		"Hash; needs a Sheaf that knows: restore, tides":        {unknown: "tides"},
		"Hash; needs a Sheaf that knows: rings, restore, tides": {unknown: "rings, tides"},
		"Hash; needs a Sheaf that knows: ":                      {unknown: " "},
		"Hash; needs nothing":                                   {},
	} {
		text := strings.Replace(`{"storeUUID":"01000000-0000-0000-0000-000000000000","routing":{"mode":"MODE","groups":8},`+
			`"copies":3,"restore":{"source":"source:7640"}}`, "MODE", mode, 1)
		var m Meta
		err := json.Unmarshal([]byte(text), &m)
		var needs *NeedsError
		if c.unknown != "" {
			if !errors.As(err, &needs) || strings.Join(needs.Needs, ", ") != strings.TrimSpace(c.unknown) ||
				!strings.Contains(err.Error(), "version") {
				t.Errorf("%q: %v", mode, err)
			}
			continue
		}
		if err != nil || (m.Validate() == nil) != c.valid {
			t.Errorf("%q: %v, %v", mode, err, m.Validate())
		}
	}
}

// A person must not delete a key that a newer version needs.
func TestAKeyOfANewerVersionIsNotToBeDeleted(t *testing.T) {
	for newer, says := range map[bool]string{true: "do not change or delete the key", false: "or delete it"} {
		if got := (Unusable{Key: "/sheaf/s/meta", Why: "why", Newer: newer}).String(); !strings.Contains(got, says) {
			t.Errorf("%t: %s", newer, got)
		}
	}
}

// The groups that a restore brings first have valid names, and are few.
func TestGroupsThatComeFirstAreChecked(t *testing.T) {
	many := make([]string, FirstMax+1)
	for i := range many {
		many[i] = GroupName(i)
	}
	for name, c := range map[string]struct {
		first []string
		says  string
	}{
		"none":  {nil, ""},
		"some":  {many[:FirstMax], ""},
		"many":  {many, "at most 100"},
		"twice": {[]string{"a", "b", "a"}, "a is there twice"},
		"wrong": {[]string{"a/b"}, "use only"},
	} {
		r := &Restore{Source: "source:1", First: c.first}
		if err := r.validate(); (err == nil) != (c.says == "") ||
			err != nil && !strings.Contains(err.Error(), c.says) {
			t.Errorf("%s: %v", name, err)
		}
	}
}
