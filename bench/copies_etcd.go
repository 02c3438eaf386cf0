package bench

import (
	"context"
	"fmt"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"sheaf.dev/sheaf/bench/drive"
	"sheaf.dev/sheaf/internal/placement/etcd"
	"sheaf.dev/sheaf/internal/test/loopback"
)

// peerCallers is the number of callers, each of which waits for a response before its next call. Puts are also measured
// with peerCallersMany callers, because concurrent writes share syncs.
const (
	peerCallers     = 64
	peerCallersMany = 512
)

// peerRecords is the number of records that are read.
const peerRecords = 10000

// compareEtcd compares unary calls to Sheaf with unary calls to etcd. Both have three members on this machine and the
// same durability.
func (b *copiesBench) compareEtcd(ctx context.Context) error {
	dir, err := b.folder("etcd")
	if err != nil {
		return err
	}
	s, err := startStore(ctx, filepath.Join(dir, "ours"), b.opts.Binary, 3, copiesOf, copiesGroups)
	if err != nil {
		return err
	}
	defer s.close()
	e, err := startEtcdCluster(ctx, filepath.Join(dir, "etcd"), b.opts.Binary)
	if err != nil {
		return err
	}
	defer e.close()
	for _, size := range []int{1 << 10, 10 << 10} {
		if err := b.peerOf(ctx, s, e, size); err != nil {
			return err
		}
	}
	return nil
}

func (b *copiesBench) peerOf(ctx context.Context, s *benchStore, e *etcdCluster, size int) error {
	data := randomBytes(size)
	if err := s.fill(ctx, peerRecords, size); err != nil {
		return err
	}
	if err := e.fill(ctx, peerRecords, data); err != nil {
		return err
	}
	side := func(count int, call func(id int64) error) func() (drive.Load, error) {
		return func() (drive.Load, error) {
			return drive.Callers(count, b.opts.Time/2, func(_ int, i int64) error {
				return call(drive.Scatter(i) % peerRecords)
			})
		}
	}
	got, err := b.takeTurns(ctx,
		loadCell("put", side(peerCallers, func(id int64) error { return s.put(ctx, id, data) })),
		loadCell("etcd put", side(peerCallers, func(id int64) error { return e.put(ctx, id, data) })),
		loadCell("put by many", side(peerCallersMany, func(id int64) error { return s.put(ctx, id, data) })),
		loadCell("etcd put by many", side(peerCallersMany, func(id int64) error { return e.put(ctx, id, data) })),
		loadCell("get", side(peerCallers, func(id int64) error { return s.get(ctx, id, size) })),
		loadCell("etcd get", side(peerCallers, func(id int64) error { return e.get(ctx, id, size) })),
		loadCell("etcd serializable", side(peerCallers, func(id int64) error {
			return e.get(ctx, id, size, clientv3.WithSerializable())
		})),
	)
	if err != nil {
		return err
	}
	nameOf := func(what string, count int) string {
		return fmt.Sprintf("%s of %d KB, copies 3, %d callers, ", what, size>>10, count)
	}
	name := func(what string) string { return nameOf(what, peerCallers) }
	groups := fmt.Sprintf("%d groups / ", copiesGroups)
	many := func(what string) string { return nameOf(what, peerCallersMany) }
	b.add(
		got.against(name("unary put")+groups+"etcd put, 3 members", "/s", "put", "etcd put", 1).
			WithNote("3 processes on each side, on one device, a put durable on 2 of 3; the target is to be faster"),
		got.atMost(name("unary put")+"p99 / etcd", "s", p99, "put", "etcd put", 0),
		got.against(many("unary put")+groups+"etcd put, 3 members", "/s", "put by many", "etcd put by many", 1),
		got.atMost(many("unary put")+"p99 / etcd", "s", p99, "put by many", "etcd put by many", 0),
		got.against(name("unary get")+groups+"etcd range, linearizable", "/s", "get", "etcd get", 1),
		got.against(name("unary get")+groups+"etcd range, serializable", "/s", "get", "etcd serializable", 0).
			WithNote("ours is linearizable; a serializable one may be stale"),
	)
	return nil
}

// etcdCluster is an etcd with three members. Each member is a process of the same program, sheaf.
type etcdCluster struct {
	members []*drive.Process
	client  *clientv3.Client
}

func startEtcdCluster(ctx context.Context, dir, binary string) (e *etcdCluster, err error) {
	e = &etcdCluster{}
	defer func() {
		if err != nil {
			e.close()
		}
	}()
	addresses := make([]string, 2*copiesOf)
	for i := range addresses {
		if addresses[i], err = loopback.FreeAddress(); err != nil {
			return e, err
		}
	}
	clients, peers := addresses[:copiesOf], addresses[copiesOf:]
	var cluster []string
	for i, peer := range peers {
		cluster = append(cluster, fmt.Sprintf("e%d=%s", i, peer))
	}
	for i := range copiesOf {
		c, err := startChild(binary, "etcd", "--name", fmt.Sprintf("e%d", i), "--dir", filepath.Join(dir, strconv.Itoa(i)),
			"--listen-client", clients[i], "--listen-peer", peers[i], "--initial-cluster", strings.Join(cluster, ","), "--http",
			"",
			"--quota", "8GiB", "--log-level", "error")
		if err != nil {
			return e, err
		}
		e.members = append(e.members, c)
	}
	if e.client, err = etcd.Dial(etcd.ClientConfig{Endpoints: clients}); err != nil {
		return e, err
	}
	return e, drive.Eventually(ctx, "etcd serves", func() error {
		soon, cancel := context.WithTimeout(ctx, time.Second)
		defer cancel()
		_, err := e.client.Put(soon, "first", "")
		return err
	}, e.members...)
}

func (e *etcdCluster) close() {
	if e.client != nil {
		_ = e.client.Close()
	}
	for _, c := range e.members {
		c.Kill()
	}
}

func etcdKey(id int64) string { return strconv.FormatInt(id, 10) }

func (e *etcdCluster) put(ctx context.Context, id int64, data []byte) error {
	_, err := e.client.Put(ctx, etcdKey(id), string(data))
	return err
}

func (e *etcdCluster) get(ctx context.Context, id int64, size int, options ...clientv3.OpOption) error {
	r, err := e.client.Get(ctx, etcdKey(id), options...)
	if err == nil && (len(r.Kvs) != 1 || len(r.Kvs[0].Value) != size) {
		return fmt.Errorf("etcd: key %d does not hold %d bytes", id, size)
	}
	return err
}

func (e *etcdCluster) fill(ctx context.Context, records int64, data []byte) error {
	return drive.Shared(peerCallers, records, func(_ int, id int64) error { return e.put(ctx, id, data) })
}
