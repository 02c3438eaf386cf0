package etcd

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"go.etcd.io/etcd/client/pkg/v3/transport"
	"go.etcd.io/etcd/server/v3/embed"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	healthv1 "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/status"

	"sheaf.dev/sheaf/client/call/backoff"
	"sheaf.dev/sheaf/internal/security/certs"
	"sheaf.dev/sheaf/internal/security/identity"
)

// Credentials returns the credentials for connections to the etcd of the store to which the process belongs.
func Credentials(own *certs.Source) credentials.TransportCredentials {
	return own.Client(own.Own(identity.Etcd, ""))
}

// setSecure checks the settings that Certs requires, and records the current state of Certs.
func (c *MemberConfig) setSecure() error {
	if c.Certs == nil {
		if c.ListenPeerTLS != "" || c.AdvertisePeerTLS != "" {
			return errors.New("an address for members that speak TLS is of use with certificates alone")
		}
		return nil
	}
	switch {
	case c.ClientTLS.used() || c.PeerTLS.used():
		return errors.New("give a folder of certificates, or single files, not both")
	case c.ListenPeerTLS == "":
		return errors.New("the address for members that speak TLS is empty")
	case c.Certs.Identity().Role != identity.Etcd:
		return fmt.Errorf("the certificate names %s, and this is etcd", c.Certs.Identity())
	case c.Certs.Dir() == "":
		return errors.New("the certificates must be in a folder: etcd reads them itself")
	}
	setDefault(&c.AdvertisePeerTLS, c.ListenPeerTLS)
	started := c.Certs.Report()
	c.started = &started
	return nil
}

// secure makes etcd use Certs. Clients connect to a separate gRPC server, whose connections use Certs directly and
// therefore follow changes of the certificates. hideHTTP determines where etcd's HTTP server listens. Peer
// connections use etcd's own TLS implementation, which reads the authorities only once.
func (c *MemberConfig) secure(ec *embed.Config) {
	if c.Certs == nil {
		return
	}
	ec.EnableGRPCGateway = false
	ec.GRPCAdditionalServerOptions = append(ec.GRPCAdditionalServerOptions,
		grpc.Creds(c.Certs.Server(certs.ServerOptions{})),
		grpc.ChainUnaryInterceptor(func(ctx context.Context, request any, info *grpc.UnaryServerInfo,
			do grpc.UnaryHandler) (any, error) {
			if err := c.admit(ctx, info.FullMethod); err != nil {
				return nil, err
			}
			return do(ctx, request)
		}),
		grpc.ChainStreamInterceptor(func(server any, stream grpc.ServerStream, info *grpc.StreamServerInfo,
			do grpc.StreamHandler) error {
			if err := c.admit(stream.Context(), info.FullMethod); err != nil {
				return err
			}
			return do(server, stream)
		}))
	secured := url.URL{Scheme: "https", Host: everywhere(c.ListenPeerTLS)}
	ec.ListenPeerUrls = []url.URL{secured}
	if c.started.Mode != certs.Required {
		ec.ListenPeerUrls = append(ec.ListenPeerUrls, url.URL{Scheme: "http", Host: everywhere(c.ListenPeer)})
	}
	ec.AdvertisePeerUrls = []url.URL{c.peerAddress(c.AdvertisePeer)}
	ec.PeerTLSInfo = c.peerTLS()
}

// httpFolder is the name of a folder inside the member's folder, in which etcd creates the socket of its HTTP server.
// It exists only while etcd starts.
const httpFolder = "http-socket"

// hiddenHTTP is the socket on which etcd serves HTTP. The zero value stands for a member that needs no such socket.
type hiddenHTTP struct {
	name   string
	folder *os.File
}

// hideHTTP makes etcd serve HTTP on a socket to which nobody can connect. It is needed because etcd's HTTP server
// cannot be switched off. If this member uses certificates, etcd would otherwise serve HTTP without TLS on the client
// address. The socket's folder is accessible only to the user who runs the process, and the method remove deletes the
// socket's file as soon as etcd listens. The path of the socket goes through a descriptor of the folder, because such
// a path may have at most 107 bytes.
func (c *MemberConfig) hideHTTP(ec *embed.Config) (hiddenHTTP, error) {
	if c.Certs == nil {
		return hiddenHTTP{}, nil
	}
	h := hiddenHTTP{name: filepath.Join(c.Dir, httpFolder)}
	err := os.RemoveAll(h.name) // this folder is left over if a process died while etcd was starting
	if err == nil {
		err = os.Mkdir(h.name, 0o700)
	}
	if err == nil {
		h.folder, err = os.Open(h.name)
	}
	if err != nil {
		return hiddenHTTP{}, fmt.Errorf("make the folder of the socket of etcd's HTTP: %w", err)
	}
	ec.ListenClientHttpUrls = []url.URL{{Scheme: "unix", Path: fmt.Sprintf("/proc/self/fd/%d/http", h.folder.Fd())}}
	return h, nil
}

// remove deletes the socket's folder and the socket's file in it.
func (h hiddenHTTP) remove() error {
	if h.folder == nil {
		return nil
	}
	return os.RemoveAll(h.name)
}

