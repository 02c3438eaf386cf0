package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"
	clientv3 "go.etcd.io/etcd/client/v3"

	"sheaf.dev/sheaf/bench/drive"
	"sheaf.dev/sheaf/bench/peers/store"
	"sheaf.dev/sheaf/client"
	"sheaf.dev/sheaf/internal/test/loopback"
)

// servers returns the servers that are compared over the network. Each of them runs as one process and keeps one copy
// of the data.
func (b *bench) servers() []server {
	return []server{b.sheafServer(), b.etcdServer(), b.redisServer()}
}

// find looks for a program. If the program is not installed, the result missing says so, and what to do.
func find(program, flag, hint string) (path, missing string) {
	path, err := exec.LookPath(program)
	if err == nil {
		path, err = filepath.Abs(path) // the path must be absolute, because a server runs in its own folder
	}
	if err != nil {
		return "", fmt.Sprintf("%s is not there (%s): %s, or say where it is with %s", program, errors.Unwrap(err), hint,
			flag)
	}
	return path, ""
}

// versionOf returns the first line of the version that a program prints.
func versionOf(program string, args ...string) string {
	out, err := exec.CommandContext(context.Background(), program, args...).Output()
	line, _, _ := strings.Cut(string(out), "\n")
	if err != nil || line == "" {
		return "unknown version"
	}
	return line
}

func (b *bench) sheafServer() server {
	program, missing := find(b.opts.sheaf, "--sheaf", "run `make build`")
	s := server{name: "Sheaf", missing: missing}
	if missing != "" {
		return s
	}
	s.settings = versionOf(program,
		"version") + "; one shard, 16 groups, 1 copy, Resident; fdatasync before an answer; the Go client, direct, one " +
		"connection"
	s.start = func(ctx context.Context, dir string, _ int) (remote, error) {
		address, err := loopback.FreeAddress()
		if err != nil {
			return nil, err
		}
		p, err := startServer(ctx, dir, program, "dev", "--dir", dir+"/store", "--shards", "1", "--listen", address,
			"--http", "", "--residency", "resident")
		if err != nil {
			return nil, err
		}
		r := &sheafRemote{process: p}
		err = answers(ctx, p, func(ctx context.Context) error {
			c, err := client.Dial(ctx, client.Config{Addresses: []string{address}, Direct: true})
			if err != nil {
				return err
			}
			if _, err := c.Put(ctx, client.Key{ID: 1}, []byte("x"), nil); err != nil {
				return errors.Join(err, c.Close())
			}
			r.client = c
			return nil
		})
		if err != nil {
			p.Kill()
			return nil, err
		}
		return r, nil
	}
	return s
}

type sheafRemote struct {
	process *drive.Process
	client  *client.Client
}

func (r *sheafRemote) put(ctx context.Context, way string, records []store.Record) error {
	if way == sheafPut.name {
		_, err := r.client.Put(ctx, client.Key{ID: records[0].ID}, records[0].Data, nil)
		return err
	}
	items := make([]client.PutItem, 0, len(records))
	for _, record := range records {
		items = append(items, client.PutItem{Key: client.Key{ID: record.ID}, Data: record.Data})
	}
	for _, o := range r.client.BatchPut(ctx, items) {
		if o.Err != nil {
			return o.Err
		}
	}
	return nil
}

func (r *sheafRemote) get(ctx context.Context, id int64) ([]byte, error) {
	record, err := r.client.Get(ctx, client.Key{ID: id}, nil)
	return record.Data, err
}

func (r *sheafRemote) Close() error {
	err := r.client.Close()
	r.process.Kill()
	return err
}

