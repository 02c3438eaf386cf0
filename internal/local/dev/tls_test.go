package dev

import (
	"context"
	"crypto/tls"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/reflect/protoregistry"
	"google.golang.org/protobuf/types/dynamicpb"

	"sheaf.dev/sheaf/client"
	"sheaf.dev/sheaf/internal/security/authority"
	"sheaf.dev/sheaf/internal/security/certs"
	"sheaf.dev/sheaf/internal/security/identity"
	"sheaf.dev/sheaf/internal/test/loopback"
	"sheaf.dev/sheaf/internal/test/must"
)

// startTLS starts a store of three copies that uses TLS and holds record 1. It cannot be used in bubbles, because the
// tests in this file run a store as a user would, with a real etcd, real disks and real sockets.
func startTLS(t *testing.T) *Dev {
	t.Helper()
	d, err := Start(t.Context(), Config{Dir: t.TempDir(), Shards: 3, Copies: 3, Groups: 2, Listen: "127.0.0.1:0",
		TLS: true})
	must.OK(t, err)
	t.Cleanup(d.Kill)
	must.OK(t, d.WaitReady(t.Context(), nil))
	for _, direct := range []bool{false, true} {
		c := callTLS(t, d, direct)
		if _, err := c.Put(t.Context(), client.Key{ID: 1}, []byte("one"), nil); err != nil {
			t.Fatal(err)
		}
		if record, err := c.Get(t.Context(), client.Key{ID: 1}, nil); err != nil || string(record.Data) != "one" {
			t.Fatal(record, err)
		}
	}
	return d
}

func callTLS(t *testing.T, d *Dev, direct bool) *client.Client {
	t.Helper()
	creds, err := client.TLS(d.CallerFiles())
	must.OK(t, err)
	c, err := client.Dial(t.Context(), client.Config{Addresses: []string{d.Addr()}, Direct: direct, Credentials: creds,
		Dial: d.cfg.seams.dial})
	must.OK(t, err)
	t.Cleanup(func() { _ = c.Close() })
	return c
}

// credsOf returns the credentials of a client that has this identity and accepts any server.
func credsOf(t *testing.T, by *authority.Authority, id identity.Identity,
	change func(*authority.Leaf)) credentials.TransportCredentials {
	t.Helper()
	leaf := authority.Leaf{Identity: id, Server: true, Client: true, Now: time.Now(), Lifetime: time.Hour}
	if change != nil {
		change(&leaf)
	}
	cert, key, err := by.Issue(leaf)
	must.OK(t, err)
	pair, err := tls.X509KeyPair(cert, key)
	must.OK(t, err)
	return credentials.NewTLS(&tls.Config{
		MinVersion: tls.VersionTLS13, InsecureSkipVerify: true,
		GetClientCertificate: func(*tls.CertificateRequestInfo) (*tls.Certificate, error) { return &pair, nil },
	})
}

// call makes a call with an empty message. Depending on the method, it is a unary call or a stream.
func call(ctx context.Context, cc *grpc.ClientConn, method protoreflect.MethodDescriptor) error {
	name := fmt.Sprintf("/%s/%s", method.Parent().FullName(), method.Name())
	in, out := dynamicpb.NewMessage(method.Input()), dynamicpb.NewMessage(method.Output())
	if !method.IsStreamingClient() && !method.IsStreamingServer() {
		return cc.Invoke(ctx, name, in, out)
	}
	stream, err := cc.NewStream(ctx, &grpc.StreamDesc{ServerStreams: method.IsStreamingServer(),
		ClientStreams: method.IsStreamingClient()}, name)
	if err != nil {
		return err
	}
	_ = stream.SendMsg(in) // the error is received below
	_ = stream.CloseSend()
	return stream.RecvMsg(out)
}

