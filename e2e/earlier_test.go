//go:build e2e

package e2e

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"

	"sheaf.dev/sheaf/api/v1alpha1"
)

// newField is the field of RecordStore that is missing from the CRD of the earlier chart. No pod restarts when the
// field is set.
const newField = "serviceAnnotations"

// earlierChart copies the operator's chart, removes newField from RecordStore in the copy, and returns the copy's path.
func earlierChart() string {
	GinkgoHelper()
	chart := filepath.Join(GinkgoT().TempDir(), "sheaf-operator")
	Expect(os.CopyFS(chart, os.DirFS(filepath.Join(root, "charts/sheaf-operator")))).To(Succeed())
	file := filepath.Join(chart, "templates/crds/sheaf.dev_recordstores.yaml")
	text, err := os.ReadFile(file)
	Expect(err).NotTo(HaveOccurred())
	// The expression matches the line with the field's name, and all following lines that are indented further.
	field := regexp.MustCompile(`(?m)^( {18})` + newField + `:\n(?: {19,}.*\n)+`)
	Expect(field.FindAll(text, -1)).To(HaveLen(1), "the field %s is not where it was in %s", newField, file)
	Expect(os.WriteFile(file, field.ReplaceAll(text, nil), 0o600)).To(Succeed())
	return chart
}

// operatorAllowed reports whether the operator has a right in a namespace.
func operatorAllowed(verb, what, namespace string) bool {
	return try(30*time.Second, "", "kubectl", "auth", "can-i", verb, what, "-n", namespace,
		"--as=system:serviceaccount:"+operatorNamespace+":"+operatorName).err == nil
}

// An operator is installed for one namespace, with CRDs that lack a field. It is then upgraded to the current chart,
// for all namespaces. The installation and the upgrade follow docs/install.md. The store serves without an operator,
// and the new operator restarts nothing.
var _ = Describe("an operator for one namespace, of an earlier release,", Serial, Ordered, func() {
	const records = 8
	var s, other *space
	BeforeAll(func() {
		s, other = newSpace("watched"), newSpace("unwatched")
		// An administrator creates the volumes, because DiskSets are disabled for this operator.
		fixedVolume("e2e-watched-etcd", "140Mi", "n1", s.disk("n1", "watched-etcd", "160M"))
		fixedVolume("e2e-watched", "140Mi", "n2", s.disk("n2", "watched", "160M"))
		DeferCleanup(func() { installOperator() })
		installOperatorOf(earlierChart(), "watchNamespaces={"+s.name+"}", "diskSets.enabled=false")
	})

	It("runs a store in that namespace, and leaves one in another namespace alone", func() {
		for _, space := range []*space{s, other} {
			space.makeStore("e2e-watched-etcd")
			space.makePool("main", "e2e-watched", 1, "fileSystem: {type: ext4}")
		}
		s.begin(2*time.Minute, records)

		Expect(operatorAllowed("create", "statefulsets", s.name)).To(BeTrue())
		Expect(operatorAllowed("create", "statefulsets", other.name)).
			To(BeFalse(), "the operator has rights in a namespace that it does not watch")
		store, err := other.store("q")
		Expect(err).NotTo(HaveOccurred())
		Expect(store.Finalizers).To(BeEmpty())
		Expect(store.Status.ObservedGeneration).To(BeZero())
		Expect(condition(store.Status.Conditions, v1alpha1.ConditionReconciling)).
			To(HaveField("Reason", "Pending"), "what nobody looks at says so")
		Expect(kubectl("get",
			"statefulsets,deployments,services,pods,persistentvolumeclaims,poddisruptionbudgets,networkpolicies", "-n",
			other.name,
			"-o", "name")).To(BeEmpty())
	})

	It("is upgraded with its kinds: the new field works, nothing restarts, and the other namespace is looked at too",
		func() {
			use := fmt.Sprintf(`{"spec":{"gateway":{%q:{"example.org/new":"field"}}}}`, newField)
			before, old := s.pods(storePods), awaitLeader(operatorImage)
			Expect(before).To(HaveLen(3), "etcd, a gateway and a shard")
			o := try(time.Minute, "", "kubectl", "patch", "recordstore", "q", "-n", s.name, "--type=merge", "-p", use)
			Expect(o.words).To(ContainSubstring("unknown field"), "the field is there before the upgrade: %v", o)
			t := s.startTraffic()
			t.awaitCalls(4)

			installOperator("image.repository="+repository(nextOperatorImage), "image.tag="+tag(nextOperatorImage))
			leader := awaitLeader(nextOperatorImage)
			Expect(leader.Status.ContainerStatuses[0].ImageID).NotTo(Equal(old.Status.ContainerStatuses[0].ImageID),
				"it is the same image")
			// The objects are still valid. An attempt may fail with a conflict, because the new operator writes their status at
			// the same time.
			Eventually(func() error {
				objects := kubectl("get", "recordstores,shardpools", "-n", s.name, "-o", "json")
				if o := try(time.Minute, objects, "kubectl", "replace", "--dry-run=server", "-f", "-"); o.err != nil {
					return fmt.Errorf("%v", o)
				}
				return nil
			}).WithTimeout(time.Minute).Should(Succeed())
			o = try(time.Minute, "", "kubectl", "patch", "recordstore", "q", "-n", s.name, "--type=merge", "-p", use)
			Expect(o.err).NotTo(HaveOccurred(), "%v", o)
			Expect(o.words).NotTo(ContainSubstring("unknown field"))
			Eventually(func() string {
				return kubectl("get", "service", "q-gateway", "-n", s.name, "-o",
					`jsonpath={.metadata.annotations.example\.org/new}`)
			}).WithTimeout(time.Minute).Should(Equal("field"))
			s.updateMode(v1alpha1.UpdatePaused)
			s.awaitObserved()
			s.awaitCondition("main", v1alpha1.ConditionUpdated, "True", time.Minute)
			s.awaitStore("q", 2*time.Minute)
			t.awaitCalls(4)
			Expect(t.end()).To(BeEmpty())
			s.getAll(records)
			Expect(changedPods(before, s.pods(storePods))).To(BeEmpty())
			Expect(s.pods(storePods)).To(HaveLen(len(before)))

			Eventually(func(g Gomega) {
				store, err := other.store("q")
				g.Expect(err).NotTo(HaveOccurred())
				g.Expect(store.Status.ObservedGeneration).To(Equal(store.Generation))
			}).WithTimeout(time.Minute).Should(Succeed())
		})

	It("is away: a deleted shard comes back, and puts and gets never stop", func() {
		alerts := s.watchAlerts()
		back := scaleOperator(0)
		// The pod main-0-0 has the only copies of its groups. It restarts while these calls run.
		t := s.startTraffic("--timeout=2m")
		t.awaitCalls(4)
		old := s.pod("main-0-0").Metadata.UID
		kubectl("delete", "pod", "-n", s.name, "main-0-0", "--wait=false")
		s.awaitNewPod("main-0-0", old, 2*time.Minute)
		t.awaitCalls(8)
		Expect(t.end()).To(BeEmpty())
		s.getAll(records)
		alerts.await(alertOperatorGone, firing)
		back()
		alerts.await(alertOperatorGone, gone)
	})
})
