package placement

import (
	"time"

	"sheaf.dev/sheaf/internal/pause"
)

// retryMax is the longest pause between two tries of what etcd did not answer.
const retryMax = 2 * time.Second

// retries are the tries of what etcd did not answer: of lists, watches, registrations, plans and grants.
func retries() *pause.Tries {
	return &pause.Tries{Doubling: pause.Doubling{First: 50 * time.Millisecond, Most: retryMax}}
}
