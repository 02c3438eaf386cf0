//go:build e2e

// Package e2e tests Sheaf on a real Kubernetes, with real kubelets, containers and file systems, as its users would use
// it. README.md describes which tests belong in this package.
package e2e

import (
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
)

// The operator is installed once for the suite.
const (
	operatorNamespace = "sheaf-system"
	operatorName      = "sheaf-operator"
)

// These are the images under test. They were loaded into the cluster beforehand.
var (
	image, operatorImage = os.Getenv("E2E_IMAGE"), os.Getenv("E2E_OPERATOR_IMAGE")
	archiveImage         = os.Getenv("E2E_ARCHIVE_IMAGE")
)

// nextImage and nextOperatorImage are the images for upgrades. They behave like the first ones but have another
// digest.
var nextImage, nextOperatorImage = os.Getenv("E2E_NEXT_IMAGE"), os.Getenv("E2E_NEXT_OPERATOR_IMAGE")

// smoke marks the scenarios that CI runs alone on its machine. There is one for each behaviour that only kubelets,
// containers and Helm can show. `make soak-kube` and `make e2e` run all scenarios.
var smoke = Label("smoke")

func TestE2E(t *testing.T) {
	RegisterFailHandler(Fail)
	SetDefaultEventuallyPollingInterval(250 * time.Millisecond)
	RunSpecs(t, "sheaf on Kubernetes")
}

// endOperatorWatch stops reading the operators' logs and checks them. It is set only in the suite's first process,
// which watches the operators.
var endOperatorWatch func()

// The first of the suite's processes installs the operator for all processes.
var _ = SynchronizedBeforeSuite(func() {
	Expect(os.Getenv("KUBECONFIG")).NotTo(BeEmpty(), "KUBECONFIG names the cluster: run this by `make e2e`")
	Expect(image).NotTo(BeEmpty(), "E2E_IMAGE, E2E_OPERATOR_IMAGE and E2E_ARCHIVE_IMAGE name the images: run this by "+
		"`make e2e`")
	endOperatorWatch = watchOperators()
	installOperator()
}, func() {})

// This runs when all processes are done.
var _ = SynchronizedAfterSuite(func() {}, func() {
	if endOperatorWatch != nil {
		endOperatorWatch()
	}
})

// Failures, and specs that passed in their second attempt, are also written to the file E2E_FAILURES, which is shown
// at the end of a long log.
var _ = ReportAfterSuite("what failed", func(report Report) {
	path := os.Getenv("E2E_FAILURES")
	if path == "" {
		return
	}
	var words strings.Builder
	for n := range report.SpecReports {
		spec := &report.SpecReports[n]
		if !spec.Failed() && spec.NumAttempts > 1 {
			fmt.Fprintf(&words, "FLAKE e2e: %s\n", spec.FullText())
		}
		if spec.Failed() {
			message := spec.Failure.Message
			message = strings.Join(strings.Fields(message), " ")
			if most := 1000; len(message) > most {
				message = message[:most/2] + " [...] " + message[len(message)-most/2:]
			}
			fmt.Fprintf(&words, "%s\n  at %s\n  %s\n", spec.FullText(), spec.Failure.Location, message)
			for _, entry := range spec.ReportEntries {
				fmt.Fprintf(&words, "  noted: %s %s\n", entry.Name, entry.StringRepresentation())
			}
		}
	}
	Expect(os.WriteFile(path, []byte(words.String()), 0o600)).To(Succeed())
})

// installOperator runs the first of the two Helm commands of the README.
func installOperator(values ...string) {
	GinkgoHelper()
	installOperatorOf("charts/sheaf-operator", values...)
}

// installOperatorOf installs the operator from the chart in the given folder.
func installOperatorOf(chart string, values ...string) {
	GinkgoHelper()
	args := []string{
		"upgrade", "--install", operatorName, chart, "--namespace", operatorNamespace, "--create-namespace", "--wait",
		"--timeout", "3m",
		"--set", "image.repository=" + repository(operatorImage), "--set", "image.tag=" + tag(operatorImage),
		"--set", "sheaf.image.repository=" + repository(image), "--set", "sheaf.image.tag=" + tag(image),
		"--set", "archive.image.repository=" + repository(archiveImage), "--set", "archive.image.tag=" + tag(archiveImage),
	}
	for _, v := range values {
		args = append(args, "--set", v)
	}
	must(4*time.Minute, "", "helm", args...)
}

func repository(image string) string { return image[:strings.LastIndex(image, ":")] }
func tag(image string) string        { return image[strings.LastIndex(image, ":")+1:] }
