package main

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/util/duration"

	"sheaf.dev/sheaf/api/v1alpha1"
	kubefinding "sheaf.dev/sheaf/internal/kube/finding"
	"sheaf.dev/sheaf/internal/kube/workload"
	"sheaf.dev/sheaf/internal/local/cli"
	"sheaf.dev/sheaf/internal/status/finding"
)

// shorten cuts off the end of a text if it is longer than the given number of characters.
func shorten(text string, most int) string {
	if runes := []rune(text); len(runes) > most {
		return string(runes[:most-3]) + "..."
	}
	return text
}

func wantedShards(pool *v1alpha1.ShardPool) int32 {
	if pool.Spec.Shards == nil {
		return 1
	}
	return *pool.Spec.Shards
}

// podTable returns a table of pods with their nodes. For each pod that is not ready, it shows the reason.
func (c *screen) podTable(name string, pods []corev1.Pod) table {
	t := table{columns: []column{{name: name}, {name: "NODE"}, {name: "READY"}, {name: "RESTARTS", drop: 1, right: true},
		{name: "AGE", drop: 2, right: true}, {name: "WHY", words: true}}}
	for i := range pods {
		pod := &pods[i]
		state, why := "True", ""
		if !kubefinding.PodReady(pod) {
			state, why = "False", kubefinding.Cause(pod)
		}
		restarts := int32(0)
		for _, s := range pod.Status.ContainerStatuses {
			restarts += s.RestartCount
		}
		t.add(pod.Name, cmp.Or(pod.Spec.NodeName, "-"), state, strconv.Itoa(int(restarts)),
			duration.HumanDuration(c.Now.Sub(pod.CreationTimestamp.Time)), why)
	}
	if !slices.ContainsFunc(t.rows, func(row []string) bool { return row[len(row)-1] != "" }) {
		t.columns = t.columns[:len(t.columns)-1]
	}
	return t
}

// etcd writes the section about etcd, with a row for each member.
func (c *screen) etcd() {
	if external := c.Store.Spec.Etcd.External; external != nil {
		state := "not known"
		if e := meta.FindStatusCondition(c.Store.Status.Conditions, v1alpha1.ConditionEtcdReady); e != nil {
			state = e.Message
		}
		c.section("ETCD", "external, %s: %s", strings.Join(external.Endpoints, ","), state)
		return
	}
	pods, ready := c.PodsOf(workload.ContainerEtcd)
	c.section("ETCD", "%d of %d members are ready", ready, workload.EtcdMembers(c.Store))
	c.table(c.podTable("MEMBER", pods))
}

func (c *screen) gateways() {
	pods, ready := c.PodsOf(workload.ContainerGateway)
	c.section("GATEWAYS", "%d of %d are ready", ready, workload.GatewayReplicas(c.Store))
	c.table(c.podTable("GATEWAY", pods))
}

// disks writes the section about the claims and their disks.
func (c *screen) disks() {
	free, total := 0, 0
	names := make([]string, len(c.DiskSets))
	for i := range c.DiskSets {
		free += int(c.DiskSets[i].Status.Free)
		total += int(c.DiskSets[i].Status.Total)
		names[i] = c.DiskSets[i].Name
	}
	slices.Sort(names)
	words := fmt.Sprintf("%d claims", len(c.Claims))
	if total > 0 {
		words += fmt.Sprintf("; %d of %d disks of DiskSets %s are free", free, total, strings.Join(names, ", "))
	}
	c.section("DISKS", "%s", words)
	mounted := map[string]*v1alpha1.VolumeStatus{}
	for i := range c.Pools {
		for _, s := range v1alpha1.ShardsOf(&c.Pools[i], c.Shards) {
			mounted[workload.ShardClaim(s.Name)] = s.Volume
		}
	}
	t := table{columns: []column{
		{name: "CLAIM"}, {name: "PHASE"}, {name: "SIZE", drop: 2, right: true}, {name: "CLASS", drop: 3},
		{name: "NODE", drop: 1}, {name: "FS"}, {name: "DEVICE", drop: 5},
		{name: "VOLUME", drop: 6},
	}}
	claims := slices.Clone(c.Claims)
	slices.SortFunc(claims, func(a, b corev1.PersistentVolumeClaim) int { return strings.Compare(a.Name, b.Name) })
	for i := range claims {
		claim := &claims[i]
		phase := string(claim.Status.Phase)
		if claim.DeletionTimestamp != nil {
			phase = "Terminating"
		}
		class, size := "", claim.Status.Capacity[corev1.ResourceStorage]
		if claim.Spec.StorageClassName != nil {
			class = *claim.Spec.StorageClassName
		}
		sizeText := ""
		if !size.IsZero() {
			sizeText = cli.FormatBytes(size.Value())
		}
		node, device, fs := volumeWords(c.Volumes[claim.Spec.VolumeName])
		if v := mounted[claim.Name]; v != nil {
			fs, device = cmp.Or(v.FileSystem, fs), cmp.Or(device, v.Source)
		}
		t.add(claim.Name, cmp.Or(phase, "-"), sizeText, class, node, fs, device, claim.Spec.VolumeName)
	}
	c.table(t)
}

// volumeWords returns the node, device and file system of a local volume. Each of them is empty if it is unknown. For
// other volumes, all are empty.
func volumeWords(v corev1.PersistentVolume) (node, device, fs string) {
	if v.Spec.Local == nil {
		return "", "", ""
	}
	device = v.Spec.Local.Path
	if v.Spec.Local.FSType != nil {
		fs = *v.Spec.Local.FSType
	}
	return workload.DiskNode(&v), device, fs
}

// findings writes the problems of the store, the worst first. Below each problem it writes the command that helps.
func (c *screen) findings(found []finding.Finding) {
	words := "none"
	if len(found) > 0 {
		words = finding.Words(found)
	}
	c.section("FINDINGS", "%s", words)
	const indent = 9 // width of the severity, so that commands are aligned below the object's name
	for _, f := range found {
		c.say(fmt.Sprintf("%-*s", indent, f.Severity), "%s: %s", f.Where, f.What)
		if f.Do != "" {
			c.out.WriteString(strings.Repeat(" ", indent) + "$ " + f.Do + "\n")
		}
	}
	for _, m := range c.Missing {
		c.say("not read ", "%s", m)
	}
}
