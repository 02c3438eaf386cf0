package recordarchive

import (
	"strings"
	"testing"

	"sheaf.dev/sheaf/api/v1alpha1"
	"sheaf.dev/sheaf/internal/status/archiving"
)

// A fact can be applied again, and holds nothing that may be a secret.
func TestFactsHoldNoSecrets(t *testing.T) {
	a := &v1alpha1.RecordArchive{}
	a.Namespace, a.Name, a.UID, a.ResourceVersion = "prod", "quotes", "u", "7"
	a.Annotations = map[string]string{"a": "secret"}
	a.Labels = map[string]string{"team": "a"}
	a.Spec.URL = "s3://backups/quotes"
	a.Spec.CredentialsSecretRef = &v1alpha1.ArchiveSecretReference{Name: "bucket"}
	a.Spec.ExtraEnv = []v1alpha1.EnvVar{{Name: "TOKEN", Value: "secret"}}
	a.Status.URL = "s3://backups/quotes"
	fact, err := factOf(a)
	want := `apiVersion: sheaf.dev/v1alpha1
kind: RecordArchive
metadata:
  labels:
    team: a
  name: quotes
  namespace: prod
spec:
  credentialsSecretRef:
    name: bucket
  extraEnv:
  - name: TOKEN
    value: LEFT-OUT
  storeRef:
    name: ""
  url: s3://backups/quotes
`
	if err != nil || fact.Name != "RecordArchive/quotes" || fact.YAML != want {
		t.Errorf("%v, %s:\n%s", err, fact.Name, fact.YAML)
	}
	if a.Spec.ExtraEnv[0].Value != "secret" {
		t.Error("the object of the cache was changed")
	}
}

func TestOnlyObjectsOfTheStoreAreFacts(t *testing.T) {
	grants := &v1alpha1.RecordGrantList{Items: make([]v1alpha1.RecordGrant, 3)}
	for i, name := range []string{"b", "a", "c"} {
		grants.Items[i].Name, grants.Items[i].Spec.StoreRef.Name = name, "quotes"
	}
	grants.Items[2].Spec.StoreRef.Name = "other"
	if of := ofStore(grants, "quotes"); len(of) != 2 || of[0].GetName() != "a" || kindOf(of[1]) != "RecordGrant" {
		t.Errorf("%v", of)
	}
}

// Facts have a bound. What has no room is named.
func TestFactsFitIntoAPoint(t *testing.T) {
	facts := fitting([]archiving.Fact{{Name: "a", YAML: strings.Repeat("x", factsBytesMax-1)}, {Name: "b", YAML: "y"},
		{Name: "c", YAML: "z"}})
	if len(facts) != 2 || facts[0].Name != "a" || !strings.Contains(facts[1].YAML, "2 objects are left out") ||
		!strings.Contains(facts[1].YAML, ": b c\n") {
		t.Errorf("%d facts, %s", len(facts), facts[len(facts)-1].YAML)
	}
	if facts := fitting([]archiving.Fact{{Name: "a"}}); len(facts) != 1 {
		t.Errorf("%v", facts)
	}
}
