package recordgrant

import (
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"sheaf.dev/sheaf/api/v1alpha1"
)

func TestTheOlderOfTwoTenantsCounts(t *testing.T) {
	made := time.Unix(1_800_000_000, 0)
	tenant := func(name string, prefix v1alpha1.GrantGroupText, age time.Duration) v1alpha1.RecordTenant {
		out := v1alpha1.RecordTenant{ObjectMeta: metav1.ObjectMeta{Name: name,
			CreationTimestamp: metav1.NewTime(made.Add(-age))}}
		out.Spec.Prefix, out.Spec.Quotas.Records = prefix, new(int64(1))
		return out
	}
	all := []v1alpha1.RecordTenant{
		tenant("c", "team-", 0), tenant("b", "team-a-", time.Hour), tenant("a", "team-a-1", time.Minute),
		tenant("d", "other-", 0), tenant("e", "other-", 0),
	}
	in, refused := tenantsOf(v1alpha1.RoutingNamed, all)
	if len(in) != 2 || in[0].Name != "b" || in[1].Name != "d" {
		t.Errorf("in the table are %+v", in)
	}
	for name, older := range map[string]string{"a": "b", "c": "b", "e": "d"} {
		out, is := refused[name]
		if !is || out.Reason() != "PrefixOverlaps" || !strings.Contains(out.Message(), "RecordTenant "+older+",") {
			t.Errorf("%s: %v: %s", name, is, out.Message())
		}
	}
	in, refused = tenantsOf(v1alpha1.RoutingHash, all)
	one := refused["d"]
	if len(in) != 0 || len(refused) != len(all) || one.Reason() != "HashRouting" {
		t.Errorf("in Hash routing: %+v, %v", in, refused)
	}
}
