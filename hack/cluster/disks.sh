# shellcheck shell=bash disable=SC2154 # state and here are cluster's
# Sourced by cluster. A disk is a sparse file with a loop device, and a name in one node: /dev/disk/by-id/virtio-NAME.
# Its folder NODE/disks/NAME contains image (the data), loop (the device's number; missing while detached) and back (the
# name that the kernel shows for the file behind the device). For a slow disk it also contains rate and fuse, where
# slowdisk serves the image at that rate.
readonly inner=/run/sheaf-cluster # the cluster's folder as the control plane sees it

# disk_inside NODE FUNCTION ARGUMENTS... runs the function in the node. If the node is not running, it does nothing,
# because the node's next start does the same.
disk_inside() {
  local p
  p=$(pid "$1") || return 0
  shift
  nsenter -t "$p" -m -- bash -c "$(cat "$here/disk-nodes.sh")"$'\n"$@"' disk-nodes "$@"
}

# disk_device NODE NAME prints the disk's device. If a loop device is detached from outside (losetup -D), the kernel may
# give its number to another image. Therefore disk_device checks the image behind the number. If the image is another
# one, it says so and fails.
disk_device() {
  local d=$state/$1/disks/$2 device back
  device=/dev/loop$(cat "$d/loop")
  back=$(losetup -nO BACK-FILE "$device" 2>/dev/null) || back=
  if [ -e "$d/rate" ]; then # in the forms that disks_loops describes
    case $back in "$inner/$1/disks/$2/fuse/sheaf-slowdisk" | /sheaf-slowdisk) echo "$device" && return ;; esac
  elif [ "$back" = "$(realpath "$d/image")" ]; then
    echo "$device" && return
  fi
  echo "disk $2 of $1: $device is ${back:-no device} now, and not this disk: somebody detached it (losetup -D?). It is left alone." \
    "'disk attach $1 $2' gives the disk another device" >&2
  return 1
}

disk_forget() { # disk_forget NODE NAME: removes from the node a device number that no longer belongs to the disk
  local d=$state/$1/disks/$2
  disk_inside "$1" disk_node_remove "$2"
  rm "$d/loop"
  [ ! -e "$d/rate" ] || inside control umount --lazy "$inner/$1/disks/$2/fuse" # slowdisk ends with the last user
}

