//go:build e2e

package e2e

import (
	"bytes"
	"context"
	"crypto/rand"
	"encoding/base64"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"sheaf.dev/sheaf/api/v1alpha1"
	"sheaf.dev/sheaf/client"
)

// These are the records that are not part of the load. The record blobID is so large that the store and the archive
// keep its data as a blob.
const (
	lateID = 7
	blobID = 8
)

var blob = bytes.Repeat([]byte("a blob of Sheaf "), 75_000)

// applyArchive makes the RecordArchive q of the store q, or changes it. Each string in more is a further line of its
// spec.
func (s *space) applyArchive(bucket *bucketServer, more ...string) {
	GinkgoHelper()
	apply(fmt.Sprintf(`
apiVersion: sheaf.dev/v1alpha1
kind: RecordArchive
metadata: {name: q, namespace: %s}
spec:
  storeRef: {name: q}
  url: %q
  credentialsSecretRef: {name: bucket}
  interval: 1s
%s`, s.name, bucket.url(), lines(more)))
}

// applyKeysSecret writes a Secret "keys" with a key for archives. It returns a folder with the same key.
func (s *space) applyKeysSecret() (folder string) {
	GinkgoHelper()
	key := make([]byte, 32)
	_, _ = rand.Read(key) // never fails
	text := base64.StdEncoding.EncodeToString(key)
	folder = GinkgoT().TempDir()
	Expect(os.WriteFile(filepath.Join(folder, "first"), []byte(text), 0o600)).To(Succeed())
	apply(fmt.Sprintf("apiVersion: v1\nkind: Secret\nmetadata: {name: keys, namespace: %s}\nstringData: {first: %q}\n",
		s.name, text))
	return folder
}

// applyBackup makes a RecordBackup of the RecordArchive q. Each string in more is a further line of its spec.
func (s *space) applyBackup(name string, more ...string) {
	GinkgoHelper()
	apply(fmt.Sprintf(`
apiVersion: sheaf.dev/v1alpha1
kind: RecordBackup
metadata: {name: %s, namespace: %s}
spec:
  archiveRef: {name: q}
%s`, name, s.name, lines(more)))
}

func (s *space) backup(g Gomega, name string) *v1alpha1.RecordBackup {
	GinkgoHelper()
	var backup v1alpha1.RecordBackup
	g.Expect(get(&backup, "recordbackup", name, "-n", s.name)).To(Succeed())
	return &backup
}

// awaitPoint waits until a RecordBackup has its point, and returns the name of the point.
func (s *space) awaitPoint(name string) string {
	GinkgoHelper()
	Eventually(func(g Gomega) {
		status := s.backup(g, name).Status
		g.Expect(condition(status.Conditions, v1alpha1.ConditionReady)).To(HaveField("Status", metav1.ConditionTrue), "%+v",
			status)
		g.Expect(status.Time).NotTo(BeNil())
	}).WithTimeout(4 * time.Minute).Should(Succeed())
	return s.backup(Default, name).Status.Point
}

// archiveQ reads the RecordArchive q.
func (s *space) archiveQ(g Gomega) *v1alpha1.RecordArchive {
	GinkgoHelper()
	var archive v1alpha1.RecordArchive
	g.Expect(get(&archive, "recordarchive", "q", "-n", s.name)).To(Succeed())
	return &archive
}

// awaitArchive waits until the condition kind of the RecordArchive q has the given status, and one of the reasons if
// any are given.
func (s *space) awaitArchive(kind, status string, timeout time.Duration, reasons ...string) {
	GinkgoHelper()
	Eventually(func(g Gomega) {
		archive := s.archiveQ(g)
		c := condition(archive.Status.Conditions, kind)
		g.Expect(c).NotTo(BeNil(), "no condition %s", kind)
		g.Expect(string(c.Status)).To(Equal(status), "%+v", archive.Status)
		if len(reasons) > 0 {
			g.Expect(reasons).To(ContainElement(c.Reason), "%+v", c)
		}
	}).WithTimeout(timeout).Should(Succeed())
}

// awaitArchived waits until everything that was acknowledged before a moment is archived.
func (s *space) awaitArchived(moment time.Time, timeout time.Duration) {
	GinkgoHelper()
	Eventually(func(g Gomega) {
		through := s.archiveQ(g).Status.ArchivedThrough
		g.Expect(through).NotTo(BeNil())
		// The status has whole seconds, rounded down.
		g.Expect(through.Time).To(BeTemporally(">", moment))
	}).WithTimeout(timeout).Should(Succeed())
}

