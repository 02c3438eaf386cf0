package bench

import (
	"context"
	"path/filepath"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/status"

	"sheaf.dev/sheaf/internal/consensus/replica"
	"sheaf.dev/sheaf/internal/test/must"
)

// TestNodesWithTLS checks the setup with which copies over TLS are measured. Nodes that have authorities agree on a
// write, and none of them accepts plaintext. Nodes without authorities accept plaintext.
func TestNodesWithTLS(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	secure, err := newAuthorities()
	must.OK(t, err)
	defer secure.close()
	for name, authorities := range map[string]*authorities{"TLS": secure, "plaintext": nil} {
		t.Run(name, func(t *testing.T) {
			n, err := newNodes(ctx, filepath.Join(t.TempDir(), "nodes"), copiesOf, 1, authorities)
			must.OK(t, err)
			defer func() {
				if err := n.close(); err != nil {
					t.Error(err)
				}
			}()
			if _, err := n.leaders[0].Propose(replica.Write{ID: 1, Data: []byte("one")}).Wait(ctx); err != nil {
				t.Error(err)
			}
			for node, address := range n.addresses {
				conn, err := grpc.NewClient(address, grpc.WithTransportCredentials(insecure.NewCredentials()))
				must.OK(t, err)
				_, err = grpc_health_v1.NewHealthClient(conn).Check(ctx, &grpc_health_v1.HealthCheckRequest{})
				// A node does not have this service, so the call fails with Unimplemented if it reaches the node.
				if answered := status.Code(err) == codes.Unimplemented; answered != (authorities == nil) {
					t.Errorf("node %s answers in plaintext: %v: %v", node, answered, err)
				}
				if err := conn.Close(); err != nil {
					t.Error(err)
				}
			}
		})
	}
}
