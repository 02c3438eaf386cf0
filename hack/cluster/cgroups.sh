# shellcheck shell=bash disable=SC2154 # name and die are cluster's
# Sourced by cluster. Handles the cgroups below $name: NODE-system holds a node's own processes, and NODE is the root
# for its pods. They are separate because in version 2 a group cannot hold processes if its children have controllers.

cgroup_mounts() { findmnt -rn -t "${1:-cgroup,cgroup2}" -o TARGET; }

# cgroup_roots prints the hierarchies that a kubelet uses: the single one of version 2, or all of version 1.
cgroup_roots() { if [ "$(stat -f -c %T /sys/fs/cgroup)" = cgroup2fs ]; then echo /sys/fs/cgroup; else cgroup_mounts cgroup; fi; }

cgroup_mkdir() { # cgroup_mkdir FOLDER
  mkdir -p "$1"
  local f
  for f in cpuset.cpus cpuset.mems; do # in version 1, no process may enter while these are empty
    [ -s "$1/$f" ] || [ ! -e "$1/cpuset.sched_load_balance" ] || cat "${1%/*}/$f" >"$1/$f"
  done
}

# cgroup_controllers FOLDER enables the controllers for children, which version 2 does only on request.
cgroup_controllers() {
  local c
  [ -e "$1/cgroup.subtree_control" ] || return 0
  for c in cpuset cpu io memory pids; do
    grep -qw "$c" "$1/cgroup.subtree_control" || echo "+$c" 2>/dev/null >"$1/cgroup.subtree_control" ||
      die "cannot enable the $c controller in $1: the group has processes of its own (move them to a child), or this container may not"
  done
}

cgroup_prepare() {
  local root roots
  roots=$(cgroup_roots)
  [ -n "$roots" ] || die "no cgroup file system is mounted on /sys/fs/cgroup; a kubelet needs one"
  for root in $roots; do
    cgroup_controllers "$root"
    cgroup_mkdir "$root/$name"
    cgroup_controllers "$root/$name"
  done
}

cgroup_make() { # cgroup_make NODE
  local root
  for root in $(cgroup_roots); do
    cgroup_mkdir "$root/$name/$1-system"
    [ "$1" = control ] || cgroup_mkdir "$root/$name/$1"
  done
}

cgroup_join() { # moves the calling process, permanently
  local root
  for root in $(cgroup_roots); do echo "$BASHPID" >"$root/$name/$1-system/cgroup.procs"; done
}

cgroup_empty() { # cgroup_empty NODE: succeeds if the node has no process left
  local root found
  for root in $(cgroup_roots); do
    found=$(find "$root/$name/$1" "$root/$name/$1-system" -name cgroup.procs -exec cat {} + 2>/dev/null || true)
    [ -z "$found" ] || return 1
  done
}

# cgroup_clear NODE removes the cgroups of the node's pods. A machine after a power cut has none, and a kubelet that
# finds some asks about each for three seconds before its node becomes Ready.
cgroup_clear() {
  local root failed=0
  for root in $(cgroup_list); do
    [ ! -d "$root/$1" ] || find "$root/$1" -mindepth 1 -depth -type d -exec rmdir {} + || failed=1
  done
  return $failed
}

cgroup_list() {
  local root
  for root in $(cgroup_mounts); do [ ! -d "$root/$name" ] || echo "$root/$name"; done
}

cgroup_gone() { [ -z "$(cgroup_list | while read -r d; do find "$d" -depth -type d -exec rmdir {} +; done; cgroup_list)" ]; }

cgroup_remove() { until_true 60 "the cgroups to be removed" cgroup_gone; }
