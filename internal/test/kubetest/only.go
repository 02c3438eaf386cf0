package kubetest

import (
	"os"
	"testing"
)

// Variable is an environment variable that selects which tests run on an API server. The value Required, which `make
// test-api` sets, selects the tests that need a real API server. The value Everything, which `make test-api-all` and
// soaks set, also selects the specs for which a fake would be enough. If the variable is not set, all of these tests
// are skipped, so that `make test` does not compile Kubernetes.
const (
	Variable   = "SHEAF_API"
	Required   = "required"
	Everything = "all"
)

// FocusVariable is an environment variable with words from the names of the specs to run. `make test-api FOCUS=words`
// sets it. A flag cannot be used for this, because only packages with Ginkgo specs define a focus flag, and the other
// packages would not accept it.
const FocusVariable = "SHEAF_API_FOCUS"

// Wanted reports whether tests that need an API server have to run.
func Wanted() bool { return os.Getenv(Variable) == Required || All() }

// All reports whether tests for which a fake is enough must also run on an API server.
func All() bool { return os.Getenv(Variable) == Everything }

// Only is for tests that need an API server. It skips such a test unless Wanted returns true.
func Only(t testing.TB) {
	t.Helper()
	if !Wanted() {
		t.Skip("of make test-api: it needs a real API server")
	}
}
