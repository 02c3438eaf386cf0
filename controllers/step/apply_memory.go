package step

import (
	"sync"

	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// appliedMax bounds what is remembered: some objects for each of a few thousand shards, about 1 MB.
const appliedMax = 1 << 14

// appliedMemory remembers which live objects were as wanted: comparing each of them again at every look was most of
// what an idle operator with a thousand shards computed. An object with the same UID and resource version is the same
// to the last byte, and a wanted one with the same hash too, so what was found then is still so. It saves work and
// decides nothing: what is not remembered is compared. Safe for concurrent use.
type appliedMemory struct {
	mu      sync.Mutex
	objects map[types.UID]appliedObject
}

// appliedObject is what was compared.
type appliedObject struct{ resourceVersion, wanted string }

// asWanted of this process.
var asWanted = &appliedMemory{objects: map[types.UID]appliedObject{}}

// is tells whether a live object was found to be as an object with the hash wanted says.
func (s *appliedMemory) is(live client.Object, wanted string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	found, ok := s.objects[live.GetUID()]
	return ok && found == appliedObject{live.GetResourceVersion(), wanted}
}

// note remembers it. An object without a UID or a resource version, which only tests have, is not remembered.
func (s *appliedMemory) note(live client.Object, wanted string) {
	if live.GetUID() == "" || live.GetResourceVersion() == "" {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.objects) >= appliedMax {
		clear(s.objects) // those that are still there are compared once more
	}
	s.objects[live.GetUID()] = appliedObject{live.GetResourceVersion(), wanted}
}
