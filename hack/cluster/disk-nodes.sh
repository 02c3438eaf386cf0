# shellcheck shell=bash
# Sourced inside a node's mount namespace. Creates the device nodes of its disks there.

disk_node_add() { # disk_node_add NAME NUMBER_OF_LOOP_DEVICE
  [ -b "/dev/loop$2" ] || mknod "/dev/loop$2" b 7 "$2"
  ln -sfn "../../loop$2" "/dev/disk/by-id/virtio-$1"
}

disk_node_remove() {
  rm -f "/dev/disk/by-id/virtio-$1"
}

# disk_node_check PATH fails if PATH is a disk's device, but the kernel has given its number to another file by now.
# Nothing is known about a disk without the file back: an older version of disks.sh attached it.
disk_node_check() {
  local number back disk
  [ "$(stat -Lc %t -- "$1" 2>/dev/null)" = 7 ] || return 0 # no loop device
  number=$((16#$(stat -Lc %T -- "$1")))
  back=$(cat "/sys/block/loop$number/loop/backing_file" 2>/dev/null) || back=
  for disk in /run/node/disks/*/; do
    if [ "$(cat "$disk/loop" 2>/dev/null)" = "$number" ] && [ -s "$disk/back" ] && [ "$back" != "$(cat "$disk/back")" ]; then
      disk=$(basename "$disk")
      echo "$1: /dev/loop$number is ${back:-no device} now, and not the disk $disk: somebody detached it (losetup -D?)." \
        "'disk attach $(hostname) $disk' gives the disk another device" | tee -a /var/log/disks.log >&2
      return 1
    fi
  done
}

# disk_node_guard PROGRAM... writes to /run/guard, for each program, a script of its name that checks the last argument
# before it runs the program.
disk_node_guard() {
  local program
  mkdir -p /run/guard
  for program; do
    {
      echo '#!/bin/bash'
      declare -f disk_node_check
      echo "disk_node_check \"\${@: -1}\" && exec $(command -v "$program") \"\$@\""
    } >"/run/guard/$program"
    chmod +x "/run/guard/$program"
  done
}
