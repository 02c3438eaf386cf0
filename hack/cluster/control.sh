#!/usr/bin/env bash
# shellcheck source-path=SCRIPTDIR
# The first process in the namespaces of the control plane. It runs etcd, the API server, the controller manager, the
# scheduler and DNS, and is also the router between the nodes. cluster starts it with NAME FOLDER.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
source "$here/enter.sh"
pki=/run/node/pki address=198.18.255.1

cat >/run/Corefile <<'C'
.:1053 {
  errors
  ready 127.0.0.1:8181
  kubernetes cluster.local in-addr.arpa {
    kubeconfig /run/node/coredns.kubeconfig
    ttl 5
  }
  loadbalance
}
C

# Nothing here must survive a power cut, so etcd does not need fsync.
keep etcd etcd --data-dir /var/lib/etcd --unsafe-no-fsync --log-level warn --advertise-client-urls https://127.0.0.1:2379 \
  --listen-client-urls https://127.0.0.1:2379 --listen-peer-urls http://127.0.0.1:2380 \
  --cert-file $pki/etcd.crt --key-file $pki/etcd.key --client-cert-auth --trusted-ca-file $pki/ca.crt
keep kube-apiserver kube-apiserver --bind-address $address --advertise-address $address --service-cluster-ip-range 198.19.0.0/16 \
  --etcd-servers https://127.0.0.1:2379 --etcd-cafile $pki/ca.crt --etcd-certfile $pki/etcd.crt --etcd-keyfile $pki/etcd.key \
  --tls-cert-file $pki/apiserver.crt --tls-private-key-file $pki/apiserver.key --client-ca-file $pki/ca.crt --cert-dir /run \
  --service-account-key-file $pki/sa.pub --service-account-signing-key-file $pki/sa.key \
  --service-account-issuer https://kubernetes.default.svc.cluster.local \
  --authorization-mode Node,RBAC --enable-admission-plugins NodeRestriction --allow-privileged=true \
  --kubelet-client-certificate $pki/kubelet-client.crt --kubelet-client-key $pki/kubelet-client.key \
  --kubelet-preferred-address-types InternalIP \
  --default-not-ready-toleration-seconds "$CLUSTER_EVICT_AFTER" --default-unreachable-toleration-seconds "$CLUSTER_EVICT_AFTER"
# A program whose request arrives before the API server has created its roles is refused, and waits long before its
# next request.
until kubectl --kubeconfig /run/node/kube-scheduler.kubeconfig get --raw /readyz >/dev/null 2>&1; do sleep 0.2; done
keep kube-controller-manager kube-controller-manager --kubeconfig /run/node/kube-controller-manager.kubeconfig --leader-elect=false \
  --secure-port 0 --use-service-account-credentials --service-account-private-key-file $pki/sa.key --root-ca-file $pki/ca.crt \
  --cluster-signing-cert-file $pki/ca.crt --cluster-signing-key-file $pki/ca.key \
  --node-monitor-period 1s --node-monitor-grace-period "${CLUSTER_NODE_GRACE}s" --pvclaimbinder-sync-period 5s
keep kube-scheduler kube-scheduler --kubeconfig /run/node/kube-scheduler.kubeconfig --leader-elect=false --secure-port 0
until [ -e /run/node/dns ]; do sleep 0.1; done # dns.yaml creates the role for CoreDNS, which Kubernetes does not have
keep coredns coredns -conf /run/Corefile
wait
