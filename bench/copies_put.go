package bench

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"sheaf.dev/sheaf/bench/drive"
	"sheaf.dev/sheaf/bench/rounds"
)

const (
	copiesWriters = 64
	copiesGroups  = 64
	copiesOf      = 3
)

// putSide is one side of the put comparison. It has the given number of copies, with or without TLS.
type putSide struct {
	name   string
	copies int
	secure *authorities // nil for plaintext
}

const putsWithTLS = "copies 3 with TLS"

// measurePuts measures durable puts to groups with three copies. The baseline is three plain appenders, of which two
// receive the bytes over loopback. With CopiesOptions.TLS, it also compares mutual TLS with plaintext.
func (b *copiesBench) measurePuts(ctx context.Context) (err error) {
	dir, err := b.folder("put")
	if err != nil {
		return err
	}
	nodes := map[string]*benchNodes{}
	defer func() {
		for _, n := range nodes {
			err = errors.Join(err, n.close())
		}
	}()
	sides := []putSide{{"copies 1", 1, nil}, {"copies 3", copiesOf, nil}}
	if b.opts.TLS {
		secure, err := newAuthorities()
		if err != nil {
			return err
		}
		defer secure.close()
		sides = append(sides, putSide{putsWithTLS, copiesOf, secure})
	}
	for _, side := range sides {
		if nodes[side.name], err = newNodes(ctx, filepath.Join(dir, side.name), side.copies, copiesGroups,
			side.secure); err != nil {
			delete(nodes, side.name)
			return fmt.Errorf("%s: %w", side.name, err)
		}
	}
	for _, size := range []int{10 << 10, 1 << 10} {
		if err := b.putsOf(ctx, dir, nodes, size); err != nil {
			return err
		}
	}
	return nil
}

func (b *copiesBench) putsOf(ctx context.Context, dir string, nodes map[string]*benchNodes, size int) error {
	ours := func(side string) rounds.Cell {
		return loadCell(side, func() (drive.Load, error) { return nodes[side].put(ctx, copiesWriters, size, b.opts.Time) })
	}
	raw := func(mode appendMode) func() (drive.Load, error) {
		return func() (drive.Load, error) { return rawCopies(ctx, dir, mode, copiesWriters, size, b.opts.Time) }
	}
	cells := []rounds.Cell{
		loadCell("own files", raw(ownFiles)), ours("copies 3"), loadCell("one file", raw(groupOfOne)), ours("copies 1"),
	}
	if b.opts.TLS {
		cells = append(cells, ours(putsWithTLS))
	}
	got, err := b.takeTurns(ctx, cells...)
	if err != nil {
		return err
	}
	bytes := func(name string) []float64 { return times(got.Rate(name), float64(size)) }
	target := 0.8
	if size < 10<<10 {
		target = 0
	}
	name := fmt.Sprintf("durable put of %d KB with copies 3, %d writers, %d groups", size>>10, copiesWriters, copiesGroups)
	b.add(
		against(name+" / 3 plain appenders, a file per writer", "B/s", bytes("copies 3"), bytes("own files"), target).
			WithNote("plain: each writer appends to a file of its own on each of 3 folders and calls fdatasync, two of them "+
				"behind a TCP connection over loopback; it goes on when 2 of 3 are durable"),
		against(name+" / 3 plain appenders, a file each", "B/s", bytes("copies 3"), bytes("one file"), target).
			WithNote("the same with one file per folder, where one fdatasync serves all that wait: the least that a group "+
				"commit can be"),
		got.atMost("its p99 / p99 with copies 1", "s", p99, "copies 3", "copies 1", 3*target/0.8),
		against(name+" / copies 1", "B/s", bytes("copies 3"), bytes("copies 1"), 0),
	)
	if b.opts.TLS {
		b.add(
			against(name+", with mutual TLS / without", "B/s", bytes(putsWithTLS), bytes("copies 3"), 0.9),
			got.atMost("its p99 / p99 without TLS", "s", p99, putsWithTLS, "copies 3", 0),
		)
	}
	return nil
}

// appender appends to plain files and syncs them. There is one file for all writers, or one file for each writer.
type appender struct {
	mode  appendMode
	files []*os.File // one file for all writers, or one file for each writer
	one   *groupFile
}

func newAppender(dir string, name string, mode appendMode, writers int) (*appender, error) {
	a := &appender{mode: mode}
	if mode == groupOfOne {
		writers = 1
	}
	for i := range writers {
		f, err := os.Create(filepath.Join(dir, fmt.Sprintf("raw-%s-%03d", name, i)))
		if err != nil {
			return a, err
		}
		a.files = append(a.files, f)
	}
	a.one = &groupFile{f: a.files[0]}
	a.one.cond.L = &a.one.mu
	return a, nil
}

func (a *appender) append(writer int, payload []byte) error {
	if a.mode == groupOfOne {
		return a.one.append(payload)
	}
	if _, err := a.files[writer].Write(payload); err != nil {
		return err
	}
	return unix.Fdatasync(int(a.files[writer].Fd()))
}

