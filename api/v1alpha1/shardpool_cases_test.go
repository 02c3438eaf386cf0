package v1alpha1_test

func upTo(n int) []int {
	out := make([]int, n)
	for i := range out {
		out[i] = i
	}
	return out
}

var shardPoolCases = append(append([]badCase{
	{field: "metadata/name", value: letters(46), at: "<nil>", says: "at most 45 characters"},
	{field: "metadata/name", value: letters(253), at: "<nil>", says: "at most 45 characters"},
	{field: "metadata/name", value: "0pool", at: "<nil>", says: "must begin with a letter"},
	{field: "metadata/name", value: "quotes-etcd", at: "<nil>", says: "must not end in -etcd or -gateway"},
	{field: "metadata/name", value: "quotes-gateway", at: "<nil>", says: "must not end in -etcd or -gateway"},
	{field: "metadata/name", value: "プール", says: "lowercase RFC 1123"},
	{field: "spec", value: nil, says: "Required value"},

	{field: "spec/storeRef", value: nil, says: "Required value"},
	{field: "spec/storeRef/name", value: nil, says: "Required value"},
	{field: "spec/storeRef/name", value: "", says: "at least 1 chars long"},
	{field: "spec/storeRef/name", value: "Quotes", says: "must be that of a RecordStore of this namespace"},
	{field: "spec/storeRef/name", value: "other/quotes", says: "must be that of a RecordStore of this namespace"},
	{field: "spec/storeRef/name", value: letters(41), says: "may not be more than 40"},
	{field: "spec/storeRef/name", value: "other", update: true, says: "storeRef cannot be changed: make a new ShardPool"},
	{field: "spec/shards", value: -1, says: "greater than or equal to 0"},
	{field: "spec/shards", value: 1001, says: "less than or equal to 1000"},
	{field: "spec/remove", value: upTo(1001), says: "must have at most 1000 items"},
	{field: "spec/remove", value: []int{1, 1}, at: "spec.remove[1]", says: "Duplicate value"},
	{field: "spec/remove/0", value: -1, says: "greater than or equal to 0"},
	{field: "spec/remove/0", value: 100001, says: "less than or equal to 100000"},
	{field: "spec/parked", value: upTo(1001), says: "must have at most 1000 items"},
	{field: "spec/parked", value: []int{1, 1}, at: "spec.parked[1]", says: "Duplicate value"},
	{field: "spec/parked/0", value: -1, says: "greater than or equal to 0"},
	{field: "spec/parked/0", value: 100001, says: "less than or equal to 100000"},
	{field: "spec/replace", value: upTo(17), says: "must have at most 16 items"},
	{field: "spec/replace", value: []int{1, 1}, at: "spec.replace[1]", says: "Duplicate value"},
	{field: "spec/replace/0", value: -1, says: "greater than or equal to 0"},
	{field: "spec/replace/0", value: 100001, says: "less than or equal to 100000"},
	{field: "spec/replace", value: []int{0, 1}, with: fields{"spec/remove": []int{1}},
		says: "a number cannot be in replace and in remove"},
	{field: "spec/remove", value: []int{99}, at: "spec.remove", says: "remove names a shard that a new pool does not get"},
	{field: "spec/parked", value: []int{77}, at: "spec.parked", says: "parked names a shard that a new pool does not get"},
	{field: "spec/state", value: "Draining", says: `supported values: "Active", "Cordoned", "Drained"`},
	{field: "spec/medium", value: "ssd", says: `supported values: "SSD", "HDD", "Auto"`},
	{field: "spec/residency", value: "Disk", says: `supported values: "Index", "Resident"`},
	{field: "spec/residency", value: "Resident", at: "spec.resources",
		says: "residency Resident needs resources.limits.memory"},
	{field: "spec/residency", value: "Resident", with: fields{"spec/resources/limits/cpu": "2"}, at: "spec.resources",
		says: "residency Resident needs resources.limits.memory"},
	{field: "spec/resources", value: nil, with: fields{"spec/residency": "Resident",
		"spec/resources/limits/memory": "8Gi"}, update: true, says: "residency Resident needs resources.limits.memory"},

	{field: "spec/storage", value: nil, says: "Required value"},
	{field: "spec/storage/storageClassName", value: nil, says: "Required value"},
	{field: "spec/storage/storageClassName", value: "", says: "at least 1 chars long"},
	{field: "spec/storage/storageClassName", value: "Local XFS", says: "kubectl get storageclasses"},
	{field: "spec/storage/storageClassName", value: letters(254), says: "may not be more than 253"},
	{field: "spec/storage/storageClassName", value: "other", update: true,
		says: "storageClassName cannot be changed: a claim keeps its class. Add a second pool"},
	{field: "spec/storage/size", value: nil, says: "Required value"},
	{field: "spec/storage/size", value: "67108863", says: "from 64Mi to 4Pi"},
	{field: "spec/storage/size", value: "-1Gi", says: "from 64Mi to 4Pi"},
	{field: "spec/storage/size", value: "4097Ti", says: "from 64Mi to 4Pi"},
	{field: "spec/storage/size", value: "500GB", says: "such as 500Gi"},
	{field: "spec/storage/size", value: letters(33), says: "may not be more than 32"},
	{field: "spec/storage/size", value: "499Gi", update: true, says: "size can only grow"},

	{field: "spec/fileSystem/mountOptions", value: []string{"noatime"}, at: "spec.fileSystem.type",
		says: "Required value"},
	{field: "spec/fileSystem/type", value: "ext3", says: `supported values: "ext4", "xfs", "btrfs"`},
	{field: "spec/fileSystem/type", value: "ext4", with: xfs, update: true,
		says: "fileSystem.type cannot be changed: add a second pool"},
	{field: "spec/fileSystem", value: nil, with: xfs, update: true, at: "spec",
		says: "fileSystem cannot be removed once it is set"},
	{field: "spec/fileSystem/mountOptions", value: numbered("o%d", 17), with: xfs, says: "must have at most 16 items"},
	{field: "spec/fileSystem/mountOptions/0", value: "", with: xfs, says: "at least 1 chars long"},
	{field: "spec/fileSystem/mountOptions/0", value: "noatime,nodiratime", with: xfs,
		says: "list each option as an item of its own"},
	{field: "spec/fileSystem/mountOptions/0", value: "ro", with: xfs, says: "would make the volume read-only"},
	{field: "spec/fileSystem/mountOptions/0", value: letters(129), with: xfs, says: "may not be more than 128"},
	{field: "spec/update/mode", value: "Rolling", says: `supported values: "OneByOne", "Paused"`},
}, resourcesCases("spec/resources")...), append(schedulingCases("spec/scheduling"), podCases("spec")...)...)

