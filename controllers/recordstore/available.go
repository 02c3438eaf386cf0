package recordstore

import (
	"cmp"
	"fmt"
	"maps"
	"slices"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"sheaf.dev/sheaf/api/v1alpha1"
	"sheaf.dev/sheaf/controllers/fleet"
	"sheaf.dev/sheaf/controllers/step"
	"sheaf.dev/sheaf/internal/kube/workload"
	"sheaf.dev/sheaf/internal/placement"
)

// Reasons of condition Available.
const (
	reasonAvailable        = "Available"
	reasonStarting         = "Starting" // the store has never been available
	reasonGroupsNotServing = "GroupsNotServing"
	reasonNoGateway        = "NoGateway"
	// reasonCannotAsk means that the availability is unknown, because the operator cannot reach some shards although
	// their pods are ready according to the kubelet.
	reasonCannotAsk = "OperatorCannotAsk"
)

// availability holds the contents of condition Available.
type availability struct {
	available metav1.ConditionStatus
	reason    string
	message   string
}

// availableInput is the input of decideAvailable.
type availableInput struct {
	routing  v1alpha1.RoutingMode
	groups   v1alpha1.GroupCounts
	shards   v1alpha1.ShardCounts
	gateways int32 // number of gateways that serve, whatever their template
	wanted   int32 // wanted number of gateways
	before   *metav1.Condition
	// unasked are the shards that the operator cannot reach although the kubelet finds their pods ready. Any group that
	// is not known to serve may be served by one of them.
	unasked []string
}

// decideAvailable reports whether every call can be answered, which requires that every group serves and at least one
// gateway is available. The reason is Starting for a store that has never been available.
func decideAvailable(in availableInput) availability {
	bad := func(reason, message string) availability {
		if in.before == nil || in.before.Reason == reasonStarting {
			reason = reasonStarting
		}
		return availability{metav1.ConditionFalse, reason, message}
	}
	g := in.groups
	switch {
	case len(in.unasked) > 0 && (g.Total == 0 || g.Serving < g.Total):
		return availability{metav1.ConditionUnknown, reasonCannotAsk, fmt.Sprintf(
			"%s known to serve. The operator cannot reach %s, whose pods are ready: calls may well be answered. "+
				"See that network policies and routes let the operator reach port %d of these pods",
			step.CountOf(g.Serving, g.Total, "group is", "groups are"), step.ShardWords(in.unasked), workload.PortShard)}
	case g.Total == 0 && in.shards.Serving == 0:
		return bad(reasonGroupsNotServing, fmt.Sprintf("no shard of %d serves", in.shards.Total))
	case g.Total == 0 && in.routing != v1alpha1.RoutingNamed:
		return bad(reasonGroupsNotServing, "there is no group yet")
	case g.Serving < g.Total:
		return bad(reasonGroupsNotServing, fmt.Sprintf("%s, and %s not%s",
			step.CountOf(g.Serving, g.Total, "group serves", "groups serve"), step.Count(g.Total-g.Serving, "does", "do"),
			notServingWords(g.NotWell)))
	case in.wanted > 0 && in.gateways == 0:
		return bad(reasonNoGateway, fmt.Sprintf(
			"%s, but no gateway of %d does: only clients that go to shards directly are answered",
			step.All(g.Total, "group serves", "groups serve"), in.wanted))
	case g.Total == 0:
		return availability{metav1.ConditionTrue, reasonAvailable, "there is no group yet: the first put to one makes it"}
	}
	return availability{metav1.ConditionTrue, reasonAvailable, step.All(g.Total, "group serves", "groups serve")}
}

// notServingWords lists the names of those unhealthy groups that accept no calls, together with the message of the
// first one. It leaves out groups that serve and only lack a copy.
func notServingWords(list []v1alpha1.GroupTrouble) string {
	var names []string
	message := ""
	for _, t := range list {
		if t.State != fleet.GroupDegraded && t.State != fleet.GroupDamaged {
			names, message = append(names, t.Group), cmp.Or(message, t.Message)
		}
	}
	if len(names) == 0 {
		return ""
	}
	return fmt.Sprintf(", such as %s: %s", fleet.GroupWords(names), message)
}

// setAvailable sets condition Available if its value is known.
func (seen *observed) setAvailable() {
	status := &seen.store.Status
	if !seen.hasPools {
		return
	}
	before := meta.FindStatusCondition(status.Conditions, v1alpha1.ConditionAvailable)
	gateways, wanted := int32(0), workload.GatewayReplicas(seen.store)
	if seen.gateway != nil {
		gateways = seen.gateway.Status.AvailableReplicas
		// The gateway was not observed, so use the result of an earlier reconcile.
	} else if meta.IsStatusConditionTrue(status.Conditions, v1alpha1.ConditionGatewayReady) {
		gateways = 1
	}
	a := decideAvailable(availableInput{
		routing: seen.store.Spec.Groups.Routing, groups: status.Groups, shards: status.Shards,
		gateways: gateways, wanted: wanted, before: before,
		unasked: seen.unasked(status.Groups),
	})
	say(seen.store, v1alpha1.ConditionAvailable, a.available, a.reason, a.message)
}

// unasked returns the shards that the operator cannot reach although their pods are ready according to the kubelet.
// It returns them only if they might serve all groups that are not known to serve. Otherwise it returns nil, because
// at least one group certainly does not serve.
func (seen *observed) unasked(groups v1alpha1.GroupCounts) (names []string) {
	might, states := groups.Serving, seen.shards.ByName()
	for name, s := range states {
		if s.State == v1alpha1.ShardUnreachable && s.PodReady && !fleet.IsSilent(&s) {
			names = append(names, name)
			might += s.Groups
			s.State = v1alpha1.ShardServing
			states[name] = s
		}
	}
	if len(names) > 0 && seen.copies() > 1 && seen.hasPlaces {
		heard := seen.reported
		heard.Groups = maps.Clone(heard.Groups)
		for group, place := range seen.places.Groups {
			if slices.ContainsFunc(place.Voters(), func(m placement.Member) bool { return slices.Contains(names, m.Shard) }) {
				delete(heard.Groups, group) // one of the unreachable shards may lead the group
			}
		}
		might = countCopies(&seen.places, states, heard).Serving
	}
	if might < groups.Total {
		return nil
	}
	slices.Sort(names)
	return names
}

// starting reports whether the store has never been available.
func starting(store *v1alpha1.RecordStore) bool {
	c := meta.FindStatusCondition(store.Status.Conditions, v1alpha1.ConditionAvailable)
	return c == nil || c.Reason == reasonStarting
}
