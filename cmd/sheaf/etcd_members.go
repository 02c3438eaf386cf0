package main

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"

	"sheaf.dev/sheaf/internal/local/cli"
	"sheaf.dev/sheaf/internal/placement/etcd"
)

// etcdAt holds the connection flags of commands that connect to etcd directly.
type etcdAt struct {
	client etcd.ClientConfig
	tls    ownTLS
}

func (f *etcdAt) add(cmd *cobra.Command) {
	etcdVar(cmd, &f.client)
	f.tls.add(cmd)
}

// hint suggests what to do if no member answers.
func (f *etcdAt) hint() string {
	if f.client.Credentials == nil && !f.client.UsesFiles() {
		return ". It was asked without TLS: where it speaks TLS, give --tls-dir, or --etcd-ca, --etcd-cert and --etcd-key"
	}
	return ""
}

// onEtcd makes cmd connect directly to etcd and call run.
func onEtcd(a *app, cmd *cobra.Command, at *etcdAt, run func(ctx context.Context, client *clientv3.Client,
	args []string) error) *cobra.Command {
	at.add(cmd)
	cmd.RunE = a.Body(func(ctx context.Context, args []string) (err error) {
		ctx, cancel := cli.Within(ctx, a.timeout)
		defer cancel()
		if len(at.client.Endpoints) == 0 {
			return cli.Usagef("--etcd is empty: give host:port")
		}
		own, err := at.tls.open()
		if err != nil {
			return err
		}
		if own != nil {
			defer own.Close()
			if at.client.UsesFiles() {
				return cli.Usagef(
					"--tls-dir (or $%s) and --etcd-ca, --etcd-cert, --etcd-key both say how etcd is spoken to: give one of them",
					envTLSDir)
			}
			at.client.Credentials = etcd.Credentials(own)
		}
		client, err := etcd.Dial(at.client)
		if err != nil {
			return err
		}
		defer func() { err = errors.Join(err, client.Close()) }()
		return run(ctx, client, args)
	})
	return cmd
}

func etcdMembersCommand(a *app) *cobra.Command {
	var at etcdAt
	return onEtcd(a, &cobra.Command{
		Use:   "members",
		Short: "Show the members of etcd and how each of them is",
		Long: `Shows the members that a quorum of etcd knows, with what each says of itself. Where there is no
quorum, it shows what any member that answers knows, and fails.`,
		Example: `  sheaf etcd members --etcd etcd-0:2379,etcd-1:2379,etcd-2:2379
  kubectl exec quotes-etcd-0 -- /sheaf etcd members`,
		Args: cobra.NoArgs,
	}, &at, func(ctx context.Context, client *clientv3.Client, _ []string) error {
		view, noQuorum := etcd.Look(ctx, client)
		if noQuorum != nil {
			var err error
			if view, err = etcd.LookWithoutQuorum(ctx, client); err != nil {
				return fmt.Errorf("no member of etcd answers at %s: %w%s", strings.Join(at.client.Endpoints, ", "), err, at.hint())
			}
		}
		return errors.Join(printMembers(a.Out, view), noQuorumError(noQuorum))
	})
}

// noQuorumError adds to err the action that an administrator can take if too few members remain. It returns nil for
// nil.
func noQuorumError(err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf(
		"etcd has no quorum, and what is shown may be old: bring members back. Where too many of them are lost for good, "+
			"see docs/operations/etcd.md, \"etcd is lost\" (%w)", err)
}

// memberRow is a member in the command's output.
type memberRow struct {
	Name    string `json:"name"`
	ID      string `json:"id"`
	Role    string `json:"role"`
	Healthy bool   `json:"healthy"`
	Trouble string `json:"trouble,omitempty"`
	Index   uint64 `json:"index"`
	DBBytes int64  `json:"dbBytes"`
	Version string `json:"version"`
	Address string `json:"address"`
}

func memberRowOf(p *etcd.Peer) memberRow {
	row := memberRow{
		Name: p.Name, ID: strconv.FormatUint(p.ID, 16), Role: "voter", Healthy: p.Healthy(), Trouble: p.Trouble,
		Index:   p.Index,
		DBBytes: p.DBBytes, Version: p.Version, Address: strings.Join(p.PeerURLs, ","),
	}
	switch {
	case p.Learner:
		row.Role = "learner"
	case p.Leader():
		row.Role = "leader"
	}
	return row
}

func printMembers(out *cli.Output, view *etcd.View) error {
	rows := make([]memberRow, 0, len(view.Peers))
	for n := range view.Peers {
		rows = append(rows, memberRowOf(&view.Peers[n]))
	}
	if out.JSON {
		return out.WriteJSON(rows)
	}
	t := cli.Table{Header: []string{"NAME", "ID", "ROLE", "INDEX", "SIZE", "VERSION", "ADDRESS", "STATE"}}
	for _, r := range rows {
		state := cli.Cell{Text: "well", Colour: cli.Green}
		if !r.Healthy {
			state = cli.Cell{Text: r.Trouble, Colour: cli.Red}
			if r.Role == "learner" {
				state.Colour = cli.Yellow
			}
		}
		index, size := "", ""
		if r.Index > 0 {
			index, size = strconv.FormatUint(r.Index, 10), cli.FormatBytes(r.DBBytes)
		}
		t.Rows = append(t.Rows, []cli.Cell{
			cli.Text(r.Name), cli.Text(r.ID), cli.Text(r.Role), cli.Number(index), cli.Number(size), cli.Text(r.Version),
			cli.Text(r.Address), state,
		})
	}
	if err := out.WriteTable(t); err != nil {
		return err
	}
	out.Sayf("%d of %d members are well", view.Healthy(), len(view.Peers))
	return nil
}

