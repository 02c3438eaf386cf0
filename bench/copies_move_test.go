package bench

import (
	"context"
	"os"
	"path/filepath"
	"testing"
	"time"

	"sheaf.dev/sheaf/internal/test/must"
)

// TestDoorsServeOnlyTheirStore checks the setup that measures moves over TLS. A door sends a group only to a shard of
// its own store. It sends nothing to a peer that speaks plaintext, or to a peer whose certificate is from another
// authority. Without this test, a door that speaks plaintext by mistake could be measured as one that speaks TLS.
func TestDoorsServeOnlyTheirStore(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	n, err := newNodes(ctx, filepath.Join(t.TempDir(), "nodes"), 1, 1, nil)
	must.OK(t, err)
	defer func() {
		if err := n.close(); err != nil {
			t.Error(err)
		}
	}()
	bytes, err := n.fill(1 << 20)
	must.OK(t, err)
	doors := map[string]*door{}
	for _, name := range []string{"plaintext", "TLS", "TLS of another authority"} {
		var secure *authorities
		if name != "plaintext" {
			if secure, err = newAuthorities(); err != nil {
				t.Fatal(err)
			}
			defer secure.close()
		}
		if doors[name], err = n.open(ctx, n.nodes[0], secure); err != nil {
			t.Fatal(err)
		}
		defer doors[name].close()
	}
	addresses := map[string]string{}
	for name, d := range doors {
		addresses[name] = d.address
	}
	for host, address := range addresses {
		for guest, d := range doors {
			t.Run(guest+" from "+host, func(t *testing.T) {
				to := t.TempDir()
				d.address = address
				err := n.install(ctx, to, d)
				if guest != host {
					if err == nil {
						t.Error("the group was sent")
					}
					return
				}
				must.OK(t, err)
				if got := bytesIn(t, to); got < bytes {
					t.Errorf("%d bytes came of %d", got, bytes)
				}
			})
		}
	}
}

// bytesIn returns the total size of the files in a folder.
func bytesIn(t *testing.T, dir string) (bytes int64) {
	t.Helper()
	entries, err := os.ReadDir(dir)
	must.OK(t, err)
	for _, e := range entries {
		info, err := e.Info()
		must.OK(t, err)
		bytes += info.Size()
	}
	return bytes
}