// Every role calls every method of every service, at the gateway and at the shard. Callers without permission are
// refused, and the data on the disks does not change.
func TestEveryMethodChecksItsCallers(t *testing.T) {
	d := startTLS(t)
	own, foreign := d.secured.store, d.secured.store
	foreign.UID[0]++
	other, err := authority.New("other", time.Now(), time.Hour)
	must.OK(t, err)
	of := func(store identity.Store, role identity.Role, name string) identity.Identity {
		return identity.Identity{Store: store, Role: role, Name: name}
	}
	a := d.secured.authority
	serverOnly := func(l *authority.Leaf) { l.Client = false }
	late := func(l *authority.Leaf) { l.Now = l.Now.Add(-2 * time.Hour) }
	const (
		cut     = codes.Unavailable // the connection is refused
		refused = codes.PermissionDenied
		may     = codes.OK // OK, or any other result that the method itself returns
	)
	who := map[string]struct {
		creds                                         credentials.TransportCredentials
		records, admin, peer, check, archive, routing codes.Code
	}{
		"nobody": {credentials.NewTLS(&tls.Config{MinVersion: tls.VersionTLS13,
			InsecureSkipVerify: true}), cut, cut, cut, cut, cut, cut},
		"plaintext":         {insecure.NewCredentials(), cut, cut, cut, cut, cut, cut},
		"another authority": {credsOf(t, other, of(own, identity.Gateway, ""), nil), cut, cut, cut, cut, cut, cut},
		"a certificate for servers": {credsOf(t, a, of(own, identity.Gateway, ""), serverOnly), cut, cut, cut, cut, cut,
			cut},
		"a certificate that has ended": {credsOf(t, a, of(own, identity.Gateway, ""), late), cut, cut, cut, cut, cut, cut},
		"a shard of another store": {credsOf(t, a, of(foreign, identity.Shard, "shard-0"), nil), refused, refused, refused,
			may, refused, refused},
		"a caller":         {credsOf(t, a, of(own, identity.Client, "c"), nil), may, refused, refused, may, refused, may},
		"an administrator": {credsOf(t, a, of(own, identity.Admin, "a"), nil), may, may, refused, may, refused, may},
		"a gateway":        {credsOf(t, a, of(own, identity.Gateway, ""), nil), may, may, refused, may, refused, may},
		"a shard":          {credsOf(t, a, of(own, identity.Shard, "shard-0"), nil), may, may, may, may, refused, may},
		"a member of etcd": {credsOf(t, a, of(own, identity.Etcd, ""), nil),
			refused, refused, refused, may, refused, refused},
		"the archiver": {credsOf(t, a, of(own, identity.Archive, ""), nil), refused, refused, refused, may, may, may},
		"the archiver of another store": {credsOf(t, a, of(foreign, identity.Archive, ""), nil),
			refused, refused, refused, may,
			refused, refused},
	}
	servers := map[string]struct {
		address string
		lacks   []protoreflect.FullName // services that the server does not have
	}{"gateway": {d.Addr(), []protoreflect.FullName{"sheaf.peer.v1.PeerService", "sheaf.archive.v1.ArchiveService",
		"sheaf.archive.v1.RestoreService", "sheaf.peer.v1.ViewCopyService"}},
		"shard": {d.Status().Shards[1].GetShard().GetAddress(), []protoreflect.FullName{"sheaf.record.v1.RoutingService",
			"sheaf.archive.v1.RestoreService", "sheaf.batch.v1.ViewService"}}}
	// pass makes either the calls that must be refused or all other calls.
	pass := func(refusals bool) {
		for at, server := range servers {
			for name, caller := range who {
				cc, err := grpc.NewClient("passthrough:///"+server.address, grpc.WithTransportCredentials(caller.creds))
				must.OK(t, err)
				copies := caller.peer // gateways may call what shards may not, and the other way round
				if name == "a gateway" {
					copies = may
				} else if copies == may {
					copies = refused
				}
				for _, method := range ownMethods() {
					want, known := map[protoreflect.FullName]codes.Code{
						"sheaf.record.v1.RecordService": caller.records, "sheaf.record.v1.RoutingService": caller.routing,
						"sheaf.record.v1.AccessService": caller.records, "arrow.flight.protocol.FlightService": caller.records,
						"sheaf.record.v1.AdminService": caller.admin, "sheaf.peer.v1.PeerService": caller.peer,
						"sheaf.archive.v1.ArchiveService":     caller.archive,
						"sheaf.batch.v1.ViewService":          caller.records,
						"sheaf.peer.v1.ViewCopyService":       copies,
						"sheaf.archive.v1.RestoreService":     refused, // only the source of a restore has it
						"grpc.health.v1.Health":               caller.check,
						"grpc.reflection.v1.ServerReflection": caller.records, "grpc.reflection.v1alpha.ServerReflection": caller.records,
					}[method.Parent().FullName()]
					if method.Name() == "EndHistory" && name != "the archiver" {
						want = caller.admin // administrators may make this call, too
					}
					if !known {
						t.Errorf("who may call %s? Say so here and in the table", method.FullName())
					}
					if (want != may) != refusals || slices.Contains(server.lacks, method.Parent().FullName()) {
						continue
					}
					patience := time.Minute
					if want == may {
						patience = 2 * time.Second // open streams end with this deadline
					}
					ctx, cancel := context.WithTimeout(t.Context(), patience)
					if name == "a gateway" {
						ctx = metadata.AppendToOutgoingContext(ctx, "sheaf-unnamed", "process")
					}
					err := call(ctx, cc, method)
					cancel()
					code, words := status.Code(err), status.Convert(err).Message()
					denied := code == codes.PermissionDenied && strings.Contains(words, "may not call")
					switch {
					case want == cut && code != codes.Unavailable, want == refused && !denied, want == may &&
						(denied || code == codes.Unauthenticated):
						t.Errorf("at the %s: %s by %s must be %s: %v", at, method.FullName(), name, want, err)
					}
				}
				_ = cc.Close()
			}
		}
	}
	before := recordsOf(t, d)
	pass(true)
	if after := recordsOf(t, d); !maps.Equal(before, after) {
		t.Errorf("%v were stored, and now %v", before, after)
	}
	pass(false)
	if n, err := testutil.GatherAndCount(d.registry, "sheaf_tls_refused_handshakes_total"); err != nil || n == 0 {
		t.Errorf("the metrics of a store tell of %d reasons of refused handshakes: %v", n, err)
	}
}

