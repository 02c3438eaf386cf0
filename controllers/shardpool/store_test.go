package shardpool

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"

	"sheaf.dev/sheaf/api/v1alpha1"
	"sheaf.dev/sheaf/internal/test/must"
)

// A pool reads the Secret of an external etcd, because the pod template depends on it. If the Secret exists but lacks
// the authority, the pool continues to maintain running shards, and the store reports what is missing.
func TestPoolContinuesWithIncompleteEtcdSecret(t *testing.T) {
	scheme := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{corev1.AddToScheme, v1alpha1.AddToScheme} {
		must.OK(t, add(scheme))
	}
	meta := metav1.ObjectMeta{Namespace: "prod", Name: "quotes"}
	store := &v1alpha1.RecordStore{ObjectMeta: meta, Spec: v1alpha1.RecordStoreSpec{Etcd: v1alpha1.Etcd{
		External: &v1alpha1.ExternalEtcd{Endpoints: []string{"https://etcd.example:2379"},
			TLSSecretRef: &corev1.LocalObjectReference{Name: "etcd-tls"}}}},
		Status: v1alpha1.RecordStoreStatus{StoreUID: "5d0d6a1c-0c1e-4e64-8a4f-0a6f3f0f6a55"}}
	pool := &v1alpha1.ShardPool{ObjectMeta: metav1.ObjectMeta{Namespace: "prod", Name: "ssd"},
		Spec: v1alpha1.ShardPoolSpec{StoreRef: v1alpha1.StoreReference{Name: "quotes"}}}
	c := fake.NewClientBuilder().WithScheme(scheme).WithObjects(store, pool).Build()
	find := func() (*work, string) {
		w := &work{r: &Reconciler{Client: c, Live: c}, pool: pool}
		return w, findStore(t.Context(), w).Reason()
	}
	if _, reason := find(); reason != "EtcdSecretMissing" {
		t.Errorf("without the Secret: %q", reason)
	}
	secret := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: "prod", Name: "etcd-tls"},
		Data: map[string][]byte{corev1.TLSCertKey: []byte("certificate")}}
	must.OK(t, c.Create(t.Context(), secret))
	if w, reason := find(); reason != "" || w.store == nil || !w.etcd.ClientCert {
		t.Errorf("without ca.crt: %q, the store %v, etcd %+v", reason, w.store != nil, w.etcd)
	}
}
