package fleet

import (
	"fmt"
	"testing"

	"sheaf.dev/sheaf/api/v1alpha1"
)

func TestTheWorstGroupsAreNamedFirst(t *testing.T) {
	var list []v1alpha1.GroupTrouble
	for n := range 30 {
		list = append(list, v1alpha1.GroupTrouble{Group: fmt.Sprint(n), State: GroupDamaged},
			v1alpha1.GroupTrouble{Group: fmt.Sprint(n), State: "Unavailable"})
	}
	list = append(list, v1alpha1.GroupTrouble{Group: "29", State: GroupLost})
	got := FirstTroubles(list)
	if len(got) != troublesMax || got[0].Group != "29" || got[0].State != GroupLost || got[1].Group != "0" ||
		got[11].Group != "10" {
		t.Errorf("%+v", got)
	}
}
