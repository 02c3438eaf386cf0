// Package survey asks shards what their volumes contain, in order to rebuild a placement that etcd has lost.
package survey

import (
	"context"
	"errors"
	"fmt"

	"github.com/google/uuid"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"

	"sheaf.dev/sheaf/client/recordv1"
	"sheaf.dev/sheaf/internal/placement"
	"sheaf.dev/sheaf/internal/placement/rescue"
)

// Volume asks the shard at an address (host:port) what its volume contains. It uses the given credentials and options
// for the connection. Shards answer in every state.
func Volume(ctx context.Context, address string, by credentials.TransportCredentials,
	more ...grpc.DialOption) (v rescue.FoundVolume, err error) {
	conn, err := grpc.NewClient("passthrough:///"+address, append(more, grpc.WithNoProxy(),
		grpc.WithTransportCredentials(by),
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(256<<20)))...)
	if err != nil {
		return v, err
	}
	defer func() { err = errors.Join(err, conn.Close()) }()
	out, err := recordv1.NewAdminServiceClient(conn).DescribeVolume(ctx, &recordv1.DescribeVolumeRequest{})
	if err != nil {
		return v, err
	}
	return foundVolume(out)
}

// foundVolume checks the response of a shard, and converts it to a FoundVolume.
func foundVolume(out *recordv1.DescribeVolumeResponse) (v rescue.FoundVolume, err error) {
	var errs []error
	parse := func(what, s string) uuid.UUID {
		id, err := uuid.Parse(s)
		if err != nil {
			errs = append(errs, fmt.Errorf("%s %q: %w", what, s, err))
		}
		return id
	}
	v = rescue.FoundVolume{
		Shard: out.GetShard(), Address: out.GetAddress(), UUID: parse("volume", out.GetVolumeUuid()),
		Store:      parse("store", out.GetStoreUuid()),
		Generation: out.GetGeneration(),
	}
	if out.GetStep() > 0 {
		v.Step = placement.Step{Number: out.GetStep(), Nonce: parse("nonce of the step", out.GetStepNonce())}
	}
	if facts := out.GetFacts(); facts != nil {
		v.Facts = &rescue.FoundFacts{
			Routing: placement.Routing{Mode: placement.Mode(facts.GetRouting()), Groups: int(facts.GetGroups())},
			Copies:  int(facts.GetCopies()), GroupsMax: int(facts.GetGroupsMax()), CreatedUTC: facts.GetCreated(),
			Epoch: facts.GetEpoch(),
		}
	}
	for _, g := range out.GetGroups() {
		r := rescue.FoundReplica{
			Name: g.GetGroup(), UUID: parse("group", g.GetUuid()), RaftID: g.GetRaftId(), Voters: g.GetVoters(),
			Term:     g.GetTerm(),
			Outgoing: g.GetVotersOutgoing(), Learners: g.GetLearners(), ConfIndex: g.GetConfIndex(), Joining: g.GetJoining(),
			Ended:   g.GetEnded(),
			Foreign: g.GetForeign(), Committed: g.GetCommittedIndex(), Records: g.GetRecords(), Bytes: g.GetStoredBytes(),
			Leader: g.GetLeader(), Message: g.GetMessage(),
		}
		if g.GetStoreUuid() != "" {
			r.Store = parse("store of group "+g.GetGroup(), g.GetStoreUuid())
		}
		v.Replicas = append(v.Replicas, r)
	}
	return v, errors.Join(errs...)
}
