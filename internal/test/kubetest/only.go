package kubetest

import (
	"os"
	"testing"
)

// Variable selects which tests run on an API server. The value Required, set by `make test-api`, selects the tests
// that need one. The value Everything, set by `make test-api-all` and by soaks, also selects the specs for which a
// fake is enough. Without a value, all of these tests are skipped, so that `make test` does not compile Kubernetes.
const (
	Variable   = "SHEAF_API"
	Required   = "required"
	Everything = "all"
)

// FocusVariable holds words from the names of the specs to run. `make test-api FOCUS=words` sets it, because only the
// packages of Ginkgo's specs have a flag for this.
const FocusVariable = "SHEAF_API_FOCUS"

// Wanted reports whether tests that need an API server have to run.
func Wanted() bool { return os.Getenv(Variable) == Required || All() }

// All reports whether tests for which a fake is enough must also run on an API server.
func All() bool { return os.Getenv(Variable) == Everything }

// Only skips a test that needs an API server, unless Wanted returns true.
func Only(t testing.TB) {
	t.Helper()
	if !Wanted() {
		t.Skip("of make test-api: it needs a real API server")
	}
}
