package etcd

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	clientv3 "go.etcd.io/etcd/client/v3"
)

// peerTimeout limits the time for querying one member.
const peerTimeout = 2 * time.Second

// Peer is one member of a cluster. It combines the cluster's record of the member with the status that the member
// itself reports.
type Peer struct {
	ID         uint64
	Name       string // empty if the member was added and has not started yet
	PeerURLs   []string
	ClientURLs []string
	Learner    bool // the member copies the log, but has no vote

	Answers  bool
	Trouble  string // why the member is not healthy; empty if it is healthy
	LeaderID uint64 // id of the leader that the member follows; its own id if it leads; 0 if it knows no leader
	Index    uint64 // index of the last committed entry that the member has stored
	DBBytes  int64
	Version  string
}

// Leader reports whether the member is the leader.
func (p *Peer) Leader() bool { return p.LeaderID != 0 && p.LeaderID == p.ID }

// Healthy reports whether the member responds, knows a leader (or leads), and has a vote.
func (p *Peer) Healthy() bool { return p.Trouble == "" && !p.Learner }

// Label returns the member's name, or its peer URLs if it has no name yet.
func (p *Peer) Label() string {
	if p.Name != "" {
		return p.Name
	}
	return strings.Join(p.PeerURLs, ",")
}

// View describes a cluster from the perspective of a quorum of its members.
type View struct {
	ClusterID uint64
	Peers     []Peer // sorted by name
}

// Find returns the first member for which is() returns true, or nil if there is none.
func (v *View) Find(is func(*Peer) bool) *Peer {
	for n := range v.Peers {
		if is(&v.Peers[n]) {
			return &v.Peers[n]
		}
	}
	return nil
}

// Healthy returns the number of healthy members.
func (v *View) Healthy() (n int) {
	for i := range v.Peers {
		if v.Peers[i].Healthy() {
			n++
		}
	}
	return n
}

// MayRemove returns an error if the cluster must not remove the member with this id, because the remaining members
// would have no quorum.
func (v *View) MayRemove(id uint64) error {
	voters, well := 0, 0
	for n := range v.Peers {
		if p := &v.Peers[n]; p.ID != id && !p.Learner {
			voters++
			if p.Healthy() {
				well++
			}
		}
	}
	if well < voters/2+1 {
		return fmt.Errorf(
			"%d of the %d other members are well, which is no quorum: etcd would answer no more. Bring others back first", well,
			voters)
	}
	return nil
}

// Look reads the member list from a quorum, and then requests the status of each member. It returns an error if no
// quorum responds.
func Look(ctx context.Context, client *clientv3.Client) (*View, error) {
	return look(ctx, client) // this request goes through the leader, so it fails without a quorum
}

// LookWithoutQuorum is like Look, but accepts any member's list, which may be outdated.
func LookWithoutQuorum(ctx context.Context, client *clientv3.Client) (*View, error) {
	return look(ctx, client, clientv3.WithSerializable())
}

func look(ctx context.Context, client *clientv3.Client, options ...clientv3.OpOption) (*View, error) {
	bounded, cancel := context.WithTimeout(ctx, peerTimeout)
	defer cancel()
	list, err := client.MemberList(bounded, options...)
	if err != nil {
		return nil, fmt.Errorf("list the members of etcd: %w", err)
	}
	view := &View{ClusterID: list.Header.GetClusterId(), Peers: make([]Peer, len(list.Members))}
	var wait sync.WaitGroup
	for n, m := range list.Members {
		view.Peers[n] = Peer{ID: m.GetID(), Name: m.GetName(), PeerURLs: m.GetPeerURLs(), ClientURLs: m.GetClientURLs(),
			Learner: m.GetIsLearner()}
		wait.Go(func() { view.Peers[n].ask(ctx, client, view.ClusterID) })
	}
	wait.Wait()
	slices.SortFunc(view.Peers, func(a, b Peer) int { return strings.Compare(a.Label(), b.Label()) })
	return view, nil
}

// ask requests the status of the member from the member itself.
func (p *Peer) ask(ctx context.Context, client *clientv3.Client, cluster uint64) {
	if p.Name == "" || len(p.ClientURLs) == 0 {
		p.Trouble = "was added, and has not started yet"
		return
	}
	var answer *clientv3.StatusResponse
	var err error
	for _, url := range p.ClientURLs {
		bounded, cancel := context.WithTimeout(ctx, peerTimeout)
		answer, err = client.Status(bounded, url)
		cancel()
		if err == nil {
			break
		}
	}
	if err != nil {
		p.Trouble = "does not answer: " + plainWords(err)
		return
	}
	said := (*pb.StatusResponse)(answer)
	p.Answers, p.LeaderID = true, said.GetLeader()
	p.Index, p.DBBytes, p.Version = said.GetRaftIndex(), said.GetDbSize(), said.GetVersion()
	switch {
	case said.GetHeader().GetMemberId() != p.ID || said.GetHeader().GetClusterId() != cluster:
		p.Answers, p.Trouble = false, "does not answer: another etcd answers at its address"
	case said.GetLeader() == 0:
		p.Trouble = "knows no leader"
	case len(said.GetErrors()) > 0:
		p.Trouble = strings.Join(said.GetErrors(), "; ")
	case p.Learner:
		p.Trouble = "is a learner: it copies the log of the others, and votes once it has it"
	}
}

// plainWords returns an error's message without the prefix that gRPC adds.
func plainWords(err error) string {
	words := strings.TrimPrefix(err.Error(), "rpc error: code = ")
	if _, after, found := strings.Cut(words, "desc = "); found {
		words = after
	}
	return words
}
