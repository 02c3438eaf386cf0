package restoresource

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"

	peerv1 "sheaf.dev/sheaf/api/sheaf/peer/v1"
	"sheaf.dev/sheaf/client/call/message"
	"sheaf.dev/sheaf/internal/archive/object"
	"sheaf.dev/sheaf/internal/archive/reader"
	"sheaf.dev/sheaf/internal/archive/restore"
	"sheaf.dev/sheaf/internal/security/authority"
	"sheaf.dev/sheaf/internal/security/certs"
	"sheaf.dev/sheaf/internal/security/identity"
	"sheaf.dev/sheaf/internal/storage/group"
	"sheaf.dev/sheaf/internal/storage/group/format"
	"sheaf.dev/sheaf/internal/storage/group/transfer"
	"sheaf.dev/sheaf/internal/storage/vfs"
	"sheaf.dev/sheaf/internal/test/archivetest"
	"sheaf.dev/sheaf/internal/test/bubbletest"
	"sheaf.dev/sheaf/internal/test/vfstest"
)

var newStore = uuid.UUID{0x99, 15: 1}

const founder = 77

// site is an archive with a source process, which the test can replace.
type site struct {
	t       *testing.T
	network *bubbletest.Net
	bucket  *archivetest.Memory
	model   *archivetest.Writer
	opts    Options
	own     *certs.Source // nil for plaintext

	server *grpc.Server
	conns  []*grpc.ClientConn
}

func newSite(t *testing.T, network *bubbletest.Net) *site {
	b := archivetest.NewMemory()
	s := &site{t: t, network: network, bucket: b, model: archivetest.Sample(t, b, object.Key{}, 3<<20)}
	t.Cleanup(s.stop)
	return s
}

// start replaces the source process by a new one.
func (s *site) start() {
	s.t.Helper()
	s.stop()
	a, err := reader.Open(s.t.Context(), s.bucket, s.model.Store, nil)
	if err != nil {
		s.t.Fatal(err)
	}
	r, err := restore.New(s.t.Context(), a, newStore, s.model.Now())
	if err != nil {
		s.t.Fatal(err)
	}
	opts := s.opts
	opts.Restore, opts.Logger = r, slog.New(slog.DiscardHandler)
	s.server = NewServer(opts, s.own)
	l, err := s.network.Listen(s.t.Context(), "source:1")
	if err != nil {
		s.t.Fatal(err)
	}
	go func(server *grpc.Server, l net.Listener) { _ = server.Serve(l) }(s.server, l)
}

func (s *site) stop() {
	for _, c := range s.conns {
		_ = c.Close()
	}
	if s.server != nil {
		s.server.Stop()
	}
	s.server, s.conns = nil, nil
}

// dial connects to the source as a shard does. If creds is nil, the connection uses plaintext.
func (s *site) dial(creds credentials.TransportCredentials) peerv1.PeerServiceClient {
	return peerv1.NewPeerServiceClient(s.connect(creds))
}

// connect does the same as dial, but returns the connection.
func (s *site) connect(creds credentials.TransportCredentials) *grpc.ClientConn {
	s.t.Helper()
	if creds == nil {
		creds = insecure.NewCredentials()
	}
	conn, err := grpc.NewClient(bubbletest.Target("source:1"), s.network.Dialer(), grpc.WithTransportCredentials(creds),
		grpc.WithDefaultCallOptions(grpc.ForceCodecV2(message.Codec{})))
	if err != nil {
		s.t.Fatal(err)
	}
	s.conns = append(s.conns, conn)
	return conn
}

// startOf returns the first message of a call for a group of the model.
func startOf(of *archivetest.Group) *peerv1.FetchGroupStart {
	id := restore.GroupUUID(newStore, of.UUID)
	return &peerv1.FetchGroupStart{Founder: founder, Group: id[:],
		Header: &peerv1.PeerHeader{Store: newStore[:], FromShard: "s0", Instance: 1}}
}

