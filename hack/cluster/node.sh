#!/usr/bin/env bash
# shellcheck source-path=SCRIPTDIR
# The first process in a node's namespaces. It runs containerd, kubelet and kube-proxy. cluster starts it with NAME
# FOLDER.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
source "$here/disk-nodes.sh"
source "$here/enter.sh"
name=$1 number=${1#n}

# A node has its own /dev, so that it has names only for its own disks.
mount -t tmpfs -o mode=755 tmpfs /dev
mkdir -p /dev/pts /dev/shm /dev/mqueue /dev/disk/by-id
stat -c %Hd:%Ld /dev >>/run/node/dev # by this, disks_loops knows the kubelet's loop devices
while read -r device major minor; do mknod -m 666 "/dev/$device" c "$major" "$minor"; done <<'D'
null 1 3
zero 1 5
full 1 7
random 1 8
urandom 1 9
kmsg 1 11
tty 5 0
fuse 10 229
loop-control 10 237
D
# The kubelet attaches a loop device to each raw block volume, with any free number.
for loop in {0..255}; do mknod -m 600 "/dev/loop$loop" b 7 "$loop"; done
mount -t devpts -o newinstance,ptmxmode=0666,mode=620 devpts /dev/pts
mount -t tmpfs -o mode=1777 tmpfs /dev/shm
ln -s pts/ptmx /dev/ptmx
ln -s /proc/self/fd /dev/fd
for disk in /run/node/disks/*/; do [ ! -s "$disk/loop" ] || disk_node_add "$(basename "$disk")" "$(cat "$disk/loop")"; done

sysctl -qw net.ipv4.ip_forward=1
mkdir -p /run/cni
cat >/run/cni/10-pods.conflist <<C
{"cniVersion": "0.4.0", "name": "pods", "plugins": [
  {"type": "bridge", "bridge": "cni0", "isGateway": true, "hairpinMode": true, "ipam": {"type": "host-local",
   "dataDir": "/run/ipam", "ranges": [[{"subnet": "198.18.$number.0/24"}]], "routes": [{"dst": "0.0.0.0/0"}]}}]}
C
# restrict_oom_score_adj is set because without CAP_SYS_RESOURCE no process may lower its score, and runc would fail
# when it tries.
cat >/run/containerd.toml <<C
version = 2
oom_score = 0
[plugins."io.containerd.grpc.v1.cri"]
  sandbox_image = "localhost/pause:1"
  restrict_oom_score_adj = true
[plugins."io.containerd.grpc.v1.cri".containerd]
  snapshotter = "$CLUSTER_SNAPSHOTTER"
[plugins."io.containerd.grpc.v1.cri".cni]
  bin_dir = "/usr/lib/cni"
  conf_dir = "/run/cni"
C
# Mounted ConfigMaps and Secrets are updated within about 5 s and not within a minute, because each change of
# certificates waits for them. No eviction and no removal of images for lack of disk space: the machine's disk may be
# fuller than a real node's.
cat >/run/kubelet.yaml <<C
apiVersion: kubelet.config.k8s.io/v1beta1
kind: KubeletConfiguration
authentication: {anonymous: {enabled: false}, webhook: {enabled: false}, x509: {clientCAFile: /run/node/ca.crt}}
authorization: {mode: AlwaysAllow}
containerRuntimeEndpoint: unix:///run/containerd/containerd.sock
cgroupDriver: cgroupfs
cgroupRoot: /sheaf/$name
failCgroupV1: false
failSwapOn: false
oomScoreAdj: 0
makeIPTablesUtilChains: false
clusterDNS: [198.19.0.10]
clusterDomain: cluster.local
resolvConf: /run/resolv.conf
volumePluginDir: /var/lib/kubelet/volume-plugins
syncFrequency: 5s
nodeStatusUpdateFrequency: 2s
nodeStatusReportFrequency: 30s
nodeLeaseDurationSeconds: 8
imageGCHighThresholdPercent: 100
evictionHard: {memory.available: 50Mi, nodefs.available: 0%, nodefs.inodesFree: 0%, imagefs.available: 0%, imagefs.inodesFree: 0%}
C

keep containerd containerd -c /run/containerd.toml
until ctr version >/dev/null 2>&1; do sleep 0.1; done
CONTAINERD_SNAPSHOTTER=$CLUSTER_SNAPSHOTTER ctr -n k8s.io images import /run/node/pause.tar >/dev/null
keep kube-proxy kube-proxy --kubeconfig /run/node/kube-proxy.kubeconfig --hostname-override "$name" --proxy-mode nftables \
  --cluster-cidr 198.18.0.0/17 --conntrack-max-per-core 0 --oom-score-adj 0
# The kubelet runs blkid before it formats or mounts a disk, and losetup for a raw block volume.
disk_node_guard blkid losetup
keep kubelet env "PATH=/run/guard:$PATH" kubelet --config /run/kubelet.yaml --kubeconfig /run/node/kubelet.kubeconfig --hostname-override "$name" \
  --node-ip "198.18.255.$((10 + number))" --cert-dir /run/kubelet-pki --node-labels "topology.kubernetes.io/zone=zone-$number"
wait