// close closes the folder's descriptor. It must be called after etcd has stopped, because etcd looks for the socket's
// file through this descriptor when it stops.
func (h hiddenHTTP) close() {
	if h.folder != nil {
		_ = h.folder.Close() // the folder was opened only for its descriptor
	}
}

// admit returns an error unless the caller is a process of the store. Clients of the store's API have no access to
// etcd. Two kinds of calls are always admitted: health checks, and calls over connections without TLS, which exist
// only if the mode allows them.
func (c *MemberConfig) admit(ctx context.Context, method string) error {
	who, known := certs.PeerOf(ctx)
	switch {
	case strings.HasPrefix(method, "/"+healthv1.Health_ServiceDesc.ServiceName+"/"), certs.Plain(ctx):
		return nil
	case !known || !who.IsComponent() || who.Store != c.Certs.Identity().Store:
		return status.Errorf(codes.PermissionDenied,
			"%s may not call the etcd of store %s, which is for the store's own processes", who, c.Certs.Identity().UID)
	}
	return nil
}

// peerTLS returns etcd's TLS configuration for connections between peers, in both directions. A peer is accepted if
// its certificate has the same name as this member's certificate. All members share that name, and no other process
// has it.
func (c *MemberConfig) peerTLS() transport.TLSInfo {
	if c.Certs == nil {
		return c.PeerTLS.info()
	}
	file := func(name string) string { return filepath.Join(c.Certs.Dir(), name) }
	host, _, _ := net.SplitHostPort(c.AdvertisePeerTLS) // setDefaults has already checked this address
	out := transport.TLSInfo{
		CertFile: file(certs.CertificateFile), KeyFile: file(certs.KeyFile), TrustedCAFile: file(certs.BundleFile),
		ClientCertAuth:   true,
		AllowedHostnames: []string{host},
		// Pods connect from addresses that are not in any certificate. Therefore the name in the certificate is checked
		// instead.
		SkipClientSANVerify: true,
	}
	if c.Certs.HasClientCertificate() {
		out.ClientCertFile, out.ClientKeyFile = file(certs.ClientCertificateFile), file(certs.ClientKeyFile)
	}
	return out
}

// peerAddress returns the peer URL of a member. The argument is the member's peer address without TLS (host:port).
func (c *MemberConfig) peerAddress(address string) url.URL {
	switch {
	case c.Certs == nil:
		return c.PeerTLS.url(address)
	case c.started.Mode == certs.Plaintext:
		return url.URL{Scheme: "http", Host: address}
	case address == c.AdvertisePeer:
		return url.URL{Scheme: "https", Host: c.AdvertisePeerTLS}
	}
	host, _, _ := net.SplitHostPort(address)
	_, port, _ := net.SplitHostPort(c.AdvertisePeerTLS) // setDefaults has already checked both addresses
	return url.URL{Scheme: "https", Host: net.JoinHostPort(host, port)}
}

// peerURL is like peerAddress, but returns the URL as a string.
func (c *MemberConfig) peerURL(address string) string {
	at := c.peerAddress(address)
	return at.String()
}

// ownURLs returns all URLs under which the cluster may list this member. While the cluster changes to TLS, there are
// two.
func (c *MemberConfig) ownURLs() []string {
	out := []string{c.peerURL(c.AdvertisePeer)}
	if c.Certs != nil {
		out = append(out, "http://"+c.AdvertisePeer, "https://"+c.AdvertisePeerTLS)
	}
	return out
}

// initialOf returns the initial cluster in etcd's syntax, without this member. The URLs are those that the cluster
// reports, because etcd compares them with the URLs of the members.
func initialOf(in *rejoinInput) string {
	var out []string
	for _, p := range in.View.Peers {
		if in.isMe(p.PeerURLs) {
			continue
		}
		for _, u := range p.PeerURLs {
			out = append(out, p.Name+"="+u)
		}
	}
	return strings.Join(out, ",")
}

// announce changes this member's URL in the cluster to the one that its mode requires.
func (m *Member) announce(ctx context.Context) {
	if m.cfg.Certs == nil || !m.joined(ctx) {
		return
	}
	want := []string{m.cfg.peerURL(m.cfg.AdvertisePeer)}
	for said := ""; ; {
		self := m.etcd.Server.Cluster().Member(m.etcd.Server.MemberID())
		if self == nil || slices.Equal(self.PeerURLs, want) {
			return
		}
		_, err := m.client.MemberUpdate(ctx, uint64(self.ID), want)
		if err == nil {
			m.logger.Info("the other members of etcd are given a new address", "name", m.cfg.Name, "url", want[0], "before",
				self.PeerURLs)
			return
		}
		if err.Error() != said && ctx.Err() == nil {
			said = err.Error()
			m.logger.Warn("the other members of etcd do not take this member's new address yet", "name", m.cfg.Name, "url",
				want[0], "answer", said)
		}
		if !backoff.Sleep(ctx, rejoinPause) {
			return
		}
	}
}

// Report describes the certificates that a member uses. It shows the authorities and the mode from the time when the
// member started, because peer connections still use these. It returns false if the member has no certificates.
func (m *Member) Report() (certs.Report, bool) {
	if m.cfg.Certs == nil {
		return certs.Report{}, false
	}
	out := m.cfg.Certs.Report()
	out.Mode, out.Bundle = m.cfg.started.Mode, m.cfg.started.Bundle
	return out, true
}
