package controllers

import (
	"context"

	. "github.com/onsi/gomega"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"sheaf.dev/sheaf/api/v1alpha1"
	"sheaf.dev/sheaf/controllers/fleet"
)

var _ = Describe("The members of a managed etcd", func() {
	var p *storePlay
	BeforeEach(func(ctx context.Context) { p = newStorePlay(ctx) })
	three := func(s *v1alpha1.RecordStore) { s.Spec.Etcd.Managed.Members = 3 }

	// member changes the pod of an etcd member.
	member := func(ctx context.Context, name string, change func(*corev1.Pod)) {
		GinkgoHelper()
		pod := &corev1.Pod{}
		Expect(api.Get(ctx, types.NamespacedName{Namespace: p.Namespace, Name: name}, pod)).To(Succeed())
		change(pod)
		Expect(api.Status().Update(ctx, pod)).To(Succeed())
	}
	unready := func(message string) func(*corev1.Pod) {
		return func(pod *corev1.Pod) {
			pod.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionFalse,
				LastTransitionTime: metav1.Now()}}
			pod.Status.ContainerStatuses[0].Ready = false
			pod.Status.ContainerStatuses[0].LastTerminationState = corev1.ContainerState{}
			if message != "" {
				pod.Status.ContainerStatuses[0].LastTerminationState.Terminated = &corev1.ContainerStateTerminated{ExitCode: 1,
					Message: message}
			}
		}
	}
	ready := func(pod *corev1.Pod) {
		pod.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionTrue,
			LastTransitionTime: metav1.Now()}}
		pod.Status.ContainerStatuses[0].Ready = true
	}

	It("are counted, and one that is not well is named with its cause", func(ctx context.Context) {
		p.running(ctx, 2, three)
		p.expect(ctx, v1alpha1.ConditionEtcdRedundant, metav1.ConditionTrue, "Redundant", "3 of 3")
		p.takeEvents()

		By("one that waits on a disk that was replaced")
		member(ctx, "quotes-etcd-1", unready(
			"{\"a\":1}\nsheaf: its disk was replaced; it waits until all other members are well: quotes-etcd-2 does not answer"))
		p.settle(ctx)
		p.expect(ctx, v1alpha1.ConditionEtcdRedundant, metav1.ConditionFalse, "MembersMissing",
			"2 of 3; quotes-etcd-1: sheaf: its disk was replaced")
		p.expect(ctx, v1alpha1.ConditionEtcdReady, metav1.ConditionTrue, "Ready")
		p.expect(ctx, v1alpha1.ConditionReady, metav1.ConditionFalse, "EtcdMembersMissing", "2 of 3")
		Expect(p.takeEvents()).To(ContainElement(ContainSubstring(
			"Warning MembersMissing EtcdRedundant is False: 2 of 3; quotes-etcd-1: ")))

		By("then joining the others")
		member(ctx, "quotes-etcd-1", unready(""))
		address := func(n string) string { return "quotes-etcd-" + n + ".quotes-etcd." + p.Namespace + ".svc:2380" }
		known := []fleet.EtcdMember{{PeerAddress: address("0")}, {PeerAddress: address("2")}}
		p.etcd.SayMembers(p.Namespace+"/quotes", known)
		p.settle(ctx)
		p.expect(ctx, v1alpha1.ConditionEtcdRedundant, metav1.ConditionFalse, "MembersMissing",
			"2 of 3; quotes-etcd-1: the other members do not have it")
		p.etcd.SayMembers(p.Namespace+"/quotes", append(known, fleet.EtcdMember{PeerAddress: address("1"),
			Trouble: "is a learner: it copies the log"}))
		p.settle(ctx)
		p.expect(ctx, v1alpha1.ConditionEtcdRedundant, metav1.ConditionFalse, "MembersMissing",
			"2 of 3; quotes-etcd-1: it is a learner")
		Expect(p.takeEvents()).To(BeEmpty(), "one event for one trouble")

		By("and being well again")
		member(ctx, "quotes-etcd-1", ready)
		p.settle(ctx)
		p.expect(ctx, v1alpha1.ConditionEtcdRedundant, metav1.ConditionTrue, "Redundant", "3 of 3")
		p.ready(ctx)
	})

	It("say why they cannot be made", func(ctx context.Context) {
		p.create(ctx, three)
		p.settle(ctx)
		var set appsv1.StatefulSet
		Expect(api.Get(ctx, types.NamespacedName{Namespace: p.Namespace, Name: "quotes-etcd"}, &set)).To(Succeed())
		p.NoSets = true
		for _, n := range []string{"1", "2"} {
			event := &corev1.Event{
				ObjectMeta:     metav1.ObjectMeta{Namespace: p.Namespace, Name: "etcd." + n},
				InvolvedObject: corev1.ObjectReference{Kind: "StatefulSet", Namespace: p.Namespace, Name: set.Name, UID: set.UID},
				Type:           corev1.EventTypeWarning, Reason: "FailedCreate", LastTimestamp: metav1.Now(),
				Message: "create Pod quotes-etcd-" + n + " in StatefulSet quotes-etcd failed error: exceeded quota: small",
			}
			Expect(api.Create(ctx, event)).To(Succeed())
			Expect(api.Delete(ctx, &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: p.Namespace,
				Name: "quotes-etcd-" + n}})).To(Succeed())
		}
		p.settle(ctx)
		p.expect(ctx, v1alpha1.ConditionEtcdRedundant, metav1.ConditionFalse, "MembersMissing",
			"1 of 3; quotes-etcd-1: it has no pod: FailedCreate: create Pod quotes-etcd-1 ",
			"quotes-etcd-2: it has no pod: FailedCreate: create Pod quotes-etcd-2 ", "exceeded quota: small")
		p.expect(ctx, v1alpha1.ConditionEtcdReady, metav1.ConditionFalse, "EtcdNotReady", "1 of 3 members",
			"exceeded quota: small", "Settled groups")
	})

	DescribeTable("say which StorageClass is missing", func(ctx context.Context, class *string, words string) {
		p.NoBinding, p.NoKubelet = true, true
		p.create(ctx, func(s *v1alpha1.RecordStore) { s.Spec.Etcd.Managed.Storage.StorageClassName = class })
		p.settle(ctx)
		p.expect(ctx, v1alpha1.ConditionEtcdRedundant, metav1.ConditionFalse, "MembersMissing", "0 of 1; quotes-etcd-0: ",
			words)
		p.expect(ctx, v1alpha1.ConditionReady, metav1.ConditionFalse, "EtcdNotReady", words)
	},
		Entry("no default class", nil, "the cluster has no default one"),
		Entry("one that does not exist", new("absent"),
			`StorageClass "absent" of spec.etcd.managed.storage.storageClassName does not exist`),
	)
})
