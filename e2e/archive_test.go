//go:build e2e

package e2e

import (
	"context"
	"fmt"
	"io/fs"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"sheaf.dev/sheaf/api/v1alpha1"
	"sheaf.dev/sheaf/client"
)

// These are the credentials of the bucket server.
const (
	bucketKey    = "e2e"
	bucketSecret = "no-secret-of-anybody"
)

// bucketHost is the address of this machine, as pods see it (hack/cluster/README.md).
const bucketHost = "198.18.255.2"

// bucketServer is an S3 server on this machine, outside of the cluster. It keeps its objects when it is killed.
type bucketServer struct {
	address string
	dir     string
	stop    func() // nil while the server does not run
}

// newBucketServer starts a server with the bucket "backups". The server ends with the scenario.
func newBucketServer() *bucketServer {
	GinkgoHelper()
	free, err := net.Listen("tcp", bucketHost+":0")
	Expect(err).NotTo(HaveOccurred(), "this machine needs the address %s, which the cluster gives it", bucketHost)
	b := &bucketServer{address: free.Addr().String(), dir: GinkgoT().TempDir()}
	Expect(free.Close()).To(Succeed())
	Expect(os.Mkdir(filepath.Join(b.dir, "backups"), 0o755)).To(Succeed())
	DeferCleanup(func() { b.kill() })
	b.start()
	return b
}

// start starts the server, and waits until it accepts connections.
func (b *bucketServer) start() {
	GinkgoHelper()
	cmd := exec.Command(tool("versitygw"), "--access", bucketKey, "--secret", bucketSecret, "--port", b.address, "--quiet",
		"posix", b.dir)
	cmd.Stdout, cmd.Stderr = GinkgoWriter, GinkgoWriter
	cmd.WaitDelay = 5 * time.Second
	Expect(cmd.Start()).To(Succeed(), "`make e2e` builds versitygw")
	b.stop = func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait() // Wait returns an error, because the process was killed
	}
	Eventually(func() error {
		conn, err := net.Dial("tcp", b.address)
		if err == nil {
			err = conn.Close()
		}
		return err
	}).WithTimeout(time.Minute).Should(Succeed())
}

// kill kills the server, if it runs.
func (b *bucketServer) kill() {
	if b.stop != nil {
		b.stop()
		b.stop = nil
	}
}

// url is the URL of the bucket, as pods use it.
func (b *bucketServer) url() string {
	return "s3://backups/e2e?region=us-east-1&use_path_style=true&endpoint=http://" + b.address
}

// applyBucketSecret writes the Secret "bucket" with the credentials of a bucket.
func (s *space) applyBucketSecret(secret string) {
	GinkgoHelper()
	apply(fmt.Sprintf(`
apiVersion: v1
kind: Secret
metadata: {name: bucket, namespace: %s}
stringData: {AWS_ACCESS_KEY_ID: %s, AWS_SECRET_ACCESS_KEY: %s}
`, s.name, bucketKey, secret))
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
// administrator of the store q. The files of the ConfigMap "lost" are in /lost. It returns what the command prints,
// and whether the command succeeded.
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
    volumeMounts: [{name: tls, mountPath: /tls}, {name: lost, mountPath: /lost}]
  volumes: [{name: tls, secret: {secretName: q-admin-tls}}, {name: lost, configMap: {name: lost, optional: true}}]
`, name, s.name, archiveImage, strings.Join(quoted, ", ")))
	var phase string
	Eventually(func() string {
		phase = s.pod(name).Status.Phase
		return phase
	}).WithTimeout(3*time.Minute).Should(BeElementOf("Succeeded", "Failed"), "pod %s", name)
	return kubectl("logs", "-n", s.name, name), phase == "Succeeded"
}

// segments returns the files of all segments in the bucket.
func (b *bucketServer) segments() (files []string) {
	GinkgoHelper()
	Expect(filepath.WalkDir(b.dir, func(name string, e fs.DirEntry, err error) error {
		if err == nil && e.Type().IsRegular() && strings.Contains(name, "/seg/") {
			files = append(files, name)
		}
		return err
	})).To(Succeed())
	return files
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
    args: [drill, %q, --server, q-gateway.%s.svc:7600, --tls-dir, /tls, --scratch, /scratch, --groups, "64"]
    envFrom: [{secretRef: {name: bucket}}]
    securityContext: {allowPrivilegeEscalation: false, readOnlyRootFilesystem: true, capabilities: {drop: [ALL]}}
    volumeMounts: [{name: tls, mountPath: /tls}, {name: scratch, mountPath: /scratch}]
  volumes: [{name: tls, secret: {secretName: q-archive-tls, defaultMode: 0440}}, {name: scratch, emptyDir: {}}]
`, name, s.name, archiveImage, url, s.name))
	var phase string
	Eventually(func() string {
		phase = s.pod(name).Status.Phase
		return phase
	}).WithTimeout(3*time.Minute).Should(BeElementOf("Succeeded", "Failed"), "pod %s", name)
	return kubectl("logs", "-n", s.name, name), phase == "Succeeded"
}