// memberNamed asks the cluster for its members, and returns the one with this name, hexadecimal ID or peer address.
func memberNamed(ctx context.Context, client *clientv3.Client, name string) (*etcd.View, *etcd.Peer, error) {
	view, err := etcd.Look(ctx, client)
	if err != nil {
		return nil, nil, noQuorumError(err)
	}
	p := view.Find(func(p *etcd.Peer) bool {
		return p.Name == name || strconv.FormatUint(p.ID, 16) == strings.TrimPrefix(name, "0x") ||
			strings.Join(p.PeerURLs, ",") == name
	})
	if p != nil {
		return view, p, nil
	}
	names := make([]string, 0, len(view.Peers))
	for n := range view.Peers {
		names = append(names, view.Peers[n].Label())
	}
	return nil, nil, fmt.Errorf("etcd has no member %q: its members are %s", name, strings.Join(names, ", "))
}

func etcdRemoveCommand(a *app) *cobra.Command {
	var force bool
	cmd := onEtcd(a, &cobra.Command{
		Use:   "remove MEMBER",
		Short: "Have etcd forget a member that is lost",
		Long: `Removes a member, given by name, id or address for peers, from a cluster that has a quorum without
it. A member that answers is not lost, and is removed with --force only. The member joins again, as
a new one, when it is started.

A member whose disk was replaced does this by itself, unless it is started with --rejoin=false.`,
		Example: `  sheaf etcd remove etcd-1 --etcd etcd-0:2379,etcd-2:2379`,
		Args:    cobra.ExactArgs(1),
	}, &etcdAt{}, func(ctx context.Context, client *clientv3.Client, args []string) error {
		view, p, err := memberNamed(ctx, client, args[0])
		if err != nil {
			return err
		}
		if err := view.MayRemove(p.ID); err != nil {
			return fmt.Errorf("member %s was not removed: %w", p.Label(), err)
		}
		if p.Answers && !force {
			return fmt.Errorf("member %s was not removed: it answers, so that nothing is lost. --force removes it all the same",
				p.Label())
		}
		if err := removeMember(ctx, client, p.ID); err != nil {
			return fmt.Errorf("remove member %s (%x): %w", p.Label(), p.ID, err)
		}
		a.Out.Sayf("member %s (%x) was removed. It joins again as a new one when it is started", p.Label(), p.ID)
		return nil
	})
	cmd.Flags().BoolVar(&force, "force", false, "also where the member answers")
	return cmd
}

// removeMember removes a member. If the request is handled by the member to be removed, the response may be that this
// member has stopped. removeMember then asks another member, and succeeds if that one no longer lists the removed
// member.
func removeMember(ctx context.Context, client *clientv3.Client, id uint64) error {
	stopped := false
	return whenConnected(ctx, func() error {
		_, err := client.MemberRemove(ctx, id)
		switch {
		case errors.Is(err, rpctypes.ErrStopped):
			stopped = true
		case errors.Is(err, rpctypes.ErrMemberNotFound) && stopped:
			return nil
		}
		return err
	})
}

// memberPause is the time between two attempts to change the members.
const memberPause = 500 * time.Millisecond

// whenConnected calls change, which changes the members. It calls change again while the member that receives the
// request is stopping, or while etcd refuses the change because the members have been connected for less than five
// seconds.
func whenConnected(ctx context.Context, change func() error) error {
	for {
		err := change()
		if !errors.Is(err, rpctypes.ErrUnhealthy) && !errors.Is(err, rpctypes.ErrStopped) {
			return err
		}
		if !cli.Pause(ctx, memberPause) {
			return err
		}
	}
}

func etcdPromoteCommand(a *app) *cobra.Command {
	return onEtcd(a, &cobra.Command{
		Use:   "promote MEMBER",
		Short: "Give a learner of etcd its vote",
		Long: `Makes a voter of a learner that has caught up with the others. A member does it by itself, unless it
was started with
--rejoin=false; this is for one of another program.`,
		Example: `  sheaf etcd promote etcd-1 --etcd etcd-0:2379,etcd-2:2379`,
		Args:    cobra.ExactArgs(1),
	}, &etcdAt{}, func(ctx context.Context, client *clientv3.Client, args []string) error {
		_, p, err := memberNamed(ctx, client, args[0])
		if err != nil {
			return err
		}
		if !p.Learner {
			return fmt.Errorf("member %s has its vote already", p.Label())
		}
		if _, err := client.MemberPromote(ctx, p.ID); err != nil {
			return fmt.Errorf("promote member %s (%x): %w", p.Label(), p.ID, err)
		}
		a.Out.Sayf("member %s (%x) votes now", p.Label(), p.ID)
		return nil
	})
}