// call begins a call and reads the description of the group. It returns the manifest in that description, and the
// stream on which the files follow.
func call(ctx context.Context, client peerv1.PeerServiceClient, start *peerv1.FetchGroupStart) (
	stream peerv1.PeerService_FetchGroupClient, manifest []byte, err error) {
	stream, err = client.FetchGroup(ctx)
	if err != nil {
		return nil, nil, err
	}
	// Recv returns the reason for an error.
	_ = stream.Send(&peerv1.FetchGroupRequest{Part: &peerv1.FetchGroupRequest_Start{Start: start}})
	for {
		in, err := stream.Recv()
		if err != nil {
			return nil, nil, err
		}
		manifest = append(manifest, in.GetDescription().GetManifest()...)
		if !in.GetDescription().GetMore() {
			return stream, manifest, nil
		}
	}
}

// errCut interrupts an install.
var errCut = errors.New("cut")

// install fetches a group as a shard does, and installs it. The function cut is called with the number of bytes
// received so far. When it returns true, install stops and returns errCut.
func (s *site) install(ctx context.Context, fs vfs.FS, of *archivetest.Group, cut func(bytes int) bool) (int, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	stream, manifest, err := call(ctx, s.dial(nil), startOf(of))
	if err != nil {
		return 0, err
	}
	opts := optionsOf(fs, of)
	in, err := transfer.NewInstall(ctx, opts.ForInstall(), format.ReplicaFile{RaftID: founder, Volume: uuid.UUID{8}},
		manifest)
	if err != nil {
		return 0, err
	}
	came := 0
	for missing := in.Missing(); len(missing) > 0; missing = in.Missing() {
		for _, f := range missing {
			n, err := receive(stream, in, f, func(n int) bool { return cut != nil && cut(came+n) })
			if came += n; err != nil {
				return came, err
			}
		}
	}
	// When the call has ended, the source has released the group.
	if err := stream.CloseSend(); err != nil {
		return came, err
	}
	if _, err := stream.Recv(); !errors.Is(err, io.EOF) {
		return came, fmt.Errorf("the call goes on: %w", err)
	}
	return came, in.Finish(ctx)
}

func receive(stream peerv1.PeerService_FetchGroupClient, in *transfer.Install, f transfer.File,
	cut func(bytes int) bool) (came int, err error) {
	w, err := in.File(f)
	if err != nil {
		return 0, err
	}
	defer func() { err = errors.Join(err, w.Close()) }()
	wanted := &peerv1.FetchGroupWanted{Files: []*peerv1.FileRange{{Name: f.Name, OffsetBytes: f.Have}}}
	_ = stream.Send(&peerv1.FetchGroupRequest{Part: &peerv1.FetchGroupRequest_Wanted{Wanted: wanted}})
	for {
		got, err := stream.Recv()
		if err != nil {
			return came, err
		}
		c := got.GetChunk()
		if _, err := w.Write(c.GetData()); err != nil {
			return came, err
		}
		came += len(c.GetData())
		switch {
		case cut(came):
			return came, errCut
		case c.GetLast():
			return came, w.Commit()
		}
	}
}

func optionsOf(fs vfs.FS, of *archivetest.Group) group.Options {
	return group.Options{FS: fs, Dir: "/group", Identity: format.Identity{
		Store: newStore, Group: restore.GroupUUID(newStore, of.UUID), Name: of.Name,
	}}
}

// compare loads an installed group, and compares its records with the model.
func compare(ctx context.Context, fs vfs.FS, of *archivetest.Group) (err error) {
	log, _, err := group.Load(ctx, optionsOf(fs, of), nil)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, log.Close(false)) }()
	want := of.State(of.Through())
	if n := log.Stats().Records; n != int64(len(want)) {
		return fmt.Errorf("%d records, not %d", n, len(want))
	}
	for id, w := range want {
		got, err := log.Get(id, group.GetOptions{})
		if err != nil {
			return err
		}
		data := got.Data
		if got.Blob != nil {
			blob, err := log.OpenBlob(*got.Blob)
			if err != nil {
				return err
			}
			data, err = io.ReadAll(io.NewSectionReader(blob, 0, got.Blob.Size))
			if err := errors.Join(err, blob.Close()); err != nil {
				return err
			}
		}
		if got.Index != w.Entry.Index || string(data) != string(w.Data) {
			return fmt.Errorf("record %d: version %d with %d bytes, not %s", id, got.Index, len(data), w)
		}
	}
	return nil
}

