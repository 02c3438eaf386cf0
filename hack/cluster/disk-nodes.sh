# shellcheck shell=bash
# Sourced inside a node's mount namespace. Creates the device nodes of its disks there.

disk_node_add() { # disk_node_add NAME NUMBER_OF_LOOP_DEVICE
  [ -b "/dev/loop$2" ] || mknod "/dev/loop$2" b 7 "$2"
  ln -sfn "../../loop$2" "/dev/disk/by-id/virtio-$1"
}

disk_node_remove() {
  rm -f "/dev/disk/by-id/virtio-$1"
}
