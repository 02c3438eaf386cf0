package v1alpha1_test

import (
	"fmt"
	"strings"
	"sync"
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"sheaf.dev/sheaf/internal/test/kubetest"
)

// badCase is input that the API server must refuse.
type badCase struct {
	// field is the path that is set to value; a nil value removes the field.
	field string
	value any
	// with holds the other fields that the object needs for this case.
	with fields
	// update means that the case changes a stored object, which has the fields in with.
	update bool
	// at is the field that the error names. It is empty if the error names the changed field.
	at string
	// says is a part of the error message, which must say what to do.
	says string
}

var badCases = map[string][]badCase{
	"RecordStore": recordStoreCases, "ShardPool": shardPoolCases, "Shard": shardCases, "DiskSet": diskSetCases,
	"RecordGrant": recordGrantCases, "RecordTenant": recordTenantCases, "RecordArchive": recordArchiveCases,
	"RecordBackup": recordBackupCases,
}

func (c badCase) name() string {
	how := "create"
	if c.update {
		how = "update"
	}
	name := strings.Map(func(r rune) rune {
		if r < ' ' || r > '~' {
			return '?'
		}
		return r
	}, fmt.Sprintf("%s %s %v", how, c.field, c.value))
	return name[:min(len(name), 90)]
}

// seenMessages are the messages that the bad cases produced.
var seenMessages sync.Map

func TestBadInput(t *testing.T) {
	kubetest.Only(t)
	for kind, cases := range badCases {
		t.Run(kind, func(t *testing.T) {
			for _, c := range cases {
				t.Run(c.name(), func(t *testing.T) { c.check(t, kind) })
			}
			if t.Failed() {
				return
			}
			nodes, rootRules := schemaOf(t, kind)
			everyRuleFires(t, nodes, rootRules)
		})
	}
}

func (c badCase) check(t *testing.T, kind string) {
	object := build(t, kind, c.with)
	var err error
	if c.update {
		object = create(t, object)
		apply(t, object, fields{c.field: c.value})
		_, err = tryUpdate(object)
	} else {
		apply(t, object, fields{c.field: c.value})
		_, err = tryCreate(object)
	}
	if err == nil {
		t.Fatal("accepted")
	}
	at := c.at
	if at == "" {
		at = formatPath(c.field)
	}
	all := fieldErrors(t, err)
	met := false
	for _, got := range all {
		seenMessages.Store(got.message, true)
		met = met || got.field == at && strings.Contains(got.message, c.says)
	}
	if !met {
		t.Errorf("want %s: ...%s...\ngot %q", at, c.says, all)
	}
}

// A new field needs a case of bad input, so that its rules are tested. Booleans need no case, because only their type
// can be wrong, and TestWrongType covers that.
func TestEveryFieldHasACaseOfBadInput(t *testing.T) {
	for kind, cases := range badCases {
		nodes, _ := schemaOf(t, kind)
		covered := map[string]bool{}
		for _, c := range cases {
			covered[schemaPath(nodes, c.field)] = true
		}
		for _, n := range nodes {
			if n.leaf && n.typ != "boolean" && strings.HasPrefix(n.path, "spec/") && !covered[n.path] {
				t.Errorf("%s: %s has no case of bad input: add one beside the others", kind, n.path)
			}
		}
	}
}

// everyRuleFires checks that each CEL rule has a message and a case that triggers it.
func everyRuleFires(t *testing.T, nodes []node, rootRules []string) {
	t.Helper()
	fired := func(path, message string) {
		met := false
		seenMessages.Range(func(got, _ any) bool {
			met = strings.Contains(got.(string), message)
			return !met
		})
		if message == "" || !met {
			t.Errorf("%s: no case of bad input meets the rule with the message %q", path, message)
		}
	}
	for _, message := range rootRules {
		fired("the object", message)
	}
	for _, n := range nodes {
		for _, message := range n.rules {
			fired(n.path, message)
		}
	}
}

// requiredFields returns the fields that the object needs in addition to the one at path. Without them, the API server
// would not evaluate the rules for that field.
func requiredFields(kind, path string) fields {
	switch {
	case strings.HasPrefix(path, "spec/etcd/external/"):
		return external
	case kind == "ShardPool" && strings.HasPrefix(path, "spec/fileSystem/"):
		return xfs
	case kind == "RecordStore" && strings.HasPrefix(path, "spec/restore/"):
		return restored
	case strings.HasPrefix(path, "spec/drill/"):
		return drillOf()
	case strings.HasPrefix(path, "spec/tls/certManager/"):
		return certManager
	case strings.HasPrefix(path, "spec/tls/provided/"):
		return provided
	case path == "spec/tracing/sampleRatio":
		return fields{"spec/tracing/endpoint": "http://a:1"}
	case strings.HasPrefix(path, "spec/access/issuers/0/keysFrom/"):
		return issuedFrom
	case strings.HasPrefix(path, "spec/access/issuers/0/"):
		return issued
	case strings.HasSuffix(path, "/claims/0/request"):
		return fields{strings.TrimSuffix(path, "request") + "name": "a"}
	}
	return nil
}

