//go:build e2e

package e2e

import (
	"fmt"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
)

// Scenario 13: a user who may edit one namespace cannot use our kinds to access a device or a path of a node.
var _ = Describe("a namespace editor", func() {
	It("may make stores, but no DiskSet and nothing that names a path of a node", func() {
		s := newSpace("editor")
		apply(fmt.Sprintf(`
apiVersion: rbac.authorization.k8s.io/v1
kind: RoleBinding
metadata: {name: editor, namespace: %s}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: edit}
subjects: [{kind: User, name: e2e-editor, apiGroup: rbac.authorization.k8s.io}]
`, s.name))
		may := func(verb, what string) bool {
			return try(30*time.Second, "", "kubectl", "auth", "can-i", verb, what, "-n", s.name, "--as=e2e-editor").err == nil
		}
		Eventually(func() bool { return may("create", "recordstores.sheaf.dev") }).WithTimeout(time.Minute).Should(BeTrue())
		Expect(may("create", "shardpools.sheaf.dev")).To(BeTrue())
		Expect(may("list", "shards.sheaf.dev")).To(BeTrue())
		for _, verb := range []string{"create", "update", "patch", "delete"} {
			Expect(may(verb, "disksets.sheaf.dev")).To(BeFalse(), verb)
			Expect(may(verb, "shards.sheaf.dev")).To(BeFalse(), verb)
			Expect(may(verb, "persistentvolumes")).To(BeFalse(), verb)
		}

		for _, field := range []string{
			"hostPath: /dev/sda", "device: /dev/sda", "volumes: [{name: x, hostPath: {path: /}}]",
			"podTemplate: {spec: {hostNetwork: true}}",
			"securityContext: {privileged: true}", "scheduling: {volumes: [{name: x, hostPath: {path: /}}]}",
		} {
			pool := fmt.Sprintf(
				"apiVersion: sheaf.dev/v1alpha1\nkind: ShardPool\nmetadata: {name: main, namespace: %s}\nspec:\n  storeRef: "+
					"{name: q}\n"+
					"  storage: {storageClassName: none, size: 100Mi}\n  %s\n", s.name, field)
			o := try(time.Minute, pool, "kubectl", "create", "--validate=strict", "--as=e2e-editor", "-f", "-")
			Expect(o.err).To(HaveOccurred(), field)
			Expect(o.words).To(ContainSubstring("unknown field"), field)
		}

		By("a disk is only for the namespaces that its DiskSet names")
		other := newSpace("editor-other")
		disk := other.disk("n1", "editor", "160M")
		other.diskSet("e2e-editor-other", "ext4", diskSpec{"n1", disk, "128Mi"})
		s.makeStore("e2e-editor-other")
		s.makePool("main", "e2e-editor-other", 1)
		s.awaitCondition("main", "Ready", "False", time.Minute)
		Eventually(func() string {
			return kubectl("get", "diskset", "e2e-editor-other", "-o", "jsonpath={.status.disks[0].state}")
		}).WithTimeout(time.Minute).Should(Equal("Free"))
		Consistently(func() string {
			return kubectl("get", "pvc", "-n", s.name, "-o", "jsonpath={.items[*].status.phase}")
		}).WithTimeout(5 * time.Second).ShouldNot(ContainSubstring("Bound"))
	})
})
