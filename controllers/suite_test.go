package controllers

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	"k8s.io/apimachinery/pkg/runtime"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/envtest"
	"sigs.k8s.io/controller-runtime/pkg/log"

	"sheaf.dev/sheaf/api/v1alpha1"
)

// Ginkgo's words. It is not imported with a dot, as Fail is an outcome of steps here.
var (
	Describe      = ginkgo.Describe
	Context       = ginkgo.Context
	It            = ginkgo.It
	By            = ginkgo.By
	BeforeEach    = ginkgo.BeforeEach
	DeferCleanup  = ginkgo.DeferCleanup
	DescribeTable = ginkgo.DescribeTable
	Entry         = ginkgo.Entry
	GinkgoHelper  = ginkgo.GinkgoHelper
)

// A real API server and etcd; tests play everything else of Kubernetes. Each test has a namespace of its own.
var (
	envConfig *rest.Config
	// api reads and writes without a cache.
	api       client.WithWatch
	envScheme = runtime.NewScheme()
	env       *envtest.Environment
)

// assets is where kube-apiserver and etcd are.
func assets() (folder string, err error) {
	const variable = "KUBEBUILDER_ASSETS"
	asked := os.Getenv(variable)
	folder = asked
	if asked == "" {
		if folder, err = filepath.Abs(filepath.Join("..", "bin", "kube")); err != nil {
			return "", err
		}
	}
	for _, program := range []string{"kube-apiserver", "etcd"} {
		if _, err := os.Stat(filepath.Join(folder, program)); err != nil {
			if asked != "" {
				return "", err // what was asked for has to run
			}
			return "", nil
		}
	}
	return folder, nil
}

func TestControllers(t *testing.T) {
	folder, err := assets()
	if err != nil {
		t.Fatal(err)
	}
	if folder == "" {
		t.Skip("no kube-apiserver and etcd in bin/kube: run make envtest-assets, or set KUBEBUILDER_ASSETS")
	}
	RegisterFailHandler(ginkgo.Fail)
	SetDefaultEventuallyTimeout(time.Minute)
	SetDefaultEventuallyPollingInterval(50 * time.Millisecond)
	ginkgo.RunSpecs(t, "controllers")
}

var _ = ginkgo.BeforeSuite(func(ctx context.Context) {
	folder, err := assets()
	Expect(err).NotTo(HaveOccurred())
	log.SetLogger(ginkgo.GinkgoLogr)
	Expect(errors.Join(clientgoscheme.AddToScheme(envScheme), v1alpha1.AddToScheme(envScheme))).To(Succeed())
	env = &envtest.Environment{
		Scheme:                   envScheme,
		CRDDirectoryPaths:        []string{filepath.Join("..", "config", "crd", "bases")},
		ErrorIfCRDPathMissing:    true,
		BinaryAssetsDirectory:    folder,
		ControlPlaneStartTimeout: 5 * time.Minute,
		ControlPlaneStopTimeout:  time.Minute,
	}
	envConfig, err = env.Start()
	Expect(err).NotTo(HaveOccurred())
	envConfig.QPS, envConfig.Burst = 1000, 2000
	api, err = client.NewWithWatch(envConfig, client.Options{Scheme: envScheme})
	Expect(err).NotTo(HaveOccurred())
})

var _ = ginkgo.AfterSuite(func() {
	if env != nil {
		Expect(env.Stop()).To(Succeed())
	}
})
