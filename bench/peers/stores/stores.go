// Package stores provides Sheaf and its embedded peers as stores that are compared inside a process.
package stores

import "sheaf.dev/sheaf/bench/peers/store"

// All returns all stores. A new store must be added to this list.
func All() []store.Kind {
	return append(sheafKinds(), pebbleKind(), badgerKind(), bboltKind(), sqliteKind(), filesKind())
}

// Find returns the store with the given name, or nil.
func Find(name string) *store.Kind {
	for _, k := range All() {
		if k.Name == name {
			return &k
		}
	}
	return nil
}