var xfs = fields{"spec/fileSystem/type": "xfs"}

var diskSetCases = []badCase{
	{field: "metadata/name", value: letters(64), at: "<nil>", says: "at most 63 characters"},
	{field: "metadata/name", value: letters(253), at: "<nil>", says: "at most 63 characters"},
	{field: "metadata/name", value: "ディスク", says: "lowercase RFC 1123"},
	{field: "spec", value: nil, says: "Required value"},

	{field: "spec/fileSystem", value: nil, says: "Required value"},
	{field: "spec/fileSystem/type", value: nil, says: "Required value"},
	{field: "spec/fileSystem/type", value: "zfs", says: `supported values: "ext4", "xfs", "btrfs"`},
	{field: "spec/fileSystem/type", value: "ext4", update: true,
		says: "fileSystem.type cannot be changed: make a second DiskSet"},
	{field: "spec/fileSystem/mountOptions", value: numbered("o%d", 17), says: "must have at most 16 items"},
	{field: "spec/fileSystem/mountOptions/0", value: "a b", says: "list each option as an item of its own"},
	{field: "spec/fileSystem/mountOptions/0", value: "ro", says: "would make the volume read-only"},
	{field: "spec/namespaces", value: nil, says: "Required value"},
	{field: "spec/namespaces", value: []string{}, says: "should have at least 1 items"},
	{field: "spec/namespaces", value: numbered("n%d", 65), says: "must have at most 64 items"},
	{field: "spec/namespaces", value: []string{"a", "a"}, at: "spec.namespaces[1]", says: "Duplicate value"},
	{field: "spec/namespaces/0", value: "", says: "at least 1 chars long"},
	{field: "spec/namespaces/0", value: "*", says: "kubectl get namespaces"},
	{field: "spec/namespaces/0", value: letters(64), says: "may not be more than 63"},

	{field: "spec/disks", value: nil, says: "Required value"},
	{field: "spec/disks", value: []fields{}, says: "should have at least 1 items"},
	{field: "spec/disks", value: disks(513), says: "must have at most 512 items"},
	{field: "spec/disks", value: append(disks(1), disks(1)...), at: "spec.disks[1]", says: "Duplicate value"},
	{field: "spec/disks/0/node", value: nil, says: "Required value"},
	{field: "spec/disks/0/node", value: "", says: "at least 1 chars long"},
	{field: "spec/disks/0/node", value: "n1,n2", says: "kubectl get nodes -L kubernetes.io/hostname"},
	{field: "spec/disks/0/node", value: letters(64), says: "may not be more than 63"},
	{field: "spec/disks/0/device", value: nil, says: "Required value"},
	{field: "spec/disks/0/device", value: "", says: "must be the path of a block device below /dev/"},
	{field: "spec/disks/0/device", value: "sda", says: "must be the path of a block device below /dev/"},
	{field: "spec/disks/0/device", value: "/var/lib", says: "must be the path of a block device below /dev/"},
	{field: "spec/disks/0/device", value: "/dev/disk/by-id/../../../etc", says: "without spaces, .. or empty parts"},
	{field: "spec/disks/0/device", value: "/dev/disk/by-id//a", says: "without spaces, .. or empty parts"},
	{field: "spec/disks/0/device", value: "/dev/disk/by-id/", says: "without spaces, .. or empty parts"},
	{field: "spec/disks/0/device", value: "/dev/sda", at: "spec.disks", says: "must be a path below /dev/disk/by-id/"},
	{field: "spec/disks/0/device", value: "/dev/disk/by-path/pci-0", at: "spec.disks",
		says: "must be a path below /dev/disk/by-id/"},
	{field: "spec/disks/0/device", value: "/var/lib", with: fields{"spec/allowUnstablePaths": true},
		says: "must be the path of a block device below /dev/"},
	{field: "spec/disks/0/device", value: "/dev/disk/by-id/" + letters(500), says: "may not be more than 512"},
	{field: "spec/disks/0/size", value: nil, says: "Required value"},
	{field: "spec/disks/0/size", value: "63Mi", says: "from 64Mi to 4Pi"},
	{field: "spec/disks/0/size", value: "5Pi", says: "from 64Mi to 4Pi"},
	{field: "spec/disks/0/size", value: "big", says: "such as 500Gi"},
	{field: "spec/disks/0/size", value: "400Gi", update: true, says: "size can only grow"},
	{field: "spec/disks/0/medium", value: "NVMe", says: `supported values: "SSD", "HDD", "Auto"`},
}

func disks(n int) []fields {
	out := make([]fields, n)
	for i, device := range numbered("/dev/disk/by-id/d%d", n) {
		out[i] = fields{"node": "n1", "device": device, "size": "1Gi"}
	}
	return out
}
