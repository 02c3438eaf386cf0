package workload

import (
	"crypto/sha256"
	"encoding/hex"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"sheaf.dev/sheaf/api/v1alpha1"
)

// These are the annotations of PersistentVolumes and StorageClasses that belong to DiskSets.
const (
	// AnnotationDevice holds the device path. It only informs administrators.
	AnnotationDevice = "sheaf.dev/device"
	// AnnotationFileSystem is set on the StorageClass. It names the file system that the kubelet creates on a blank disk
	// of the class.
	AnnotationFileSystem = "sheaf.dev/file-system"
	// AnnotationStoreUID is the UID of the store whose claim the disk was bound to. Only that store can get the disk again
	// automatically.
	AnnotationStoreUID = "sheaf.dev/store-uid"
	// AnnotationGivenUp with the value true means that an administrator has replaced the disk (spec.replace of a
	// ShardPool). The disk is no longer assigned automatically.
	AnnotationGivenUp = "sheaf.dev/given-up"
	// AnnotationRelease with the value true makes a Released disk available again. An administrator sets it.
	AnnotationRelease = "sheaf.dev/release"
	// AnnotationForClaim is namespace/name of the only claim that may get a free disk. An administrator sets it on a disk
	// that was moved to another node with its data. The operator removes it when the disk is bound to the claim.
	AnnotationForClaim = "sheaf.dev/for-claim"
)

// noProvisioner means that the volumes of a class are created in advance.
const noProvisioner = "kubernetes.io/no-provisioner"

// DiskVolume returns the name of a disk's PersistentVolume.
func DiskVolume(diskSet string, disk v1alpha1.Disk) string {
	sum := sha256.Sum256([]byte(disk.Node + "\x00" + disk.Device))
	return diskSet + "-" + hex.EncodeToString(sum[:6])
}

func diskLabels(diskSet string) map[string]string {
	return map[string]string{
		v1alpha1.LabelDiskSet: diskSet, "app.kubernetes.io/name": "sheaf", "app.kubernetes.io/managed-by": "sheaf-operator",
	}
}

// DiskClass returns the StorageClass of a DiskSet.
func DiskClass(set *v1alpha1.DiskSet) *storagev1.StorageClass {
	return &storagev1.StorageClass{
		ObjectMeta: metav1.ObjectMeta{
			Name: set.Name, Labels: diskLabels(set.Name), Annotations: map[string]string{AnnotationFileSystem: string(
				set.Spec.FileSystem.Type)},
		},
		Provisioner:          noProvisioner,
		ReclaimPolicy:        new(corev1.PersistentVolumeReclaimRetain),
		VolumeBindingMode:    new(storagev1.VolumeBindingWaitForFirstConsumer),
		AllowVolumeExpansion: new(true),
	}
}

// fsTypeParameter is the parameter with which a StorageClass tells a CSI driver which file system to create.
const fsTypeParameter = "csi.storage.k8s.io/fstype"

// ClassFileSystem returns the file system for volumes of a StorageClass, or "" if the class does not specify it.
func ClassFileSystem(class *storagev1.StorageClass) string {
	if class.Labels[v1alpha1.LabelDiskSet] != "" {
		return class.Annotations[AnnotationFileSystem]
	}
	return class.Parameters[fsTypeParameter]
}

// FreeClaim returns a reference to a claim that never exists. A free disk is reserved for this claim, so that no other
// claim can get the disk. The namespace of the claim is one that may use the disk.
func FreeClaim(set *v1alpha1.DiskSet, volume string) *corev1.ObjectReference {
	return &corev1.ObjectReference{
		APIVersion: "v1", Kind: "PersistentVolumeClaim", Namespace: set.Spec.Namespaces[0], Name: "sheaf-free-" + volume,
	}
}

// DiskPersistentVolume returns a disk's volume. The volume is not reserved for a claim.
func DiskPersistentVolume(set *v1alpha1.DiskSet, disk v1alpha1.Disk) *corev1.PersistentVolume {
	name := DiskVolume(set.Name, disk)
	return &corev1.PersistentVolume{
		ObjectMeta: metav1.ObjectMeta{
			Name: name, Labels: diskLabels(set.Name), Annotations: map[string]string{AnnotationDevice: disk.Device},
		},
		Spec: corev1.PersistentVolumeSpec{
			Capacity:                      corev1.ResourceList{corev1.ResourceStorage: disk.Size},
			AccessModes:                   []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce},
			PersistentVolumeReclaimPolicy: corev1.PersistentVolumeReclaimRetain,
			StorageClassName:              set.Name,
			VolumeMode:                    new(corev1.PersistentVolumeFilesystem),
			MountOptions:                  set.Spec.FileSystem.MountOptions,
			ClaimRef:                      FreeClaim(set, name),
			PersistentVolumeSource: corev1.PersistentVolumeSource{Local: &corev1.LocalVolumeSource{
				Path: disk.Device, FSType: new(string(set.Spec.FileSystem.Type)),
			}},
			NodeAffinity: &corev1.VolumeNodeAffinity{Required: &corev1.NodeSelector{
				NodeSelectorTerms: []corev1.NodeSelectorTerm{{MatchExpressions: []corev1.NodeSelectorRequirement{{
					Key: corev1.LabelHostname, Operator: corev1.NodeSelectorOpIn, Values: []string{disk.Node},
				}}}},
			}},
		},
	}
}

// DiskNode returns the node to which a local volume is bound. It returns "" if there is no such node, or if the volume
// does not select the node by name.
func DiskNode(pv *corev1.PersistentVolume) string {
	if pv.Spec.NodeAffinity == nil || pv.Spec.NodeAffinity.Required == nil {
		return ""
	}
	for _, term := range pv.Spec.NodeAffinity.Required.NodeSelectorTerms {
		for _, e := range term.MatchExpressions {
			if e.Key == corev1.LabelHostname && e.Operator == corev1.NodeSelectorOpIn && len(e.Values) == 1 {
				return e.Values[0]
			}
		}
	}
	return ""
}
