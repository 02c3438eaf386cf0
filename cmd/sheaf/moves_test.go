package main

import (
	"bytes"
	"context"
	"net"
	"strings"
	"testing"

	"google.golang.org/grpc"

	"sheaf.dev/sheaf/client/recordv1"
	"sheaf.dev/sheaf/internal/local/cli"
)

func TestMovesInWords(t *testing.T) {
	const mib = 1 << 20
	eta := 75.4
	moves := []*recordv1.Move{
		{
			Group: "3", From: []string{"a"}, To: []string{"d"}, Running: true, Phase: recordv1.MovePhase_MOVE_PHASE_COPYING,
			Bytes:     1000 * mib,
			BytesDone: 250 * mib, BytesPerSecond: 10 * mib, EtaSeconds: &eta, Reason: "Drain",
		},
		{Group: "4", From: []string{"a"}, To: []string{"d"}, Running: true, Phase: recordv1.MovePhase_MOVE_PHASE_WAITING,
			Bytes: 0, Reason: "Drain"},
		{Group: "5", From: []string{"a"}, To: []string{"d"}, Bytes: 7 * mib, Reason: "Drain"},
	}
	var out, words bytes.Buffer
	to := &cli.Output{Out: &out, Err: &words}
	must(t, printMoves(to, moves))
	lines := strings.Split(strings.TrimSpace(out.String()), "\n")
	var got []string
	for _, line := range lines[1:] {
		got = append(got, strings.Join(strings.Fields(line), " "))
	}
	want := []string{"3 copying a d 25% 1000.0 MiB 10.0 MiB/s 1m15s Drain", "4 waiting a d 0 B Drain",
		"5 planned a d 7.0 MiB Drain"}
	if strings.Join(got, "\n") != strings.Join(want, "\n") {
		t.Errorf("table:\n%s", out.String())
	}
	if w := strings.TrimSpace(
		words.String()); w != "2 running, 1 planned: 250.0 MiB of 1000.0 MiB, 10.0 MiB/s, ETA 1m15s" {
		t.Errorf("words: %q", w)
	}
	if w := cli.MovesWords(nil); w != "nothing moves" {
		t.Errorf("no moves: %q", w)
	}
	if w := sharedWords(moves); w != "" {
		t.Errorf("no domain is shared: %q", w)
	}
	moves[0].SharedDomains, moves[2].SharedDomains = []string{"n2", "n1"}, []string{"n1"}
	words.Reset()
	if err := printMoves(to, moves); err != nil || !strings.HasSuffix(strings.TrimSpace(words.String()),
		"(n1, n2), as no order of the steps avoids it: groups 3, 5") {
		t.Errorf("shared domains: %q, %v", words.String(), err)
	}
	if rows := movesJSON(moves); len(rows[0].SharedDomains) != 2 || len(rows[1].SharedDomains) != 0 {
		t.Errorf("shared domains: %+v", rows)
	}
}

func TestRolesAndLagInWords(t *testing.T) {
	lag := uint64(12)
	for want, g := range map[string]*recordv1.Group{
		"/":        {},
		"leader/":  {Role: recordv1.MemberRole_MEMBER_ROLE_LEADER},
		"voter/12": {Role: recordv1.MemberRole_MEMBER_ROLE_VOTER, LagEntries: &lag},
		"learner/50% of 10 B": {Role: recordv1.MemberRole_MEMBER_ROLE_LEARNER, LagEntries: &lag,
			Copy: &recordv1.Copy{BytesTotal: 10, BytesDone: 5}},
	} {
		if got := roleWord(g) + "/" + lagWords(g); got != want {
			t.Errorf("%v is %q, want %q", g, got, want)
		}
	}
}

// movesServer simulates a server whose answer has several moves, one of which is running.
type movesServer struct {
	recordv1.UnimplementedAdminServiceServer
}

func (movesServer) PlanMoves(context.Context, *recordv1.PlanMovesRequest) (*recordv1.PlanMovesResponse, error) {
	return &recordv1.PlanMovesResponse{Moves: []*recordv1.Move{
		{Group: "3", From: []string{"a"}, To: []string{"d"}, Running: true, Phase: recordv1.MovePhase_MOVE_PHASE_COPYING,
			Reason: "Drain"},
		{Group: "4", From: []string{"b"}, To: []string{"d"}, Reason: "Drain"},
	}}, nil
}

func TestMovesDryRunShowsPendingMoves(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	must(t, err)
	server := grpc.NewServer()
	recordv1.RegisterAdminServiceServer(server, movesServer{})
	go func() { _ = server.Serve(l) }()
	defer server.Stop()
	moves := func(flags ...string) string {
		return sheaf(t, nil, append([]string{"moves", "--server", l.Addr().String()}, flags...)...).Want(t, 0).Stdout
	}
	if all := moves(); !strings.Contains(all, "copying") || !strings.Contains(all, "planned") {
		t.Errorf("moves: %s", all)
	}
	if rest := moves("--dry-run"); strings.Contains(rest, "copying") || !strings.Contains(rest, "planned") {
		t.Errorf("moves --dry-run: %s", rest)
	}
	sheaf(t, nil, "moves", "--dry-run", "--watch").Want(t, 2).Has(t, "one of them")
}
