package peer

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"

	"github.com/google/uuid"
	"go.etcd.io/raft/v3/raftpb"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	peerv1 "sheaf.dev/sheaf/api/sheaf/peer/v1"
	"sheaf.dev/sheaf/internal/base/crc32c"
)

// errSilent aborts fetches from a peer that has fallen silent.
var errSilent = errors.New("it is silent")

// Fetcher fetches from one peer, or from the source of a restore. It uses separate connections, because files must not
// delay heartbeats. A call to a peer is aborted when the peer falls silent, because otherwise a call to a stopped
// process would last until the process is resumed. A source sends no heartbeats, so its connections are pinged instead.
type Fetcher struct {
	hub     *Hub
	shard   string // name of the peer; empty for a source
	address string // host:port of the source; empty for a peer
	founder uint64 // Raft id of the replica that installs from a source; 0 for a peer
}

// Fetcher returns a Fetcher for a peer.
func (h *Hub) Fetcher(shard string) *Fetcher { return &Fetcher{hub: h, shard: shard} }

// Source returns a Fetcher for the source of a restore, which has an address but no name. Only its method Group can be
// used. The argument founder is the Raft id of the replica that installs the group.
func (h *Hub) Source(address string, founder uint64) *Fetcher {
	return &Fetcher{hub: h, address: address, founder: founder}
}

// From describes the process from which the Fetcher fetches: a shard's name, or the address of a source.
func (f *Fetcher) From() string { return cmp.Or(f.shard, f.address) }

// whence names that process in errors.
func (f *Fetcher) whence() string {
	if f.shard == "" {
		return "the source of the restore at " + f.address
	}
	return "shard " + f.shard
}

func (f *Fetcher) dial() (*grpc.ClientConn, error) {
	if f.shard == "" {
		return f.hub.dialSource(f.address)
	}
	return f.hub.dial(f.shard)
}

// connect connects to the peer for one call. The returned function ends the call and closes the connection.
func (f *Fetcher) connect(ctx context.Context) (context.Context, peerv1.PeerServiceClient, func(), error) {
	conn, err := f.dial()
	if err != nil {
		return nil, nil, nil, err
	}
	ctx, cancel := f.hub.until(ctx)
	ctx, silent := context.WithCancelCause(ctx)
	leave := f.hub.onSilence(f.shard, func() { silent(errSilent) })
	return ctx, peerv1.NewPeerServiceClient(conn), func() {
		leave()
		silent(nil)
		cancel()
		_ = conn.Close() // a failed Close does not affect the received data
	}, nil
}

// failed returns the error of a failed call. If the peer has responded that it has no such replica, or that it is busy,
// the error wraps ErrNotHere or ErrBusy, so that callers can test for them.
func (f *Fetcher) failed(ctx context.Context, what string, group uuid.UUID, err error) error {
	var kind error
	if cause := context.Cause(ctx); errors.Is(cause, errSilent) {
		err = cause
	}
	switch status.Code(err) {
	case codes.NotFound:
		kind = ErrNotHere
	case codes.ResourceExhausted:
		kind = ErrBusy
	default:
		return fmt.Errorf("fetch %s of group %s from %s: %w", what, group, f.whence(), err)
	}
	return fmt.Errorf("fetch %s of group %s from %s: %w: %s", what, group, f.whence(), kind, status.Convert(err).
		Message())
}

