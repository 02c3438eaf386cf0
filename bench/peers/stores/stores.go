// Package stores are the stores that are compared in one process: ours and its embedded peers.
package stores

import "sheaf.dev/sheaf/bench/peers/store"

// All lists them. Add yours here.
func All() []store.Kind {
	return append(sheafKinds(), pebbleKind(), badgerKind(), bboltKind(), sqliteKind(), filesKind())
}

// Find finds a store by its name; nil where there is none.
func Find(name string) *store.Kind {
	for _, k := range All() {
		if k.Name == name {
			return &k
		}
	}
	return nil
}