func disk(t *testing.T) vfs.FS {
	fs := vfstest.NewMem()
	if err := fs.MkdirAll("/group"); err != nil {
		t.Fatal(err)
	}
	return fs
}

// A shard can install each group from a source in the same way as from a member.
func TestAShardInstallsFromASource(t *testing.T) {
	bubbletest.Run(t, func(t *testing.T, network *bubbletest.Net) {
		s := newSite(t, network)
		s.start()
		defer s.stop()
		for _, of := range s.model.Groups {
			if of.Gone {
				if _, err := s.install(t.Context(), disk(t), of, nil); status.Code(err) != codes.NotFound {
					t.Errorf("%s, which was deleted: %v", of.Name, err)
				}
				continue
			}
			fs := disk(t)
			_, err := s.install(t.Context(), fs, of, nil)
			if err == nil {
				err = compare(t.Context(), fs, of)
			}
			if err != nil {
				t.Errorf("%s: %v", of.Name, err)
			}
		}
	})
}

// If the connection between source and shard is interrupted repeatedly, each attempt continues where the previous one
// ended.
func TestAnInstallContinuesWithAnotherSource(t *testing.T) {
	bubbletest.Run(t, func(t *testing.T, network *bubbletest.Net) {
		s := newSite(t, network)
		defer s.stop()
		alpha, fs := s.model.Groups[0], disk(t)
		all, cuts := 0, 0
		for {
			s.start()
			came, err := s.install(t.Context(), fs, alpha, func(bytes int) bool { return bytes > 3<<19 })
			all += came
			if err == nil {
				break
			}
			if cuts++; !errors.Is(err, errCut) || cuts > 20 {
				t.Fatal(err)
			}
		}
		if err := compare(t.Context(), fs, alpha); err != nil {
			t.Error(err)
		}
		// The blob's size is 3 MiB. Each interruption costs at most one chunk of the blob, because a chunk is kept only if
		// its checksum has arrived.
		if cuts < 2 || all > 3<<20+cuts<<20+(64<<10) {
			t.Errorf("%d cuts, %d bytes came", cuts, all)
		}
	})
}

// If a group cannot be restored, the error names the damaged object, even if the damage is found in the middle of a
// file. The other groups are still served.
func TestABrokenGroupIsNamedAndTheOthersAreServed(t *testing.T) {
	bubbletest.Run(t, func(t *testing.T, network *bubbletest.Net) {
		s := newSite(t, network)
		defer s.stop()
		alpha, beta := s.model.Groups[0], s.model.Groups[1]
		var blob string
		for _, name := range s.bucket.Names() {
			if strings.Contains(name, alpha.UUID.String()+"/blob/") {
				blob = name
			}
		}
		whole := s.bucket.Get(blob)
		flipped := append([]byte(nil), whole...)
		flipped[2<<20] ^= 1
		for what, content := range map[string][]byte{"missing": nil, "flipped": flipped} {
			s.bucket.Set(blob, content)
			s.start()
			_, err := s.install(t.Context(), disk(t), alpha, nil)
			_, short, _ := strings.Cut(blob, "/g/")
			if status.Code(err) != codes.DataLoss || !strings.Contains(err.Error(), short) ||
				!strings.Contains(err.Error(), "alpha") {
				t.Errorf("the blob is %s: %v", what, err)
			}
			fs := disk(t)
			_, err = s.install(t.Context(), fs, beta, nil)
			if err == nil {
				err = compare(t.Context(), fs, beta)
			}
			if err != nil {
				t.Errorf("the blob of another group is %s: %v", what, err)
			}
		}
		s.bucket.Set(blob, whole)
		catalogue := s.model.Name(object.CatalogueName(alpha.UUID, 2))
		s.bucket.Set(catalogue, s.bucket.Get(catalogue)[:64])
		s.start()
		if _, err := s.install(t.Context(), disk(t), alpha, nil); status.Code(err) != codes.DataLoss {
			t.Errorf("the catalogue is cut: %v", err)
		}
	})
}

