package kubetest

import (
	"os"
	"testing"
)

// Variable is set to Required by `make test-api`: tests that need an API server run. `make test-api-all` and soaks set it
// to Everything: so do specs that a fake can answer, too. Without it they are skipped, so that `make test` compiles no
// Kubernetes.
const (
	Variable   = "SHEAF_API"
	Required   = "required"
	Everything = "all"
)

// FocusVariable holds words of the specs to run, which `make test-api FOCUS=words` sets: only the packages of Ginkgo's
// specs have a flag for it.
const FocusVariable = "SHEAF_API_FOCUS"

// Wanted says that tests run on an API server.
func Wanted() bool { return os.Getenv(Variable) == Required || All() }

// All says that tests run on an API server also where a fake can answer them.
func All() bool { return os.Getenv(Variable) == Everything }

// Only skips a test that needs an API server, unless this is `make test-api`.
func Only(t testing.TB) {
	t.Helper()
	if !Wanted() {
		t.Skip("of make test-api: it needs a real API server")
	}
}
