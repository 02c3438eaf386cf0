package main

import (
	"bytes"
	"context"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/uuid"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"

	peerv1 "sheaf.dev/sheaf/api/sheaf/peer/v1"
	"sheaf.dev/sheaf/internal/archive/restore"
	"sheaf.dev/sheaf/internal/test/archivetest"
	"sheaf.dev/sheaf/internal/test/loopback"
)

const newStore = "99999999-0000-4000-8000-000000000001"

func TestADryRunNamesTheGroups(t *testing.T) {
	url := archiveOfTests(t)
	early := archivetest.Begin.Add(3 * time.Second).Format(time.RFC3339)
	for _, c := range []struct {
		args []string
		code int
		says []string
	}{
		{nil, 0, []string{"alpha", "beta", "delta", "can be restored"}},
		{[]string{"-o", "json"}, 0, []string{`"name": "alpha"`, `"index": 10`}},
		// At this time, delta had not been archived yet, and the archive no longer has the history of alpha that far back.
		{[]string{"--time", early}, 1, []string{"below the history floor", "cannot restore 2 groups of"}},
		{[]string{"--time", early, "-o", "json"}, 1, []string{`"error": "group alpha`}},
		{[]string{"--group", "beta", "--group", "delta"}, 0, []string{"beta", "delta"}},
		{[]string{"--group", "gamma2"}, 2, []string{"the archive has no group gamma2"}},
		{[]string{"--time", "2199-01-01T00:00:00Z"}, 1, []string{"is not archived yet"}},
		{[]string{"--time", "tomorrow"}, 2, []string{"is not a point in time"}},
		{[]string{"--time", "index:3"}, 2, []string{"must be a time"}},
		{[]string{"--into", "x"}, 2, []string{"UUID of the new store"}},
		{[]string{"--into", archivetest.SampleStore.String()}, 2, []string{"a UUID of its own"}},
		{[]string{"--rate", "-1"}, 2, []string{"must not be negative"}},
		{[]string{"--tls-dir", filepath.Join(t.TempDir(), "none")}, 2, []string{"--tls-dir"}},
		{[]string{"--store", newStore}, 3, []string{"no archive"}},
	} {
		code, out, errs := runArchive(t, append([]string{"source", url, "--into", newStore, "--dry-run"}, c.args...)...)
		for _, says := range c.says {
			if code != c.code || !strings.Contains(out+errs, says) {
				t.Errorf("%q: %d, %q, %q; must say %q", c.args, code, out, errs, says)
			}
		}
	}
	if code, _, errs := runArchive(t, "source", url, "--into", newStore, "--listen", "nowhere"); code != 2 ||
		!strings.Contains(errs, "--listen") {
		t.Errorf("%d, %s", code, errs)
	}
}

// A source serves groups until it is stopped. While it serves, a use stops pruning, unless --no-use is given. The test
// uses a real socket because it runs the whole command.
func TestASourceServesUntilItIsStopped(t *testing.T) {
	t.Run("protected", func(t *testing.T) { serveUntilStopped(t, nil) })
	t.Run("unprotected", func(t *testing.T) { serveUntilStopped(t, []string{"--no-use"}) })
}

func serveUntilStopped(t *testing.T, flags []string) {
	url, address := archiveOfTests(t), loopback.Free(t)
	use := func(what string) bool {
		t.Helper()
		code, out, errs := runArchive(t, "prune", url, "--dry-run")
		if code != 0 {
			t.Errorf("prune %s: %d, %s, %s", what, code, out, errs)
		}
		return strings.Contains(errs, "read by restore into store "+newStore)
	}
	ctx, stop := context.WithCancel(t.Context())
	var errs bytes.Buffer
	ended := make(chan int, 1)
	calls, giveUp := context.WithCancel(t.Context())
	var serves atomic.Bool
	go func() {
		defer func() {
			if !serves.Load() {
				giveUp() // the command has failed, so the call below would wait without end
			}
		}()
		ended <- run(ctx, &bytes.Buffer{}, &errs, append([]string{"source", url, "--into", newStore, "--listen", address},
			flags...))
	}()
	conn, err := grpc.NewClient("passthrough:///"+address, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = conn.Close() }()
	store := uuid.MustParse(newStore)
	group := restore.GroupUUID(store, uuid.UUID{0x67, 15: 1}) // alpha
	stream, err := peerv1.NewPeerServiceClient(conn).FetchGroup(calls, grpc.WaitForReady(true))
	if err != nil {
		t.Fatalf("%v, %s", err, errs.String())
	}
	serves.Store(true)
	_ = stream.Send(&peerv1.FetchGroupRequest{Part: &peerv1.FetchGroupRequest_Start{Start: &peerv1.FetchGroupStart{
		Header: &peerv1.PeerHeader{Store: store[:], FromShard: "s0", Instance: 1}, Group: group[:], Founder: 7}}})
	if in, err := stream.Recv(); err != nil || len(in.GetDescription().GetManifest()) == 0 {
		t.Errorf("%v, %v", in, err)
	}
	if use("while it serves") != (len(flags) == 0) {
		t.Error("while the source serves, prune must wait, unless --no-use is given")
	}
	stop()
	if code := <-ended; code != 0 || !strings.Contains(errs.String(), "the source ends") {
		t.Errorf("%d, %s", code, errs.String())
	}
	if _, err := stream.Recv(); status.Code(err) != codes.Unavailable {
		t.Errorf("error %v", err)
	}
	if use("after the end") {
		t.Error("a use remains")
	}
}