// A misspelt field is refused by name, and not silently dropped. The request asks for this strict check, as kubectl
// does by default.
func TestUnknownField(t *testing.T) {
	kubetest.Only(t)
	for kind := range kinds {
		_, err := tryCreate(build(t, kind, fields{"spec/replicaz": 1}))
		if !apierrors.IsBadRequest(err) || !strings.Contains(err.Error(), `unknown field "spec.replicaz"`) {
			t.Errorf("%s: %v, want that the field is unknown", kind, err)
		}
	}
}

// TestWrongType sets every field of spec and status to a value of another type.
func TestWrongType(t *testing.T) {
	kubetest.Only(t)
	wrong := map[string][]any{
		"string": {7, true}, "integer": {"seven", 1.5}, "boolean": {"yes", 1},
		"int-or-string": {true, 1.5}, "object": {"text", []int{1}}, "array": {"text", 7},
	}
	for kind := range kinds {
		t.Run(kind, func(t *testing.T) {
			nodes, _ := schemaOf(t, kind)
			base := create(t, build(t, kind))
			for _, n := range nodes {
				values, ok := wrong[n.typ]
				if !ok {
					t.Fatalf("%s has type %q, which this test does not know", n.path, n.typ)
				}
				for _, value := range values {
					path := objectPath(n.path)
					object, try := build(t, kind, requiredFields(kind, path)), tryCreate
					if strings.HasPrefix(path, "status") {
						// The test changes the status of a stored object, because a new object has no status.
						object, try = base.DeepCopy(), tryStatus
					}
					apply(t, object, fields{path: value})
					_, err := try(object)
					if err == nil {
						t.Errorf("%s = %v: accepted", path, value)
						continue
					}
					met := false
					all := fieldErrors(t, err)
					for _, got := range all {
						met = met || got.field == formatPath(path) && strings.Contains(got.message, "must be of type")
					}
					if !met {
						t.Errorf("%s = %v: want that its type is wrong, got %q", path, value, all)
					}
				}
			}
		})
	}
}

// freeText lists the fields of the spec that may hold any string.
var freeText = map[string]bool{
	"spec/gateway/serviceAnnotations/*": true, "spec/gateway/podAnnotations/*": true,
	"spec/etcd/managed/podAnnotations/*": true, "spec/podAnnotations/*": true,
	"spec/gateway/extraEnv/[]/value": true, "spec/etcd/managed/extraEnv/[]/value": true, "spec/extraEnv/[]/value": true,
}

// TestStrangeText sets each string field of the spec to non-Latin letters, to control characters, and to a string
// that is far too long.
func TestStrangeText(t *testing.T) {
	kubetest.Only(t)
	texts := []string{"株価", "a\u202eb", "a\nb", "a b", strings.Repeat("a", 1000)}
	for kind := range kinds {
		t.Run(kind, func(t *testing.T) {
			nodes, _ := schemaOf(t, kind)
			for _, n := range nodes {
				if n.typ != "string" || !strings.HasPrefix(n.path, "spec/") || freeText[n.path] {
					continue
				}
				path := objectPath(n.path)
				for _, text := range texts {
					_, err := tryCreate(build(t, kind, requiredFields(kind, path), fields{path: text}))
					if err == nil {
						t.Errorf("%s = %q: accepted", path, text)
						continue
					}
					met := false
					all := fieldErrors(t, err)
					for _, got := range all {
						met = met || got.field != "spec" && strings.HasPrefix(formatPath(path), got.field)
					}
					if !met {
						t.Errorf("%s = %.20q: the error does not name the field: %q", path, text, all)
					}
				}
			}
		})
	}
}

// TestAcceptedDecodes sets quantities and durations to strings at the limits of what the parsers accept. The operator
// must be able to decode everything that the API server accepts, because one undecodable object would stop the watch
// of its kind.
func TestAcceptedDecodes(t *testing.T) {
	kubetest.Only(t)
	texts := []any{
		"1e1.5", "1E", "", "0x10", "1Gi ", "+1Gi", "1_000", "1e400", "1e-400", "-1Gi", ".5Gi", "1.Gi", "9999999999999Ei",
		"1n", "100e9",
		"1h30m", "+1h", ".5h", "1.5h", "1d", "1e3s", "9999999999h", "999999h999999h999999h", "1µs", "-0s", "0", 1 << 40, -1,
		0,
	}
	accepted := 0
	for kind := range kinds {
		nodes, _ := schemaOf(t, kind)
		for _, n := range nodes {
			if !n.leaf || n.enum || !strings.HasPrefix(n.path, "spec/") {
				continue
			}
			for _, text := range texts {
				if got, err := tryCreate(build(t, kind, fields{objectPath(n.path): text})); err == nil {
					accepted++
					decode(t, got)
				}
			}
		}
	}
	if accepted == 0 {
		t.Error("nothing was accepted: this test shows nothing")
	}
}