// sheafArchive runs a command of sheaf-archive in a pod, with the credentials of the bucket and the certificate of an
// administrator of the store q. The files of the ConfigMap "lost" are in /lost, and the keys in /keys. It returns what
// the command prints, and whether the command succeeded.
func (s *space) sheafArchive(name string, args ...string) (printed string, succeeded bool) {
	GinkgoHelper()
	quoted := make([]string, len(args))
	for n, arg := range args {
		quoted[n] = fmt.Sprintf("%q", arg)
	}
	apply(fmt.Sprintf(`
apiVersion: v1
kind: Pod
metadata: {name: %s, namespace: %s}
spec:
  automountServiceAccountToken: false
  restartPolicy: Never
  securityContext: {runAsNonRoot: true, runAsUser: 65532, seccompProfile: {type: RuntimeDefault}}
  containers:
  - name: main
    image: %s
    imagePullPolicy: IfNotPresent
    args: [%s]
    envFrom: [{secretRef: {name: bucket}}]
    env:
    - {name: SHEAF_CA, value: /tls/ca.crt}
    - {name: SHEAF_CERT, value: /tls/tls.crt}
    - {name: SHEAF_KEY, value: /tls/tls.key}
    securityContext: {allowPrivilegeEscalation: false, readOnlyRootFilesystem: true, capabilities: {drop: [ALL]}}
    volumeMounts: [{name: tls, mountPath: /tls}, {name: lost, mountPath: /lost}, {name: keys, mountPath: /keys}]
  volumes:
  - {name: tls, secret: {secretName: q-admin-tls}}
  - {name: lost, configMap: {name: lost, optional: true}}
  - {name: keys, secret: {secretName: keys}}
`, name, s.name, archiveImage, strings.Join(quoted, ", ")))
	var phase string
	Eventually(func() string {
		phase = s.pod(name).Status.Phase
		return phase
	}).WithTimeout(3*time.Minute).Should(BeElementOf("Succeeded", "Failed"), "pod %s", name)
	return kubectl("logs", "-n", s.name, name), phase == "Succeeded"
}

// lookForDrills replaces the archive's pod. The new one looks for the newest drill at once, and not within 10 minutes.
func (s *space) lookForDrills() {
	GinkgoHelper()
	kubectl("delete", "pod", "-n", s.name, "-l", "app.kubernetes.io/component=archive", "--wait=true")
}

// drill runs a drill of all groups in a pod, with the certificate of the archiver. It returns what the command prints,
// and whether the command succeeded.
func (s *space) drill(name, url string) (printed string, succeeded bool) {
	GinkgoHelper()
	apply(fmt.Sprintf(`
apiVersion: v1
kind: Pod
metadata: {name: %s, namespace: %s}
spec:
  automountServiceAccountToken: false
  restartPolicy: Never
  securityContext: {runAsNonRoot: true, runAsUser: 65532, fsGroup: 65532, seccompProfile: {type: RuntimeDefault}}
  containers:
  - name: main
    image: %s
    imagePullPolicy: IfNotPresent
    args: [drill, %q, --server, q-gateway.%s.svc:7600, --tls-dir, /tls, --scratch, /scratch, --groups, "64",
      --encryption-keys, /keys]
    envFrom: [{secretRef: {name: bucket}}]
    securityContext: {allowPrivilegeEscalation: false, readOnlyRootFilesystem: true, capabilities: {drop: [ALL]}}
    volumeMounts: [{name: tls, mountPath: /tls}, {name: scratch, mountPath: /scratch}, {name: keys, mountPath: /keys}]
  volumes:
  - {name: tls, secret: {secretName: q-archive-tls, defaultMode: 0440}}
  - {name: scratch, emptyDir: {}}
  - {name: keys, secret: {secretName: keys, defaultMode: 0440}}
`, name, s.name, archiveImage, url, s.name))
	var phase string
	Eventually(func() string {
		phase = s.pod(name).Status.Phase
		return phase
	}).WithTimeout(3*time.Minute).Should(BeElementOf("Succeeded", "Failed"), "pod %s", name)
	return kubectl("logs", "-n", s.name, name), phase == "Succeeded"
}

