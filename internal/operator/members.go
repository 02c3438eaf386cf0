package operator

import (
	"context"
	"net/url"

	"sheaf.dev/sheaf/controllers/fleet"
	"sheaf.dev/sheaf/internal/placement/etcd"
)

// EtcdMembers asks a quorum who the members are, and each how it is.
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