disks_forget() { # disks_forget NODE: removes outdated device numbers before the node starts and makes links to them
  local d
  for d in "$state/$1"/disks/*/; do
    [ ! -e "$d/loop" ] || disk_device "$1" "$(basename "$d")" >/dev/null || rm "$d/loop"
  done
}

disk_attach() { # disk_attach NODE NAME
  local d=$state/$1/disks/$2 file device control
  if [ -e "$d/loop" ]; then
    ! disk_device "$1" "$2" >/dev/null || return 0
    disk_forget "$1" "$2"
  fi
  control=$(pid control) || die "disk: the cluster does not run"
  file=$d/image
  if [ -e "$d/rate" ]; then # a slow disk is served, and visible, only in the control plane's namespace
    d=$inner/$1/disks/$2 file=$inner/$1/disks/$2/fuse/sheaf-slowdisk
    # shellcheck disable=SC2016
    nsenter -t "$control" -m -n -p -- bash -c 'exec setsid "$0" "$@" >>/var/log/slowdisk.log 2>&1 </dev/null 9>&- &' \
      /run/bin/slowdisk "$d/image" "$d/fuse" "$d/rate"
    until_true 60 "slowdisk to serve $file" nsenter -t "$control" -m -- test -e "$file"
    d=$state/$1/disks/$2
  else
    control=self
  fi
  # Use O_DIRECT if the file system below supports it, so that the machine does not cache the disk's data in memory.
  device=$(nsenter --mount="/proc/$control/ns/mnt" -- losetup --find --show --direct-io=on "$file" 2>/dev/null ||
    nsenter --mount="/proc/$control/ns/mnt" -- losetup --find --show "$file") || die "disk: no loop device for $file (losetup -a; is /dev/loop-control there?)"
  losetup -nO BACK-FILE "$device" >"$d/back"
  echo "${device#/dev/loop}" >"$d/loop"
  disk_inside "$1" disk_node_add "$2" "$(cat "$d/loop")"
}

disk_detach() { # disk_detach NODE NAME: a mounted file system keeps the device until it is unmounted
  local d=$state/$1/disks/$2
  local device
  [ -e "$d/loop" ] || return 0
  if device=$(disk_device "$1" "$2"); then # else it is detached already
    disk_inside "$1" disk_node_remove "$2"
    losetup -d "$device"
  fi
  disk_forget "$1" "$2"
}

disk_move() { # disk_move NODE NAME OTHER: carries the disk with its data to another node
  known "$3"
  [ ! -e "$state/$3/disks/$2" ] || die "disk move: $3 has a disk $2 already"
  disk_detach "$1" "$2"
  mv "$state/$1/disks/$2" "$state/$3/disks/$2"
  disk_attach "$3" "$2"
}

disk_add() { # disk_add NODE NAME SIZE [slow]
  local d=$state/$1/disks/$2
  [[ $2 =~ ^[a-z0-9][a-z0-9-]{0,30}$ ]] || die "disk add: the name \"$2\" must be letters a-z, digits and -, at most 31"
  [ ! -e "$d" ] || die "disk add: $1 has a disk $2 already; 'disk rm $1 $2' removes it"
  mkdir -p "$d"
  truncate -s "$3" "$d/image" || { rm -r "$d"; die "disk add: SIZE must be like 512M or 2G, not \"$3\""; }
  [ "${4-}" != slow ] || { mkdir "$d/fuse" && echo off >"$d/rate"; }
  (disk_attach "$1" "$2") || { rm -r "$d"; exit 1; }
  echo "/dev/disk/by-id/virtio-$2"
}

disk_list() {
  local d node where
  for d in "$state"/n*/disks/*/; do
    [ -d "$d" ] || continue
    node=${d#"$state/"} node=${node%%/*} where=detached
    [ ! -e "$d/loop" ] || where=$(disk_device "$node" "$(basename "$d")" 2>/dev/null) || where="lost /dev/loop$(cat "$d/loop")"
    echo "$node: /dev/disk/by-id/virtio-$(basename "$d") $(stat -c %s "$d/image") bytes," \
      "$where$([ ! -e "$d/rate" ] || echo ", slow: $(cat "$d/rate")")"
  done
}

disk_rm() {
  disk_detach "$1" "$2"
  rm -rf --one-file-system "${state:?}/$1/disks/$2"
}

# disk_zero punches holes below the device, so that it also works while a file system is mounted, and then drops the
# kernel's cache of the device. Cached data of the file system's own files remains until it is evicted.
disk_zero() {
  local d=$state/$1/disks/$2 device=
  [ ! -e "$d/loop" ] || device=$(disk_device "$1" "$2") || exit 1
  fallocate --punch-hole --offset 0 --length "$(stat -c %s "$d/image")" "$d/image"
  [ -z "$device" ] || blockdev --flushbufs "$device"
}

disk_grow() { # grows the disk as a logical volume grows, and leaves the file system on it unchanged
  local d=$state/$1/disks/$2 device
  [ ! -e "$d/rate" ] || die "disk grow: $2 is slow, and slowdisk serves a fixed size"
  [ -e "$d/loop" ] || die "disk grow: $2 is detached: 'disk attach $1 $2' first"
  device=$(disk_device "$1" "$2") || exit 1
  truncate -s ">$3" "$d/image" || die "disk grow: SIZE must be like 512M or 2G, not \"$3\""
  losetup --set-capacity "$device"
}

disk_throttle() {
  local d=$state/$1/disks/$2
  [ -e "$d/rate" ] || die "disk throttle: $2 was not added as slow: 'disk add $1 $2 SIZE slow'"
  [[ ${3-} =~ ^(off|error|hang|[1-9][0-9]*[KMG]?)$ ]] || die "disk throttle: RATE must be bytes per second (4M), off, error or hang, not \"${3-}\""
  echo "$3" >"$d/rate.new"
  mv "$d/rate.new" "$d/rate"
}

disk() {
  local action=${1-} node=${2-} disk=${3-}
  [ "$action" != list ] || { disk_list; return; }
  case $action in add | rm | zero | grow | detach | attach | move | throttle) ;; *) usage >&2 && exit 2 ;; esac
  known "$node"
  [ "$action" = add ] || { [ -n "$disk" ] && [ -e "$state/$node/disks/$disk/image" ]; } || die "disk $action: $node has no disk \"$disk\"; 'disk list' shows those there are"
  shift
  "disk_$action" "$@"
}

# The file of a slow disk has a path below $inner, or only its bare name if that mount no longer exists. Slow disks of
# another clone's cluster look the same, so a slow disk is told by the number that its folder contains. `make chaos` has
# such disks elsewhere. A kubelet attaches one more loop device to the disk of a raw block volume, and the device outlives
# the node. It is told by the file system of the node's /dev, and by its file, which has no path after the node's end.
disks_loops() {
  local nodes
  nodes=" $(cat "$state"/n*/dev 2>/dev/null | tr '\n' ' ') " || true
  losetup -nl -O NAME,BACK-FILE,BACK-MAJ:MIN | awk -v state="$state/" -v inner="$inner/" -v own=" $(disks_numbers) " \
    -v nodes="$nodes" 'index($2, state) || $2 == "/" && index(nodes, " " $3 " ") ||
    index(own, " " $1 " ") && (index($2, inner) || $2 == "/sheaf-slowdisk")'
}

disks_numbers() { # prints the devices that the folders of this cluster's disks contain, in one line
  local file
  for file in "$state"/n*/disks/*/loop; do [ ! -s "$file" ] || printf '/dev/loop%s ' "$(cat "$file")"; done
}

disks_detach() { # runs at the end; also detaches devices whose record was lost
  until_true 60 "the loop devices to be let go" disks_gone
}

# disks_gone detaches the loop devices, and succeeds if none is left. A disk's own device remains until the device that
# a kubelet has attached to it is gone.
disks_gone() {
  local device
  disks_loops | while read -r device _; do losetup -d "$device" || true; done
  [ -z "$(disks_loops)" ]
}