// Group fetches a replica's files into sink. Files that sink already has are not sent again, so a caller may simply
// call Group again, for example after ErrBusy or a lost connection.
func (f *Fetcher) Group(ctx context.Context, group uuid.UUID, sink Sink) error {
	ctx, client, end, err := f.connect(ctx)
	if err != nil {
		return err
	}
	defer end()
	stream, err := client.FetchGroup(ctx)
	if err != nil {
		return f.failed(ctx, "the files", group, err)
	}
	start := &peerv1.FetchGroupStart{Header: f.hub.header(f.shard), Group: group[:], Founder: f.founder}
	if err := stream.Send(&peerv1.FetchGroupRequest{Part: &peerv1.FetchGroupRequest_Start{Start: start}}); err != nil &&
		!errors.Is(err, io.EOF) {
		return f.failed(ctx, "the files", group, err) // for io.EOF, Recv returns the reason
	}
	d, err := receiveDescription(stream)
	if err != nil {
		return f.failed(ctx, "the files", group, err)
	}
	if err := sink.Describe(d); err != nil {
		return err
	}
	for {
		wanted, err := sink.Wanted()
		if err != nil {
			return err
		}
		if len(wanted) == 0 {
			return f.finish(ctx, group, stream)
		}
		for len(wanted) > 0 {
			n := min(len(wanted), filesPerMessage)
			if err := receiveFiles(stream, wanted[:n], sink); err != nil {
				return f.failed(ctx, "the files", group, err)
			}
			wanted = wanted[n:]
		}
	}
}

// finish ends a call after all files have been received. A source counts the groups that were received completely, and
// frees the memory for another group only when the call has ended, so finish waits until the source has ended the call.
func (f *Fetcher) finish(ctx context.Context, group uuid.UUID, stream peerv1.PeerService_FetchGroupClient) error {
	err := stream.CloseSend()
	if err != nil || f.shard != "" {
		return err
	}
	if _, err = stream.Recv(); errors.Is(err, io.EOF) {
		return nil
	}
	if err == nil {
		err = fmt.Errorf("%w: a message comes after the last file", ErrCorrupt)
	}
	return f.failed(ctx, "the files", group, err)
}

// receiveFiles requests the wanted files, and receives them.
func receiveFiles(stream peerv1.PeerService_FetchGroupClient, wanted []FileRange, sink Sink) error {
	part := &peerv1.FetchGroupWanted{}
	for _, r := range wanted {
		part.Files = append(part.Files, &peerv1.FileRange{Name: r.Name, OffsetBytes: r.Offset})
	}
	err := stream.Send(&peerv1.FetchGroupRequest{Part: &peerv1.FetchGroupRequest_Wanted{Wanted: part}})
	if err != nil && !errors.Is(err, io.EOF) { // for io.EOF, Recv returns the reason
		return err
	}
	chunks := receiveChunks(chunkOfGroup, &peerv1.FetchGroupResponse{})
	defer chunks.free()
	next := chunks.next(stream.RecvMsg)
	committed := func() error { return nil } // waits until the previous file is committed
	for _, r := range wanted {
		file, err := sink.Create(r)
		if err != nil {
			return errors.Join(err, committed())
		}
		err = receiveFile(next, file, r)
		if before := committed(); err == nil {
			err = before
		}
		if err != nil {
			return fmt.Errorf("file %s: %w", r.Name, errors.Join(err, file.Close()))
		}
		committed = beginCommit(file, r.Name)
	}
	return committed()
}

// beginCommit starts to check, sync and close a received file while the next file is being received. The returned
// function waits for the result, and must be called once.
func beginCommit(file SinkFile, name string) (wait func() error) {
	over := make(chan error, 1)
	go func() {
		err := errors.Join(file.Commit(), file.Close())
		if err != nil {
			err = fmt.Errorf("file %s: %w", name, err)
		}
		over <- err
	}()
	return func() error { return <-over }
}

func receiveDescription(stream peerv1.PeerService_FetchGroupClient) (d Description, err error) {
	for {
		in, err := stream.Recv()
		if err != nil {
			return d, err
		}
		part := in.GetDescription()
		if part == nil {
			return d, fmt.Errorf("%w: no description", ErrCorrupt)
		}
		d.Manifest = append(d.Manifest, part.GetManifest()...)
		if !part.GetMore() {
			d.Index, d.Term, d.Bytes = part.GetIndex(), part.GetTerm(), part.GetTotalBytes()
			return d, nil
		}
	}
}

