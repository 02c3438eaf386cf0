# shellcheck shell=bash disable=SC2164 # set -e is on
# Sourced by control.sh and node.sh: FOLDER becomes the machine's own disk. Nothing mounted here is seen outside, and
# all of it ends with this process, the first of its namespaces.
#   /run (fresh at every start): /run/node = FOLDER, /run/bin = the Kubernetes programs      /var = FOLDER/var
# Arguments: NAME FOLDER.

cd "$2"
exec 7<"$CLUSTER_BIN" # both folders may lie below what is mounted over: they are held open, and bound by that
read -ra stat </proc/self/stat # still the /proc of the machine: its number for this process
mount -t proc proc /proc
mount -t tmpfs -o mode=755 tmpfs /run
mkdir -p /run/node /run/bin /run/lock var/lib/kubelet var/lib/containerd var/log var/tmp
[ -e var/run ] || ln -s /run var/run
mount --no-canonicalize --bind . /run/node
if [ "$1" = control ]; then # it serves the slow disks of all nodes
  mkdir /run/sheaf-cluster
  mount --no-canonicalize --bind .. /run/sheaf-cluster
fi
mount --no-canonicalize --bind /proc/self/fd/7 /run/bin
exec 7<&-
mount --bind /run/node/var /var
mount -t tmpfs -o mode=1777 tmpfs /tmp
# What a container runtime mounts, its pods may share. Only now: a copy of a shared mount would repeat every later one.
mount --make-rshared /
cd /
hostname "$1"
export PATH=/run/bin:$PATH HOME=/run
: >/run/resolv.conf # nodes and their pods know no name server but the cluster's
echo "${stat[0]} ${stat[21]}" >/run/node/pid.new
mv /run/node/pid.new /run/node/pid
until [ -e /run/node/wired ]; do sleep 0.05; done # the network comes from outside

# keep NAME COMMAND...: runs it for ever, as an init system would.
keep() {
  local what=$1
  shift
  while :; do
    "$@" >>"/var/log/$what.log" 2>&1 || echo "$what ended with code $?; started again in a second" >>"/var/log/$what.log"
    sleep 1
  done &
}
