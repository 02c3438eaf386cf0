//go:build e2e

package e2e

import (
	"regexp"
	"strings"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"

	"sheaf.dev/sheaf/api/v1alpha1"
)

// diskWith returns the disk in a DiskSet that belongs to the given PersistentVolume.
func diskWith(set, volume string) (disk v1alpha1.DiskStatus) {
	GinkgoHelper()
	var disks v1alpha1.DiskSet
	Expect(get(&disks, "diskset", set)).To(Succeed())
	for _, d := range disks.Status.Disks {
		if strings.TrimSuffix(d.PersistentVolume, "-wipe") == volume {
			disk = d
		}
	}
	return disk
}

// wipe wipes a Released disk with the commands that the operator names. It checks that one command alone is not enough,
// and that a disk in use is not touched.
func (s *space) wipe(set string, released, bound v1alpha1.ShardStatus) {
	By("a disk in use: refused")
	used := bound.Volume.PersistentVolume
	kubectl("annotate", "pv", used, "sheaf.dev/wipe=true", "sheaf.dev/wipe-confirm="+used)
	Eventually(func() string { return kubectl("get", "pv", used, "-o", "jsonpath={.metadata.annotations}") }).
		WithTimeout(time.Minute).ShouldNot(ContainSubstring("sheaf.dev/wipe"))
	Expect(diskWith(set, used).State).To(Equal(v1alpha1.DiskBound))

	By("the one that was replaced: the operator asks first")
	volume := released.Volume.PersistentVolume
	disk := diskWith(set, volume)
	Expect(disk.State).To(Equal(v1alpha1.DiskReleased))
	uid := kubectl("get", "pv", volume, "-o", "jsonpath={.metadata.uid}")
	first := regexp.MustCompile(`annotate pv \S+ sheaf\.dev/wipe=true`).FindString(disk.Message)
	Expect(first).NotTo(BeEmpty(), disk.Message)
	kubectl(strings.Fields(first)...)
	second := ""
	Eventually(func() string {
		second = regexp.MustCompile(`annotate pv \S+ sheaf\.dev/wipe-confirm=[^ ;]+`).
			FindString(diskWith(set, volume).Message)
		return second
	}).WithTimeout(time.Minute).ShouldNot(BeEmpty())
	Expect(second).To(ContainSubstring("wipe-confirm="+s.name+"/data-"+released.Name+"-0-"), "it names what is lost")
	blank := func() bool {
		return strings.TrimSpace(try(30*time.Second, "", "cluster", "exec", disk.Node, "blkid", "-p", "-o", "export",
			disk.Device).out) == ""
	}
	Expect(blank()).To(BeFalse(), "it was wiped by one act, or is no disk that was used")

	By("and then wipes")
	kubectl(strings.Fields(second)...)
	began := time.Now()
	Eventually(func() v1alpha1.DiskState {
		return diskWith(set, volume).State
	}).WithTimeout(3 * time.Minute).Should(Equal(v1alpha1.DiskFree))
	AddReportEntry("the disk was free " + time.Since(began).Round(time.Second).String() + " after the answer")
	Expect(blank()).To(BeTrue())
	Expect(kubectl("get", "pv", volume, "-o", "jsonpath={.metadata.uid}")).NotTo(Equal(uid))
	Expect(kubectl("get", "jobs,persistentvolumeclaims", "-n", operatorNamespace, "-l", "sheaf.dev/diskset="+set,
		"-o", "name")).To(BeEmpty())
	Expect(try(time.Minute, "", "kubectl", "get", "pv", volume+"-wipe").err).To(HaveOccurred())
}