// If the bucket does not respond, no data is lost, so the shard tries again. It learns whether only objects of the
// group cannot be read, or whether the bucket is away for all groups.
func TestABucketThatIsAwayIsToldFromAnUnreadableObject(t *testing.T) {
	bubbletest.Run(t, func(t *testing.T, network *bubbletest.Net) {
		s := newSite(t, network)
		away, whole := false, false
		s.bucket.OnOpen = func(name string, _ int, content []byte) (io.Reader, error) {
			if away && (whole || !strings.HasSuffix(name, object.ArchiveName)) {
				return nil, errors.New("503 Slow Down")
			}
			return strings.NewReader(string(content)), nil
		}
		s.start()
		defer s.stop()
		away = true
		alpha, fs := s.model.Groups[0], disk(t)
		if _, err := s.install(t.Context(), fs, alpha, nil); status.Code(err) != codes.Aborted {
			t.Errorf("some objects cannot be read: %v", err)
		}
		whole = true
		if _, err := s.install(t.Context(), fs, alpha, nil); status.Code(err) != codes.Unavailable ||
			!strings.Contains(err.Error(), "503 Slow Down") {
			t.Errorf("the bucket is away: %v", err)
		}
		away = false
		_, err := s.install(t.Context(), fs, alpha, nil)
		if err == nil {
			err = compare(t.Context(), fs, alpha)
		}
		if err != nil {
			t.Error(err)
		}
	})
}

// A group is sent to one shard at a time, and others meanwhile. If a shard requests no file for some time, its call
// ends, and the group can be sent again. If the shard disconnects, this happens immediately.
func TestIdleFetchIsEnded(t *testing.T) {
	bubbletest.Run(t, func(t *testing.T, network *bubbletest.Net) {
		s := newSite(t, network)
		s.start()
		defer s.stop()
		alpha, beta := startOf(s.model.Groups[0]), startOf(s.model.Groups[1])
		client := s.dial(nil)
		begun := time.Now()
		idle, _, err := call(t.Context(), client, alpha)
		if err != nil {
			t.Fatal(err)
		}
		if _, _, err := call(t.Context(), client, beta); err != nil || time.Since(begun) > 0 {
			t.Errorf("another group: error %v after %v", err, time.Since(begun))
		}
		if _, _, err := call(t.Context(), client, alpha); status.Code(err) != codes.ResourceExhausted ||
			time.Since(begun) != 10*time.Second {
			t.Errorf("the same group: error %v after %v", err, time.Since(begun))
		}
		if _, err := idle.Recv(); status.Code(err) != codes.DeadlineExceeded || time.Since(begun) != IdleMax {
			t.Errorf("error %v after %v", err, time.Since(begun))
		}
		ctx, cancel := context.WithCancel(t.Context())
		if _, _, err := call(ctx, client, alpha); err != nil {
			t.Fatal(err)
		}
		cancel()
		if _, _, err := call(t.Context(), client, alpha); err != nil || time.Since(begun) > IdleMax+time.Second {
			t.Errorf("after the shard has left: error %v after %v", err, time.Since(begun))
		}
	})
}

// A call is refused if it is meant for another process or is incomplete.
func TestCallsForOthersAreRefused(t *testing.T) {
	bubbletest.Run(t, func(t *testing.T, network *bubbletest.Net) {
		s := newSite(t, network)
		s.start()
		defer s.stop()
		client := s.dial(nil)
		for name, c := range map[string]struct {
			change func(in *peerv1.FetchGroupStart)
			want   codes.Code
		}{
			"no header": {func(in *peerv1.FetchGroupStart) { in.Header = nil }, codes.InvalidArgument},
			"the old store": {func(in *peerv1.FetchGroupStart) { in.Header.Store = s.model.Store[:] },
				codes.FailedPrecondition},
			"for a shard":       {func(in *peerv1.FetchGroupStart) { in.Header.ToShard = "s1" }, codes.FailedPrecondition},
			"from nobody":       {func(in *peerv1.FetchGroupStart) { in.Header.FromShard = "" }, codes.InvalidArgument},
			"no UUID":           {func(in *peerv1.FetchGroupStart) { in.Group = in.GetGroup()[1:] }, codes.InvalidArgument},
			"no founder":        {func(in *peerv1.FetchGroupStart) { in.Founder = 0 }, codes.InvalidArgument},
			"an unknown group":  {func(in *peerv1.FetchGroupStart) { in.Group[3]++ }, codes.NotFound},
			"the archive's own": {func(in *peerv1.FetchGroupStart) { in.Group = s.model.Groups[0].UUID[:] }, codes.NotFound},
		} {
			in := startOf(s.model.Groups[0])
			c.change(in)
			if _, _, err := call(t.Context(), client, in); status.Code(err) != c.want {
				t.Errorf("%s: %v", name, err)
			}
		}
		for _, wanted := range []*peerv1.FetchGroupWanted{
			nil, {}, {Files: []*peerv1.FileRange{{Name: "segment-000000000099"}}},
			{Files: []*peerv1.FileRange{{Name: "segment-000000000001", OffsetBytes: -1}}},
		} {
			stream, _, err := call(t.Context(), client, startOf(s.model.Groups[0]))
			if err != nil {
				t.Fatal(err)
			}
			_ = stream.Send(&peerv1.FetchGroupRequest{Part: &peerv1.FetchGroupRequest_Wanted{Wanted: wanted}})
			if _, err := stream.Recv(); err == nil || errors.Is(err, io.EOF) {
				t.Errorf("%v: %v", wanted, err)
			}
		}
	})
}

