package recordstore_test

import (
	"context"
	"errors"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"sheaf.dev/sheaf/api/v1alpha1"
	"sheaf.dev/sheaf/controllers/step"
	"sheaf.dev/sheaf/internal/kube/workload"
	"sheaf.dev/sheaf/internal/placement"
	"sheaf.dev/sheaf/internal/status/archiving"
)

// restores returns the scene of a store that is being restored, with the pod of the source. The argument change may
// change it further.
func restores(change func(s *scene, pod *corev1.Pod)) func() *scene {
	return func() *scene {
		s := newScene()
		s.store.Spec.Restore = &v1alpha1.Restore{URL: "s3://backups/quotes",
			StoreUID: "6a204bd8-9a53-4a6e-8a38-6a4c1e6f0d5b"}
		at := goldenNow.Add(-time.Hour)
		s.store.Status.Restore = &v1alpha1.RestoreStatus{Time: at.Format(time.RFC3339Nano)}
		s.source = func() (*archiving.SourceReport, error) {
			return &archiving.SourceReport{State: archiving.Serving, Store: string(s.store.UID), Time: &at, Routing: "hash",
				HashGroups: 8, Groups: 8}, nil
		}
		pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "prod", Name: "quotes-restore-x",
			Labels: workload.Labels("quotes", workload.ContainerRestore)}}
		pod.Status.PodIP = "10.0.0.9"
		pod.Status.ContainerStatuses = []corev1.ContainerStatus{{Name: workload.ContainerRestore,
			State: corev1.ContainerState{Running: &corev1.ContainerStateRunning{}}}}
		pod.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionTrue}}
		s.objects = append(s.objects, pod)
		if change != nil {
			change(s, pod)
		}
		return s
	}
}

// wait makes groups wait for their restore.
func wait(s *scene, groups ...string) {
	s.view.Meta.Restore = &placement.Restore{Source: "quotes-restore.prod.svc:7640"}
	for _, name := range groups {
		g := s.view.Groups[name]
		g.Restoring, g.Members = true, nil
		s.view.Groups[name] = g
	}
}

// begins makes the store one whose placement does not exist yet.
func begins(s *scene) {
	s.store.Status.PlacementInitialized, s.store.Status.Conditions, s.view.Groups = false, nil, nil
	s.view.Meta.Restore = &placement.Restore{Listing: true}
}

// reports changes the report of the source.
func reports(s *scene, change func(r *archiving.SourceReport)) {
	before := s.source
	s.source = func() (*archiving.SourceReport, error) {
		r, err := before()
		change(r)
		return r, err
	}
}

