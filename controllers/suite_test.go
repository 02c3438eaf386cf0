package controllers

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"runtime/debug"
	"testing"
	"time"

	"github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	"k8s.io/apimachinery/pkg/runtime"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/log"

	"sheaf.dev/sheaf/api/v1alpha1"
	"sheaf.dev/sheaf/internal/test/kubetest"
	"sheaf.dev/sheaf/internal/test/soaktest"
)

// These names are declared here because package controllers cannot import Ginkgo with a dot: the name Fail would have
// two meanings.
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

// onServer labels specs that need a real API server, so that only `make test-api` runs them. onBoth labels specs that
// run on the fake and also in `make test-api`. All specs run on a real API server in `make test-api-all` and in `make
// soak-kube`.
const (
	onServer = "server"
	onBoth   = "both"
)

// needs labels a spec as onServer. The argument why names the feature that the fake lacks.
func needs(why string) ginkgo.Labels { return ginkgo.Label(onServer, why) }

// both labels a spec as onBoth. The argument why names the property that only the real API server can show.
func both(why string) ginkgo.Labels { return ginkgo.Label(onBoth, why) }

// These specs use a real API server and etcd, or a fake (fake_test.go). The tests simulate the other components of
// Kubernetes. Each test has a namespace of its own.
var (
	envConfig *rest.Config
	// api reads and writes without a cache.
	api       client.WithWatch
	envScheme = runtime.NewScheme()
	env       *kubetest.Server
)

// Cluster returns the configuration for access to the API server of the tests.
func Cluster() *rest.Config { return envConfig }

// noteFlakes reports to the gate which specs passed only at the second attempt.
var noteFlakes func(report *ginkgo.Report)

var _ = ginkgo.ReportAfterSuite("flakes", func(report ginkgo.Report) { noteFlakes(&report) })

func TestControllers(t *testing.T) {
	debug.SetGCPercent(1000) // garbage collection would take a fifth of a run on the fake, and memory is plentiful
	suite, reporter := ginkgo.GinkgoConfiguration()
	if words := os.Getenv(kubetest.FocusVariable); words != "" {
		suite.FocusStrings = append(suite.FocusStrings, words)
	}
	chosen := len(suite.FocusStrings) > 0 || suite.LabelFilter != ""
	allRights = kubetest.Wanted() && !chosen
	switch {
	case !kubetest.Wanted():
		suite.LabelFilter = "!" + onServer
		stats := ginkgo.PreviewSpecs("controllers", suite).PreRunStats
		t.Logf("%d of %d specs run, on a fake; the others are of make test-api: they need a real API server",
			stats.SpecsThatWillRun, stats.TotalSpecs)
	case !chosen && !kubetest.All() && !soaktest.Long():
		suite.LabelFilter = onServer + " || " + onBoth
		stats := ginkgo.PreviewSpecs("controllers", suite).PreRunStats
		t.Logf("%d of %d specs run, on a real API server; the others run on a fake in make test, and here in make "+
			"test-api-all", stats.SpecsThatWillRun, stats.TotalSpecs)
	}
	suite.RandomSeed = int64(soaktest.Seed(t, 1)) // determines the order of the specs
	if !soaktest.Long() {
		suite.FlakeAttempts = 2 // the processes of Kubernetes may be slow on a busy machine
	}
	noteFlakes = func(report *ginkgo.Report) {
		for n := range report.SpecReports {
			if spec := &report.SpecReports[n]; !spec.Failed() && spec.NumAttempts > 1 {
				soaktest.Note(t, "FLAKE controllers: %s", spec.FullText())
			}
		}
	}
	RegisterFailHandler(ginkgo.Fail)
	SetDefaultEventuallyTimeout(time.Minute)
	SetDefaultEventuallyPollingInterval(50 * time.Millisecond)
	ginkgo.RunSpecs(t, "controllers", suite, reporter)
}

var _ = ginkgo.BeforeSuite(func(ctx context.Context) {
	var err error
	log.SetLogger(ginkgo.GinkgoLogr)
	Expect(errors.Join(clientgoscheme.AddToScheme(envScheme), v1alpha1.AddToScheme(envScheme))).To(Succeed())
	if !kubetest.Wanted() {
		api, err = newFake(filepath.Join("..", "config", "crd", "bases"))
		Expect(err).NotTo(HaveOccurred())
		actOnFake()
		return
	}
	env, err = kubetest.Start(filepath.Join("..", "config", "crd", "bases"))
	Expect(err).NotTo(HaveOccurred())
	envConfig = env.Config
	envConfig.QPS, envConfig.Burst = 1000, 2000
	envConfig.Wrap(sharedMemo.countWrites)
	reading := rest.CopyConfig(envConfig)
	reading.Wrap(sharedMemo.remember)
	api, err = client.NewWithWatch(reading, client.Options{Scheme: envScheme})
	Expect(err).NotTo(HaveOccurred())
	actAsOperator(ctx)
})

var _ = ginkgo.AfterSuite(func() {
	Expect(stopEtcd()).To(Succeed())
	if env != nil {
		Expect(env.Stop()).To(Succeed())
	}
})