// With certificates, the source answers only shards of the new store, and each of them only under its own name. It
// lists the groups only for gateways.
func TestOnlyShardsOfTheStoreAreAnswered(t *testing.T) {
	bubbletest.Run(t, func(t *testing.T, network *bubbletest.Net) {
		a, err := authority.New("store", time.Now(), authority.Lifetime)
		if err != nil {
			t.Fatal(err)
		}
		of := identity.Store{Domain: "cluster.local", Namespace: "prod", UID: newStore}
		certificates := func(id identity.Identity) *certs.Source {
			cert, key, err := a.Issue(authority.Leaf{Identity: id, Server: true, Client: true, Now: time.Now(),
				Lifetime: time.Hour})
			if err != nil {
				t.Fatal(err)
			}
			source, err := certs.InMemory(certs.Config{}, map[string][]byte{
				certs.CertificateFile: cert, certs.KeyFile: key, certs.BundleFile: a.CertificatePEM(),
			})
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(source.Close)
			return source
		}
		another := of
		another.UID = uuid.UUID{5}
		s := newSite(t, network)
		s.own = certificates(identity.Identity{Store: of, Role: identity.Archive})
		s.start()
		defer s.stop()
		for name, c := range map[string]struct {
			as   identity.Identity
			want codes.Code
		}{
			"the shard":      {identity.Identity{Store: of, Role: identity.Shard, Name: "s0"}, codes.OK},
			"another shard":  {identity.Identity{Store: of, Role: identity.Shard, Name: "s1"}, codes.PermissionDenied},
			"another store":  {identity.Identity{Store: another, Role: identity.Shard, Name: "s0"}, codes.PermissionDenied},
			"a gateway":      {identity.Identity{Store: of, Role: identity.Gateway}, codes.PermissionDenied},
			"an admin":       {identity.Identity{Store: of, Role: identity.Admin, Name: "s0"}, codes.PermissionDenied},
			"another source": {identity.Identity{Store: of, Role: identity.Archive}, codes.PermissionDenied},
		} {
			mine := certificates(c.as)
			conn := s.connect(mine.Client(func(peer identity.Identity) error {
				if want := (identity.Identity{Store: of, Role: identity.Archive}); peer != want {
					return fmt.Errorf("the peer is %s", peer)
				}
				return nil
			}))
			client, lists := peerv1.NewPeerServiceClient(conn), codes.PermissionDenied
			if c.as.Role == identity.Gateway {
				lists = codes.OK
			}
			if _, err := list(t.Context(), conn); status.Code(err) != lists {
				t.Errorf("%s lists the groups: %v", name, err)
			}
			ctx, cancel := context.WithCancel(t.Context())
			_, _, err := call(ctx, client, startOf(s.model.Groups[1]))
			if status.Code(err) != c.want {
				t.Errorf("%s: %v", name, err)
			}
			cancel()
		}
		if _, _, err := call(t.Context(), s.dial(nil), startOf(s.model.Groups[1])); status.Code(err) != codes.Unavailable {
			t.Errorf("plaintext: %v", err)
		}
	})
}
