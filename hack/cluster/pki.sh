# shellcheck shell=bash disable=SC2154,SC2129 # state, name and router are cluster's
# Sourced by cluster. Makes certificates and kubeconfigs, which are valid for 30 days. Each process has a name of its
# own, so that RBAC and the Node authorizer treat it as in any cluster.

# pki_cert FILE SUBJECT [NAMES] writes FILE.crt and FILE.key in the control plane's folder, signed by its CA.
pki_cert() {
  local d=$state/control/pki
  openssl req -new -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -keyout "$d/$1.key" -subj "$2" 2>>"$d/log" |
    openssl x509 -req -CA "$d/ca.crt" -CAkey "$d/ca.key" -set_serial "0x$(openssl rand -hex 8)" -days 30 -out "$d/$1.crt" \
      -extfile <(echo "${3:+subjectAltName=$3}") 2>>"$d/log" || die "openssl could not make the certificate $1; see $d/log"
}

# pki_kubeconfig CERT FILE writes a self-contained kubeconfig, which can be copied anywhere.
pki_kubeconfig() {
  local d=$state/control/pki
  cat >"$2" <<J
{"apiVersion": "v1", "kind": "Config", "current-context": "$name",
 "contexts": [{"name": "$name", "context": {"cluster": "$name", "user": "$1"}}],
 "clusters": [{"name": "$name", "cluster": {"server": "https://$router:6443", "certificate-authority-data": "$(base64 -w0 "$d/ca.crt")"}}],
 "users": [{"name": "$1", "user": {"client-certificate-data": "$(base64 -w0 "$d/$1.crt")", "client-key-data": "$(base64 -w0 "$d/$1.key")"}}]}
J
  chmod 600 "$2"
}

pki_control() {
  local d=$state/control/pki c
  mkdir -p "$d"
  openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -keyout "$d/ca.key" -out "$d/ca.crt" -days 30 -subj /CN=cluster-ca 2>>"$d/log"
  openssl genrsa -out "$d/sa.key" 2048 2>>"$d/log"
  openssl rsa -in "$d/sa.key" -pubout -out "$d/sa.pub" 2>>"$d/log"
  pki_cert apiserver /CN=kube-apiserver "IP:$router,IP:198.19.0.1,IP:127.0.0.1,DNS:kubernetes,DNS:kubernetes.default,DNS:kubernetes.default.svc,DNS:kubernetes.default.svc.cluster.local"
  pki_cert etcd /CN=etcd IP:127.0.0.1
  pki_cert kubelet-client /O=system:masters/CN=kube-apiserver-kubelet-client
  pki_cert admin /O=system:masters/CN=admin
  pki_kubeconfig admin "$KUBECONFIG"
  for c in kube-controller-manager kube-scheduler kube-proxy coredns; do
    pki_cert $c "/CN=system:$c"
    pki_kubeconfig $c "$state/control/$c.kubeconfig"
  done
}

pki_node() { # pki_node NODE
  pki_cert "$1" "/O=system:nodes/CN=system:node:$1"
  pki_kubeconfig "$1" "$state/$1/kubelet.kubeconfig"
  cp "$state/control/kube-proxy.kubeconfig" "$state/control/pki/ca.crt" "$state/$1/"
}