// ownMethods returns the methods of all services that a process of a store has.
func ownMethods() (all []protoreflect.MethodDescriptor) {
	protoregistry.GlobalFiles.RangeFiles(func(f protoreflect.FileDescriptor) bool {
		if name := string(f.Package()); !strings.HasPrefix(name, "sheaf.") && name != "grpc.health.v1" &&
			!strings.HasPrefix(name, "grpc.reflection.") && name != "arrow.flight.protocol" {
			return true // skip methods of etcd, which also runs in this process
		}
		for i := range f.Services().Len() {
			for j := range f.Services().Get(i).Methods().Len() {
				all = append(all, f.Services().Get(i).Methods().Get(j))
			}
		}
		return true
	})
	return all
}

// recordsOf returns the stored records, with versions.
func recordsOf(t *testing.T, d *Dev) map[int64]string {
	t.Helper()
	out := map[int64]string{}
	for record, err := range callTLS(t, d, false).Scan(t.Context(), nil) {
		must.OK(t, err)
		out[record.Key.ID] = fmt.Sprintf("%s, version %s", record.Data, record.Version)
	}
	if len(out) == 0 {
		t.Fatal("nothing is stored")
	}
	return out
}

// Certificates are renewed during calls, and the authority is the same after a restart.
func TestCertificatesAreRenewed(t *testing.T) {
	dir := t.TempDir()
	cfg := Config{Dir: dir, Shards: 1, Groups: 1, Listen: "127.0.0.1:0", TLS: true}
	d, err := Start(t.Context(), cfg)
	must.OK(t, err)
	must.OK(t, d.WaitReady(t.Context(), nil))
	c := callTLS(t, d, false)
	for n := range int64(5) {
		if _, err := c.Put(t.Context(), client.Key{ID: n}, []byte("x"), nil); err != nil {
			t.Fatal(err)
		}
		for _, h := range d.secured.issued {
			must.OK(t, d.secured.issue(h))
		}
	}
	if len(d.secured.issued) != 4 {
		t.Errorf("certificates: %v", d.secured.issued)
	}
	ca := filepath.Join(dir, tlsName, callerName, certs.BundleFile)
	before, err := os.ReadFile(ca)
	must.OK(t, err)
	must.OK(t, d.Stop(t.Context()))
	if d, err = Start(t.Context(), cfg); err != nil {
		t.Fatal(err)
	}
	defer d.Kill()
	if after, err := os.ReadFile(ca); err != nil || string(after) != string(before) {
		t.Error("there is another authority", err)
	}
	key, err := os.Stat(filepath.Join(dir, tlsName, authorityName, certs.KeyFile))
	if err != nil || key.Mode().Perm() != 0o600 {
		t.Error(key.Mode(), err)
	}
}

func TestDamagedAuthorityIsNotReplaced(t *testing.T) {
	dir := t.TempDir()
	if _, err := openAuthority(dir, time.Now()); err != nil {
		t.Fatal(err)
	}
	if _, err := openAuthority(dir, time.Now().Add(20*365*24*time.Hour)); err == nil ||
		!strings.Contains(err.Error(), "it has ended") {
		t.Error(err)
	}
	key := filepath.Join(dir, certs.KeyFile)
	must.OK(t, os.WriteFile(key, []byte("half"), 0o600))
	if _, err := openAuthority(dir, time.Now()); err == nil || !strings.Contains(err.Error(),
		"remove the folder for a new one") {
		t.Error(err)
	}
	must.OK(t, os.Remove(key))
	if _, err := openAuthority(dir, time.Now()); err == nil {
		t.Error("another one is made beside a certificate")
	}
}

// Only the gateway, the shards and HTTP have ports. The etcd of the store, which holds the grants and the signing key,
// has no port, because everybody on the machine could connect to it.
func TestTheEtcdOfAStoreHasNoPort(t *testing.T) {
	before, err := loopback.Listeners(os.Getpid())
	must.OK(t, err)
	d := startTLS(t)
	own := []string{d.Addr(), d.HTTPAddr()}
	for _, s := range d.Status().Shards {
		own = append(own, s.GetShard().GetAddress())
	}
	after, err := loopback.Listeners(os.Getpid())
	if err != nil || len(after) < len(before)+len(own)-1 {
		t.Fatalf("%v (%v), and %v belong to the store", after, err, own)
	}
	for _, l := range after {
		if !slices.Contains(before, l) && (l.Network != "tcp" || !slices.Contains(own, l.Address)) {
			t.Errorf("the store listens on %s %s, which belongs to neither gateway, shards nor HTTP", l.Network, l.Address)
		}
	}
}
