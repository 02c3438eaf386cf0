package v1alpha1_test

import (
	"fmt"
	"os"
	"sync"
	"testing"

	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/rest"

	"sheaf.dev/sheaf/api/v1alpha1"
	"sheaf.dev/sheaf/internal/test/kubetest"
)

const crdFolder = "../../config/crd/bases"

// The tests that begin with kubetest.Only share this API server. It runs only in `make test-api`.
var (
	server   *kubetest.Server
	cluster  dynamic.Interface
	warnings = &warningLog{}
)

// kinds maps the name of each kind of this package to its resource.
var kinds = map[string]schema.GroupVersionResource{
	"RecordStore":   v1alpha1.GroupVersion.WithResource("recordstores"),
	"ShardPool":     v1alpha1.GroupVersion.WithResource("shardpools"),
	"Shard":         v1alpha1.GroupVersion.WithResource("shards"),
	"DiskSet":       v1alpha1.GroupVersion.WithResource("disksets"),
	"RecordGrant":   v1alpha1.GroupVersion.WithResource("recordgrants"),
	"RecordTenant":  v1alpha1.GroupVersion.WithResource("recordtenants"),
	"RecordArchive": v1alpha1.GroupVersion.WithResource("recordarchives"),
	"RecordBackup":  v1alpha1.GroupVersion.WithResource("recordbackups"),
}

// warningLog keeps the warnings of the API server.
type warningLog struct {
	mu   sync.Mutex
	text []string
}

func (w *warningLog) HandleWarningHeader(_ int, _ string, text string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.text = append(w.text, text)
}

func (w *warningLog) all() []string {
	w.mu.Lock()
	defer w.mu.Unlock()
	return append([]string(nil), w.text...)
}

func TestMain(m *testing.M) {
	if !kubetest.Wanted() {
		os.Exit(m.Run())
	}
	var err error
	if server, err = kubetest.Start(crdFolder); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	config := rest.CopyConfig(server.Config)
	config.WarningHandler = warnings
	code := 1
	if cluster, err = dynamic.NewForConfig(config); err != nil {
		fmt.Fprintln(os.Stderr, err)
	} else {
		code = m.Run()
	}
	if err := server.Stop(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		code = 1
	}
	os.Exit(code)
}