// receiveFile writes the chunks of one file.
func receiveFile(next func() (*peerv1.FileChunk, error), out io.Writer, r FileRange) error {
	for offset := r.Offset; ; {
		chunk, err := next()
		if errors.Is(err, io.EOF) {
			return io.ErrUnexpectedEOF
		}
		if err != nil {
			return err
		}
		data := chunk.GetData()
		switch {
		case chunk == nil, chunk.GetOffsetBytes() != offset, chunk.GetName() != "" && chunk.GetName() != r.Name:
			return fmt.Errorf("%w: chunk of %q at %d, expected is %q at %d", ErrCorrupt, chunk.GetName(), chunk.GetOffsetBytes(),
				r.Name, offset)
		case crc32c.Of(data) != chunk.GetDataCrc32C():
			return fmt.Errorf("%w: chunk at %d: checksum", ErrCorrupt, offset)
		}
		if _, err := out.Write(data); err != nil {
			return err
		}
		offset += int64(len(data))
		if !chunk.GetLast() {
			continue
		}
		if offset != r.Bytes {
			return fmt.Errorf("%w: %d bytes came of %d", ErrCorrupt, offset, r.Bytes)
		}
		return nil
	}
}

// Entries fetches the entries from first to last of a group's log, as far as the peer has applied them.
func (f *Fetcher) Entries(ctx context.Context, group uuid.UUID, first, last uint64) (out Entries, err error) {
	ctx, client, end, err := f.connect(ctx)
	if err != nil {
		return out, err
	}
	defer end()
	stream, err := client.FetchEntries(ctx, &peerv1.FetchEntriesRequest{
		Header: f.hub.header(f.shard), Group: group[:], IndexFirst: first, IndexLast: last,
	})
	for err == nil {
		var in *peerv1.FetchEntriesResponse
		if in, err = stream.Recv(); errors.Is(err, io.EOF) {
			return out, nil
		}
		if err == nil {
			err = out.add(in, first, last)
		}
	}
	return out, f.failed(ctx, "entries", group, err)
}

// add appends a part of the peer's response. The part must directly follow the parts before it.
func (out *Entries) add(in *peerv1.FetchEntriesResponse, first, last uint64) error {
	after := max(out.Through, first-1)
	for _, encoded := range in.GetEntries() {
		e := &raftpb.Entry{}
		if err := proto.Unmarshal(encoded, e); err != nil {
			return fmt.Errorf("%w: the entry after %d: %w", ErrCorrupt, after, err)
		}
		if e.GetIndex() <= after || e.GetIndex() > min(last, in.GetThrough()) {
			return fmt.Errorf("%w: entry %d comes after %d, in an answer through %d", ErrCorrupt, e.GetIndex(), after,
				in.GetThrough())
		}
		after = e.GetIndex()
		out.Entries = append(out.Entries, e)
	}
	out.Through, out.Applied = max(out.Through, in.GetThrough()), max(out.Applied, in.GetApplied())
	return nil
}

// Blob fetches a blob of size bytes, starting at offset.
func (f *Fetcher) Blob(ctx context.Context, group uuid.UUID, ref []byte, offset, size int64, out io.Writer) error {
	ctx, client, end, err := f.connect(ctx)
	if err != nil {
		return err
	}
	defer end()
	stream, err := client.FetchBlob(ctx, &peerv1.FetchBlobRequest{
		Header: f.hub.header(f.shard), Group: group[:], Ref: ref, OffsetBytes: offset,
	}, grpc.WaitForReady(false))
	if err != nil {
		return f.failed(ctx, "a blob", group, err)
	}
	chunks := receiveChunks(chunkOfBlob, &peerv1.FetchBlobResponse{})
	defer chunks.free()
	if err := receiveFile(chunks.next(stream.RecvMsg), out, FileRange{Offset: offset, Bytes: size}); err != nil {
		return f.failed(ctx, "a blob", group, err)
	}
	return nil
}