func (b *bench) etcdServer() server {
	program, missing := find(b.opts.etcd, "--etcd", "run `hack/kube/build.sh etcd` or install etcd-server")
	s := server{name: "etcd", missing: missing}
	if missing != "" {
		return s
	}
	s.settings = versionOf(program,
		"--version") + "; one member; its WAL is synced before an answer (its default); the Go client, one connection"
	s.start = func(ctx context.Context, dir string, _ int) (remote, error) {
		clients, err := loopback.FreeAddress()
		if err != nil {
			return nil, err
		}
		peers, err := loopback.FreeAddress()
		if err != nil {
			return nil, err
		}
		p, err := startServer(ctx, dir, program, "--data-dir", dir+"/data",
			"--listen-client-urls", "http://"+clients, "--advertise-client-urls", "http://"+clients,
			"--listen-peer-urls", "http://"+peers, "--initial-advertise-peer-urls", "http://"+peers, "--initial-cluster",
			"default=http://"+peers,
			"--quota-backend-bytes", strconv.Itoa(8<<30), "--log-level", "error")
		if err != nil {
			return nil, err
		}
		c, err := clientv3.New(clientv3.Config{Endpoints: []string{clients}, DialTimeout: 5 * time.Second})
		if err != nil {
			p.Kill()
			return nil, err
		}
		r := &etcdRemote{p, c}
		err = answers(ctx, p, func(ctx context.Context) error {
			_, err := c.Put(ctx, etcdKey(1), "x")
			return err
		})
		if err != nil {
			return nil, errors.Join(err, r.Close())
		}
		return r, nil
	}
	return s
}

type etcdRemote struct {
	process *drive.Process
	client  *clientv3.Client
}

func etcdKey(id int64) string { return fmt.Sprintf("r%016x", id) }

func (r *etcdRemote) put(ctx context.Context, _ string, records []store.Record) error {
	for _, record := range records {
		if _, err := r.client.Put(ctx, etcdKey(record.ID), string(record.Data)); err != nil {
			return err
		}
	}
	return nil
}

func (r *etcdRemote) get(ctx context.Context, id int64) ([]byte, error) {
	answer, err := r.client.Get(ctx, etcdKey(id), clientv3.WithSerializable())
	if err != nil || len(answer.Kvs) == 0 {
		return nil, err
	}
	return answer.Kvs[0].Value, nil
}

func (r *etcdRemote) Close() error {
	err := r.client.Close()
	r.process.Kill()
	return err
}

func (b *bench) redisServer() server {
	program, missing := find(b.opts.redis, "--redis", "install Debian's redis-server")
	s := server{name: "Redis", missing: missing}
	if missing != "" {
		return s
	}
	s.settings = versionOf(program, "--version") + "; appendonly yes, appendfsync always, save \"\"; go-redis " +
		store.ModuleVersion("github.com/redis/go-redis/v9") + ", a connection per caller"
	s.start = func(ctx context.Context, dir string, callers int) (remote, error) {
		address, err := loopback.FreeAddress()
		if err != nil {
			return nil, err
		}
		_, port, err := net.SplitHostPort(address)
		if err != nil {
			return nil, err
		}
		p, err := startServer(ctx, dir, program, "--bind", "127.0.0.1", "--port", port, "--dir", dir,
			"--appendonly", "yes", "--appendfsync", "always", "--no-appendfsync-on-rewrite", "no", "--save", "", "--daemonize",
			"no")
		if err != nil {
			return nil, err
		}
		r := &redisRemote{p, redis.NewClient(&redis.Options{Addr: address, PoolSize: callers, ReadTimeout: time.Minute,
			WriteTimeout: time.Minute})}
		if err := answers(ctx, p, func(ctx context.Context) error { return r.client.Ping(ctx).Err() }); err != nil {
			return nil, errors.Join(err, r.Close())
		}
		return r, nil
	}
	return s
}

type redisRemote struct {
	process *drive.Process
	client  *redis.Client
}

func redisKey(id int64) string { return strconv.FormatInt(id, 10) }

func (r *redisRemote) put(ctx context.Context, way string, records []store.Record) error {
	if way == redisPut.name {
		return r.client.Set(ctx, redisKey(records[0].ID), records[0].Data, 0).Err()
	}
	pipe := r.client.Pipeline()
	for _, record := range records {
		pipe.Set(ctx, redisKey(record.ID), record.Data, 0)
	}
	_, err := pipe.Exec(ctx)
	return err
}

func (r *redisRemote) get(ctx context.Context, id int64) ([]byte, error) {
	return r.client.Get(ctx, redisKey(id)).Bytes()
}

func (r *redisRemote) Close() error {
	err := r.client.Close()
	r.process.Kill()
	return err
}
