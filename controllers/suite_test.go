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
	"sigs.k8s.io/controller-runtime/pkg/log"

	"sheaf.dev/sheaf/api/v1alpha1"
	"sheaf.dev/sheaf/internal/kubetest"
	"sheaf.dev/sheaf/internal/soaktest"
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

// onServer labels specs that a fake API server cannot answer: `make test` leaves them to `make test-api`, which runs
// all specs on a real one.
const onServer = "server"

// needs labels a spec so; why names what the fake lacks.
func needs(why string) ginkgo.Labels { return ginkgo.Label(onServer, why) }

// A real API server and etcd, or a fake (fake_test.go); tests play everything else of Kubernetes. Each test has a
// namespace of its own.
var (
	envConfig *rest.Config
	// api reads and writes without a cache.
	api       client.WithWatch
	envScheme = runtime.NewScheme()
	env       *kubetest.Server
)

// Cluster is how the API server of the tests is reached.
func Cluster() *rest.Config { return envConfig }

// noteFlakes tells the gate which specs passed at their second attempt.
var noteFlakes func(report *ginkgo.Report)

var _ = ginkgo.ReportAfterSuite("flakes", func(report ginkgo.Report) { noteFlakes(&report) })

func TestControllers(t *testing.T) {
	suite, reporter := ginkgo.GinkgoConfiguration()
	if !kubetest.Wanted() {
		suite.LabelFilter = "!" + onServer
		stats := ginkgo.PreviewSpecs("controllers", suite).PreRunStats
		t.Logf("%d of %d specs run, on a fake; the others are of make test-api: they need a real API server", stats.SpecsThatWillRun, stats.TotalSpecs)
	}
	if words := os.Getenv(kubetest.FocusVariable); words != "" {
		suite.FocusStrings = append(suite.FocusStrings, words)
	}
	suite.RandomSeed = int64(soaktest.Seed(t, 1)) // of the order of specs
	if !soaktest.Long() {
		suite.FlakeAttempts = 2 // processes of Kubernetes answer in real time
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
		operatorClient, acting = api, api
		return
	}
	env, err = kubetest.Start(filepath.Join("..", "config", "crd", "bases"))
	Expect(err).NotTo(HaveOccurred())
	envConfig = env.Config
	envConfig.QPS, envConfig.Burst = 1000, 2000
	envConfig.Wrap(answered.countWrites)
	reading := rest.CopyConfig(envConfig)
	reading.Wrap(answered.remember)
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