func (a *appender) close() error {
	errs := make([]error, 0, 2*len(a.files))
	for _, f := range a.files {
		errs = append(errs, f.Close(), os.Remove(f.Name()))
	}
	return errors.Join(errs...)
}

// remoteAppender is an appender behind loopback. Each writer has a connection, on which it sends records and receives
// a byte for each durable record.
type remoteAppender struct {
	*appender
	listener net.Listener
	group    sync.WaitGroup
}

func newRemoteAppender(ctx context.Context, dir, name string, mode appendMode, writers, size int) (r *remoteAppender,
	err error) {
	r = &remoteAppender{}
	if r.appender, err = newAppender(dir, name, mode, writers); err != nil {
		return r, err
	}
	if r.listener, err = new(net.ListenConfig).Listen(ctx, "tcp", "127.0.0.1:0"); err != nil {
		return r, err
	}
	r.group.Go(func() {
		for writer := 0; ; writer++ {
			conn, err := r.listener.Accept()
			if err != nil {
				return
			}
			r.group.Go(func() {
				_ = r.serve(conn, writer, size) // after an error, the connection is closed, so the writer fails
				_ = conn.Close()
			})
		}
	})
	return r, nil
}

func (r *remoteAppender) serve(conn net.Conn, writer, size int) error {
	record := make([]byte, size)
	for {
		if _, err := io.ReadFull(conn, record); err != nil {
			return err
		}
		if err := r.append(writer, record); err != nil {
			return err
		}
		if _, err := conn.Write([]byte{1}); err != nil {
			return err
		}
	}
}

func (r *remoteAppender) close() error {
	if r.listener != nil {
		_ = r.listener.Close()
	}
	r.group.Wait()
	return r.appender.close()
}

// behindMax is the maximum number of records by which the slower remote appender may lag behind.
const behindMax = 16

// rawWriter sends each record to all remote appenders. While these are writing it, rawWriter appends the record to the
// local file.
type rawWriter struct {
	conns []net.Conn
	acks  []chan struct{}
	count []int64
}

func newRawWriter(ctx context.Context, remotes []*remoteAppender) (*rawWriter, error) {
	w := &rawWriter{}
	for _, r := range remotes {
		conn, err := new(net.Dialer).DialContext(ctx, "tcp", r.listener.Addr().String())
		if err != nil {
			return w, err
		}
		acks := make(chan struct{}, 4*behindMax)
		w.conns, w.acks, w.count = append(w.conns, conn), append(w.acks, acks), append(w.count, 0)
		go func() {
			defer close(acks)
			for b := make([]byte, 1); ; {
				if _, err := conn.Read(b); err != nil {
					return
				}
				acks <- struct{}{}
			}
		}()
	}
	return w, nil
}

// put sends record number n, counted from 1. It returns when the writer's own copy and one other copy are durable.
func (w *rawWriter) put(own *appender, writer int, n int64, payload []byte) error {
	for _, conn := range w.conns {
		if _, err := conn.Write(payload); err != nil {
			return err
		}
	}
	if err := own.append(writer, payload); err != nil {
		return err
	}
	for max(w.count[0], w.count[1]) < n || min(w.count[0], w.count[1]) < n-behindMax {
		var ok bool
		var i int
		select {
		case _, ok = <-w.acks[0]:
		case _, ok = <-w.acks[1]:
			i = 1
		}
		if !ok {
			return errors.New("a plain appender has failed")
		}
		w.count[i]++
	}
	return nil
}

func (w *rawWriter) close() {
	for i, conn := range w.conns {
		_ = conn.Close() // makes the goroutine that reads from the connection return
		for range w.acks[i] {
		}
	}
}

// rawCopies appends records to three folders with concurrent writers, for the given duration.
func rawCopies(
	ctx context.Context, dir string, mode appendMode, writers, size int, duration time.Duration,
) (out drive.Load, err error) {
	own, err := newAppender(dir, "0", mode, writers)
	defer func() { err = errors.Join(err, own.close()) }()
	if err != nil {
		return out, err
	}
	var remotes []*remoteAppender
	for i := 1; i < copiesOf; i++ {
		r, err := newRemoteAppender(ctx, dir, fmt.Sprint(i), mode, writers, size)
		remotes = append(remotes, r)
		defer func() { _ = r.close() }() // an error does not matter, because the files are removed anyway
		if err != nil {
			return out, err
		}
	}
	each := make([]*rawWriter, writers)
	for i := range each {
		each[i], err = newRawWriter(ctx, remotes)
		defer each[i].close()
		if err != nil {
			return out, err
		}
	}
	payload := randomBytes(size)
	numbers := make([]int64, writers)
	return drive.Callers(writers, duration, func(worker int, _ int64) error {
		numbers[worker]++
		return each[worker].put(own, worker, numbers[worker], payload)
	})
}
