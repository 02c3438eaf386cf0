package step

import (
	"sync"

	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// appliedMax is the maximum number of remembered objects: several for each of a few thousand shards, in about 1 MB.
const appliedMax = 1 << 14

// appliedMemory remembers which live objects were as wanted. Without it, an idle operator with a thousand shards
// spent most of its CPU time comparing them again. An object with the same UID and resource version is unchanged, and
// so is a wanted object with the same hash; the earlier result therefore still holds. The memory only saves work: an
// object that is not remembered is compared. Safe for concurrent use.
type appliedMemory struct {
	mu      sync.Mutex
	objects map[types.UID]appliedObject
}

// appliedObject identifies a compared pair.
type appliedObject struct{ resourceVersion, wanted string }

// asWanted holds the objects that this process remembers.
var asWanted = &appliedMemory{objects: map[types.UID]appliedObject{}}

// is reports whether a live object was found to match the wanted object with the hash wanted.
func (s *appliedMemory) is(live client.Object, wanted string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	found, ok := s.objects[live.GetUID()]
	return ok && found == appliedObject{live.GetResourceVersion(), wanted}
}

// note records such a match. It ignores objects without a UID or a resource version, which exist only in tests.
func (s *appliedMemory) note(live client.Object, wanted string) {
	if live.GetUID() == "" || live.GetResourceVersion() == "" {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.objects) >= appliedMax {
		clear(s.objects) // objects that still exist are compared once more
	}
	s.objects[live.GetUID()] = appliedObject{live.GetResourceVersion(), wanted}
}