func restoreScenes() map[string]func() *scene {
	refuses := func(r *archiving.SourceReport) {
		r.RefusedGroups, r.Refused = 2, []archiving.RefusedGroup{{Group: "3", Error: "group 3: time T is in the hole"},
			{Group: "5", Error: "object seg/1 is missing"}}
	}
	scenes := beginnings(refuses)
	for name, change := range map[string]func(s *scene, pod *corev1.Pod){
		"restore waits for groups": func(s *scene, _ *corev1.Pod) { wait(s, "1", "2") },
		"restore of groups that cannot be restored": func(s *scene, _ *corev1.Pod) {
			wait(s, "3", "5")
			reports(s, refuses)
		},
		"restore whose source fails": func(s *scene, pod *corev1.Pod) {
			wait(s, "1")
			pod.Status.Conditions[0].Status = corev1.ConditionFalse
			pod.Status.ContainerStatuses[0].State = corev1.ContainerState{
				Waiting: &corev1.ContainerStateWaiting{Reason: "CrashLoopBackOff"}}
			pod.Status.ContainerStatuses[0].LastTerminationState.Terminated = &corev1.ContainerStateTerminated{ExitCode: 1,
				Message: "time=T level=INFO msg=begins\nsheaf-archive: the bucket: no such host"}
		},
		"restore without an etcd that answers": func(s *scene, _ *corev1.Pod) { s.plan = errors.New("no answer") },
		"restore that is done": func(s *scene, _ *corev1.Pod) {
			wait(s)
			s.rounds = 4
		},
		"restore whose groups wait for copies": func(s *scene, _ *corev1.Pod) {
			wait(s)
			g := s.view.Groups["1"]
			g.WritesFrom = 2
			s.view.Groups["1"] = g
		},
		"restore whose etcd is silent after the end": func(s *scene, _ *corev1.Pod) {
			s.plan = errors.New("no answer")
			step.SetTrue(&s.store.Status.Conditions, 1, v1alpha1.ConditionRestored, "Restored", "done")
		},
		"restore that comes back with an older etcd": func(s *scene, _ *corev1.Pod) {
			wait(s, "1")
			step.SetTrue(&s.store.Status.Conditions, 1, v1alpha1.ConditionRestored, "Restored", "done")
		},
		"restore whose etcd is lost": func(s *scene, _ *corev1.Pod) {
			s.plan, s.store.Spec.Replication.Copies = placement.ErrPlacementLost, 3 // with copies, it could be rebuilt
		},
		"restore without pools": func(s *scene, _ *corev1.Pod) {
			wait(s, "1")
			s.pools = nil
		},
	} {
		scenes[name] = restores(change)
	}
	return scenes
}

// beginnings returns the scenes of restores that have not begun.
func beginnings(refuses func(*archiving.SourceReport)) map[string]func() *scene {
	scenes := map[string]func() *scene{}
	for name, change := range map[string]func(s *scene, pod *corev1.Pod){
		"restore begins": func(s *scene, _ *corev1.Pod) { s.store.Status.Restore = nil },
		"restore without credentials": func(s *scene, _ *corev1.Pod) {
			s.store.Spec.Restore.CredentialsSecretRef = &v1alpha1.ArchiveSecretReference{Name: "bucket"}
		},
		"restore without its encryption keys": func(s *scene, _ *corev1.Pod) {
			s.store.Spec.Restore.Encryption = &v1alpha1.ArchiveEncryption{
				SecretRef: v1alpha1.ArchiveSecretReference{Name: "keys"}}
		},
		"restore whose source is silent": func(s *scene, _ *corev1.Pod) {
			s.source = func() (*archiving.SourceReport, error) { return nil, errors.New("no route") }
		},
		"restore whose source reads": func(s *scene, pod *corev1.Pod) {
			pod.Status.Conditions[0].Status = corev1.ConditionFalse
			reports(s, func(r *archiving.SourceReport) { r.State = archiving.Starting })
		},
		"restore into other groups": func(s *scene, _ *corev1.Pod) {
			reports(s, func(r *archiving.SourceReport) { r.HashGroups = 16 })
		},
		"restore that would be partial": func(s *scene, _ *corev1.Pod) { reports(s, refuses) },
		"restore that may be partial": func(s *scene, _ *corev1.Pod) {
			s.store.Spec.Restore.Partly = true
			reports(s, refuses)
		},
		"restore without gateways": func(s *scene, _ *corev1.Pod) { s.store.Spec.Gateway.Replicas = new(int32(0)) },
		"restore without a pod": func(s *scene, pod *corev1.Pod) {
			s.between = func(ctx context.Context, c client.Client, round int) error {
				if round == 0 {
					return c.Delete(ctx, pod)
				}
				return nil
			}
		},
		"restore as of a point that was made again": func(s *scene, _ *corev1.Pod) {
			s.store.Spec.Restore.Point = "before-upgrade"
			reports(s, func(r *archiving.SourceReport) { r.Time = new(r.Time.Add(time.Second)) })
		},
	} {
		scenes[name] = restores(func(s *scene, pod *corev1.Pod) {
			begins(s)
			change(s, pod)
		})
	}
	return scenes
}
