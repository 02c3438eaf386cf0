package operator

import (
	"context"
	"net/url"

	"sheaf.dev/sheaf/controllers/fleet"
	"sheaf.dev/sheaf/internal/placement/etcd"
)

// EtcdMembers asks a quorum for the members, and then each member for its state.
func (p *placed) EtcdMembers(ctx context.Context) ([]fleet.EtcdMember, error) {
	view, err := etcd.Look(ctx, p.client)
	if err != nil {
		return nil, err
	}
	var out []fleet.EtcdMember
	for n := range view.Peers {
		peer := &view.Peers[n]
		for _, address := range peer.PeerURLs {
			if parsed, err := url.Parse(address); err == nil {
				out = append(out, fleet.EtcdMember{PeerAddress: parsed.Host, Trouble: peer.Trouble})
			}
		}
	}
	return out, nil
}
