# shellcheck shell=bash disable=SC2164 # set -e is on
# Sourced by control.sh and node.sh with the arguments NAME FOLDER. FOLDER becomes the machine's own disk. Mounts made
# here are not visible outside, and all of them end with this process, the first of its namespaces.
#   /run (new at every start): /run/node = FOLDER, /run/bin = the Kubernetes programs      /var = FOLDER/var

cd "$2"
exec 7<"$CLUSTER_BIN" # keeps the folder open, because a later mount may hide its path
read -ra stat </proc/self/stat # /proc is still that of the machine, so this is the machine's number for the process
mount -t proc proc /proc
mount -t tmpfs -o mode=755 tmpfs /run
mkdir -p /run/node /run/bin /run/lock var/lib/kubelet var/lib/containerd var/log var/tmp
[ -e var/run ] || ln -s /run var/run
mount --no-canonicalize --bind . /run/node
if [ "$1" = control ]; then # the control plane serves the slow disks of all nodes
  mkdir /run/sheaf-cluster
  mount --no-canonicalize --bind .. /run/sheaf-cluster
fi
mount --no-canonicalize --bind /proc/self/fd/7 /run/bin
exec 7<&-
mount --bind /run/node/var /var
mount -t tmpfs -o mode=1777 tmpfs /tmp
# Pods may share what a container runtime mounts. This comes last, because a copy of a shared mount would repeat every
# later mount.
mount --make-rshared /
cd /
hostname "$1"
export PATH=/run/bin:$PATH HOME=/run
: >/run/resolv.conf # nodes and their pods use only the cluster's DNS
echo "${stat[0]} ${stat[21]}" >/run/node/pid.new
mv /run/node/pid.new /run/node/pid
until [ -e /run/node/wired ]; do sleep 0.05; done # another process sets up the network

# keep NAME COMMAND... keeps a command running forever, as an init system would.
keep() {
  local what=$1
  shift
  while :; do
    "$@" >>"/var/log/$what.log" 2>&1 || echo "$what ended with code $?; started again in a second" >>"/var/log/$what.log"
    sleep 1
  done &
}