// Scenario: a store is archived into a bucket outside of the cluster, under load. The bucket goes away and comes back,
// its credentials change, a wrong deletion is undone, and drills prove the archive, or find that it is harmed.
var _ = Describe("an archive", Ordered, func() {
	var s *space
	var l *load
	var bucket *bucketServer

	BeforeAll(func() {
		s = newSpace("archive")
		bucket = newBucketServer()
		s.makeStore(s.threeDisks())
		s.makePool("main", s.name, 2)
		s.awaitStore("q", 3*time.Minute)
		s.client()
		l = s.newLoad()
	})

	It("follows a store under load", smoke, func() {
		l.start()
		l.awaitCalls(100)
		s.applyBucketSecret(bucketSecret)
		apply(fmt.Sprintf(`
apiVersion: sheaf.dev/v1alpha1
kind: RecordArchive
metadata: {name: q, namespace: %s}
spec: {storeRef: {name: q}, url: %q, credentialsSecretRef: {name: bucket}, interval: 1s}
`, s.name, bucket.url()))
		s.awaitArchive(v1alpha1.ConditionArchiving, "True", 3*time.Minute)
		s.awaitArchive(v1alpha1.ConditionArchiveCurrent, "True", 3*time.Minute)
		s.awaitArchived(time.Now(), 2*time.Minute)
		l.finish(100)
		s.awaitArchived(time.Now(), 2*time.Minute)
		Expect(s.archiveQ(Default).Status.Holes).To(BeZero())
		Expect(kubectl("sheaf", "status", "q", "-n", s.name)).To(ContainSubstring("archived "))
		printed, ok := s.sheafArchive("verify", "verify", bucket.url())
		Expect(ok).To(BeTrue(), printed)
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
		Expect(s.archiveQ(Default).Status.Holes).To(BeZero())
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

	It("undoes a wrong deletion", func() {
		at := time.Now() // no call is in progress
		s.awaitArchived(at, 2*time.Minute)
		store := s.goClient()
		var lost strings.Builder
		for _, c := range l.callers {
			for id := range c.valid {
				fmt.Fprintln(&lost, id)
			}
		}
		apply(fmt.Sprintf("apiVersion: v1\nkind: ConfigMap\nmetadata: {name: lost, namespace: %s}\ndata: {ids: %q}\n", s.name,
			lost.String()))
		for line := range strings.Lines(lost.String()) {
			id, err := strconv.ParseInt(strings.TrimSpace(line), 10, 64)
			Expect(err).NotTo(HaveOccurred())
			_, err = store.Delete(context.Background(), client.Key{ID: id}, nil)
			Expect(err).NotTo(HaveOccurred())
		}
		s.awaitArchived(time.Now(), 2*time.Minute)
		printed, ok := s.sheafArchive("copy", "copy", bucket.url(), "--at", at.UTC().Format(time.RFC3339Nano), "--ids",
			"/lost/ids", "--server", "q-gateway."+s.name+".svc:7600")
		Expect(ok).To(BeTrue(), printed)
		l.check()
	})

	It("is proven by a drill of its schedule, and a drill on a harmed archive says so", func() {
		s.awaitArchived(time.Now(), 2*time.Minute)
		class := s.name + "-drill"
		s.diskSet(class, "ext4", diskSpec{"n1", s.disk("n1", "archive-drill", "256M"), "240Mi"})
		apply(fmt.Sprintf(`
apiVersion: sheaf.dev/v1alpha1
kind: RecordArchive
metadata: {name: q, namespace: %s}
spec:
  storeRef: {name: q}
  url: %q
  credentialsSecretRef: {name: bucket}
  interval: 1s
  drill: {schedule: "%d * * * *", groups: 64, storage: {size: 200Mi, className: %s}}
`, s.name, bucket.url(), time.Now().UTC().Add(2*time.Minute).Minute(), class))
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
		flip := func() {
			for _, name := range segments {
				content, err := os.ReadFile(name)
				Expect(err).NotTo(HaveOccurred())
				content[len(content)/2] ^= 1
				Expect(os.WriteFile(name, content, 0o644)).To(Succeed())
			}
		}
		flip()
		printed, ok := s.drill("drill-harmed", bucket.url())
		Expect(ok).To(BeFalse(), printed)
		Expect(printed).To(ContainSubstring("the archive is not proven"))
		s.lookForDrills()
		s.awaitArchive(v1alpha1.ConditionRestoreProven, "False", 3*time.Minute, "Differs")
		alerts.await("SheafRestoreNotProven", firing)

		By("the bits change back")
		flip()
		printed, ok = s.drill("drill-again", bucket.url())
		Expect(ok).To(BeTrue(), printed)
		s.lookForDrills()
		s.awaitArchive(v1alpha1.ConditionRestoreProven, "True", 3*time.Minute)
		alerts.await("SheafRestoreNotProven", gone)
	})

	It("becomes a store of another shape, after everything else is lost", func() {
		first := s.storeQ(Default)
		s.awaitArchived(time.Now(), 2*time.Minute)
		kubectl("delete", "-n", s.name, "recordarchive/q", "recordstore/q", "shardpool/main", "--wait=true", "--timeout=2m")
		kubectl("delete", "pvc", "-n", s.name, "--all", "--wait=true", "--timeout=2m")

		class := s.name + "-restored"
		s.diskSet(class+"-etcd", "ext4", diskSpec{"n1", s.disk("n1", "archive-etcd", "256M"), "240Mi"})
		s.diskSet(class, "btrfs", diskSpec{"n1", s.disk("n1", "archive-1", "256M"), "240Mi"},
			diskSpec{"n2", s.disk("n2", "archive-2", "256M"), "240Mi"},
			diskSpec{"n3", s.disk("n3", "archive-3", "256M"), "240Mi"})
		s.makeStore(class+"-etcd", "replication: {copies: 3}", fmt.Sprintf(
			"restore: {url: %q, credentialsSecretRef: {name: bucket}, storeUID: %s}", bucket.url(), first.Status.StoreUID))
		s.makePool("main", class, 3, "fileSystem: {type: btrfs}")
		s.awaitStore("q", 5*time.Minute)
		second := s.storeQ(Default)
		Expect(second.Status.StoreUID).NotTo(Equal(first.Status.StoreUID))
		Expect(condition(second.Status.Conditions, v1alpha1.ConditionRestored)).To(HaveField("Status", metav1.ConditionTrue))
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