// Scenario: a store is archived into a bucket outside of the cluster, under load. The bucket goes away and comes back,
// its credentials change, the archive becomes encrypted, a named point undoes a wrong deletion, and drills prove the
// archive, or find that it is harmed. Then everything but the bucket is deleted, and a store of another shape has all
// records, according to programs that are not part of Sheaf.
var _ = Describe("an archive", Ordered, SpecPriority(1), func() {
	var s *space
	var l *load
	var bucket *bucketServer
	var keys string // folder with the keys of the archive

	BeforeAll(func() {
		s = newSpace("archive")
		bucket = newBucketServer()
		keys = s.applyKeysSecret()
		s.diskSet(s.name+"-etcd", "ext4", diskSpec{"n1", s.disk("n1", "archive-etcd", "256M"), "240Mi"})
		s.diskSet(s.name, "xfs", diskSpec{"n1", s.disk("n1", "archive-xfs", "320M"), "300Mi"},
			diskSpec{"n2", s.disk("n2", "archive-xfs", "320M"), "300Mi"},
			diskSpec{"n3", s.disk("n3", "archive-xfs", "320M"), "300Mi"})
		s.makeStore(s.name + "-etcd")
		s.makePool("main", s.name, 3, "fileSystem: {type: xfs}")
		s.awaitStore("q", 3*time.Minute)
		s.client()
		l = s.newLoad()
	})

	It("follows a store under load", smoke, func() {
		l.start()
		l.awaitCalls(100)
		s.applyBucketSecret(bucketSecret)
		s.applyArchive(bucket)
		s.awaitArchive(v1alpha1.ConditionArchiving, "True", 3*time.Minute)
		s.awaitArchive(v1alpha1.ConditionArchiveCurrent, "True", 3*time.Minute)
		s.awaitArchived(time.Now(), 2*time.Minute)
		_, err := l.store.Put(context.Background(), client.Key{ID: blobID}, blob, nil)
		Expect(err).NotTo(HaveOccurred())
		l.finish(100)
		s.awaitArchived(time.Now(), 2*time.Minute)
		Expect(s.archiveQ(Default).Status.Holes).To(HaveValue(BeZero()))
		Expect(kubectl("sheaf", "status", "q", "-n", s.name)).To(ContainSubstring("archived "))
		printed, ok := s.sheafArchive("verify", "verify", bucket.url())
		Expect(ok).To(BeTrue(), printed)
		s.compareOutside(bucket.listing(s.storeQ(Default).Status.StoreUID, keys))
	})

	It("says that the bucket is away, hurts no call, and catches up", func() {
		alerts := s.watchAlerts()
		l.start()
		bucket.kill()
		s.awaitArchive(v1alpha1.ConditionArchiveCurrent, "False", 4*time.Minute)
		alerts.await("SheafArchiveBehind", firing)
		l.finish(100)
		bucket.start()
		s.awaitArchive(v1alpha1.ConditionArchiveCurrent, "True", 4*time.Minute)
		s.awaitArchive(v1alpha1.ConditionArchiving, "True", time.Minute)
		alerts.await("SheafArchiveBehind", gone)
		s.awaitArchived(time.Now(), 2*time.Minute)
		Expect(s.archiveQ(Default).Status.Holes).To(HaveValue(BeZero()))
	})

	It("names wrong credentials, and goes on with right ones in another pod", func() {
		pods := s.pods("app.kubernetes.io/component=archive")
		Expect(pods).To(HaveLen(1))
		shards := s.pods("sheaf.dev/pool=main")
		s.applyBucketSecret("wrong")
		s.awaitArchive(v1alpha1.ConditionArchiving, "False", 3*time.Minute, "Credentials", "Forbidden")
		s.applyBucketSecret(bucketSecret)
		s.awaitArchive(v1alpha1.ConditionArchiving, "True", 3*time.Minute)
		s.awaitArchived(time.Now(), 2*time.Minute)
		for name := range s.pods("app.kubernetes.io/component=archive") {
			Expect(pods).NotTo(HaveKey(name), "new credentials replace the pod")
		}
		for name, p := range s.pods("sheaf.dev/pool=main") {
			Expect(p.Metadata.UID).To(Equal(shards[name].Metadata.UID), "%s was made anew", name)
		}
	})

	It("undoes a wrong deletion by a named point, in an archive that became encrypted", func() {
		class := s.name + "-drill"
		s.diskSet(class, "ext4", diskSpec{"n1", s.disk("n1", "archive-drill", "256M"), "240Mi"})
		s.applyArchive(bucket, "encryption: {secretRef: {name: keys}}", fmt.Sprintf( // the next scenario awaits the drill
			"drill: {schedule: \"%d * * * *\", groups: 64, storage: {size: 200Mi, className: %s}}",
			time.Now().UTC().Add(3*time.Minute).Minute(), class))

		By("the last write before the point was made is in it, although no other group was written meanwhile")
		s.put("q", lateID, "acknowledged before the point was wanted")
		s.applyBackup("before-rm")
		s.applyBackup("for-an-hour", "ttl: 1h")
		point := s.awaitPoint("before-rm")
		Expect(s.backup(Default, "for-an-hour").Status.Until).NotTo(BeNil())
		s.awaitPoint("for-an-hour")

		By("all records are deleted, and come back")
		ids := l.ids(lateID, blobID)
		apply(fmt.Sprintf("apiVersion: v1\nkind: ConfigMap\nmetadata: {name: lost, namespace: %s}\ndata: {ids: %q}\n", s.name,
			strings.Trim(strings.ReplaceAll(fmt.Sprint(ids), " ", "\n"), "[]")))
		for _, id := range ids {
			_, err := l.store.Delete(context.Background(), client.Key{ID: id}, nil)
			Expect(err).NotTo(HaveOccurred())
		}
		printed, ok := s.sheafArchive("copy", "copy", bucket.url(), "--at", "point:"+point, "--ids", "/lost/ids",
			"--server", "q-gateway."+s.name+".svc:7600", "--encryption-keys", "/keys")
		Expect(ok).To(BeTrue(), printed)
		l.check()
		Expect(s.get("q", lateID)).To(Equal("acknowledged before the point was wanted"))

		By("the point is gone with its RecordBackup")
		kubectl("delete", "recordbackup", "for-an-hour", "-n", s.name, "--wait=true", "--timeout=4m")
		printed, ok = s.sheafArchive("points", "point", "list", bucket.url(), "--encryption-keys", "/keys")
		Expect(ok).To(BeTrue(), printed)
		Expect(printed).To(And(MatchRegexp(point+" .* until it is deleted"), MatchRegexp("for-an-hour.* no: it was deleted")))
	})

	It("is proven by a drill of its schedule, and a drill on a harmed archive says so", func() {
		s.awaitArchived(time.Now(), 2*time.Minute)
		Eventually(func() string {
			return kubectl("get", "job", "q-drill", "-n", s.name, "--ignore-not-found", "-o", "jsonpath={.status.succeeded}")
		}).WithTimeout(6*time.Minute).Should(Equal("1"), "Job q-drill")
		Expect(kubectl("logs", "-n", s.name, "job/q-drill")).To(ContainSubstring(`"result": "proven"`))
		s.lookForDrills()
		s.awaitArchive(v1alpha1.ConditionRestoreProven, "True", 3*time.Minute)
		Expect(kubectl("sheaf", "status", "q", "-n", s.name)).To(ContainSubstring("restore proven "))

		By("one bit of each segment changes")
		alerts := s.watchAlerts()
		segments := bucket.segments()
		Expect(segments).NotTo(BeEmpty())
		flip(segments)
		printed, ok := s.drill("drill-harmed", bucket.url())
		Expect(ok).To(BeFalse(), printed)
		Expect(printed).To(ContainSubstring("the archive is not proven"))
		s.lookForDrills()
		s.awaitArchive(v1alpha1.ConditionRestoreProven, "False", 3*time.Minute, "Differs")
		alerts.await("SheafRestoreNotProven", firing)

		By("the bits change back")
		flip(segments)
		printed, ok = s.drill("drill-again", bucket.url())
		Expect(ok).To(BeTrue(), printed)
		s.lookForDrills()
		s.awaitArchive(v1alpha1.ConditionRestoreProven, "True", 3*time.Minute)
		alerts.await("SheafRestoreNotProven", gone)
	})

	It("becomes a store of another shape, after everything else is lost", func() {
		first := s.storeQ(Default).Status.StoreUID
		l.start()
		l.finish(100)
		s.awaitArchived(time.Now(), 2*time.Minute)
		kubectl("delete", "-n", s.name, "recordarchive/q", "recordstore/q", "shardpool/main", "--wait=true", "--timeout=2m")
		kubectl("delete", "pvc", "-n", s.name, "--all", "--wait=true", "--timeout=2m")
		// Nobody can remove its point any more.
		kubectl("delete", "recordbackup", "before-rm", "-n", s.name, "--ignore-not-found", "--wait=true", "--timeout=1m")

		class := s.name + "-restored"
		s.diskSet(class+"-etcd", "ext4", diskSpec{"n1", s.disk("n1", "archive-etcd2", "256M"), "240Mi"})
		var disks []diskSpec
		for n, node := range []string{"n1", "n2", "n3", "n1", "n2"} {
			disks = append(disks, diskSpec{node, s.disk(node, fmt.Sprint("archive-", n), "256M"), "240Mi"})
		}
		s.diskSet(class, "btrfs", disks...)
		s.makeStore(class+"-etcd", "replication: {copies: 3}", fmt.Sprintf("restore: {url: %q, storeUID: %s, "+
			"credentialsSecretRef: {name: bucket}, encryption: {secretRef: {name: keys}}}", bucket.url(), first))
		s.makePool("main", class, 5, "fileSystem: {type: btrfs}")
		s.awaitStore("q", 5*time.Minute)
		second := s.storeQ(Default)
		Expect(second.Status.StoreUID).NotTo(Equal(first))
		Expect(condition(second.Status.Conditions, v1alpha1.ConditionRestored)).To(HaveField("Status", metav1.ConditionTrue))
		s.compareOutside(bucket.listing(first, keys))
		l.store = s.goClient()
		l.check()

		By("the source goes, and the store takes writes")
		Eventually(func() map[string]pod {
			return s.pods("app.kubernetes.io/component=restore")
		}).WithTimeout(2 * time.Minute).Should(BeEmpty())
		l.start()
		l.finish(100)
	})
})
