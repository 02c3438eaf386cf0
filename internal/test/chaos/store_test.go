package chaos

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	"sheaf.dev/sheaf/client/recordv1"
	"sheaf.dev/sheaf/internal/test/must"
)

// storeName is the name of the store in etcd.
const storeName = "chaos"

// copies is the number of copies of each group.
const copies = 3

// store consists of etcd, gateways and shards. Each is a process on its own machine.
type store struct {
	*rig
	cfg      config
	etcds    []*server
	gateways []*server
	shards   []*server
	spare    *machine // machine for the second process of a shard (a twin)
	common   []string // arguments that all gateways and shards receive
}

// server is a program of the store that is started repeatedly with the same arguments.
type server struct {
	*process
	machine *machine
	name    string
	args    []string
	http    string
	dir     string // for a shard, the folder of its volume
	disk    string // for a shard, the mount point of its disk
	conn    *grpc.ClientConn
	admin   recordv1.AdminServiceClient
}

func (s *server) grpc() string { return s.machine.address + ":7610" }

func (s *server) start() (err error) {
	s.process, err = s.machine.launch(s.name, s.args...)
	return err
}

func (s *server) ready() error {
	if !s.alive() {
		return fmt.Errorf("%w: %s has ended: %s", errHopeless, s.name, s.logTail())
	}
	return s.machine.rig.fetchPage(s.http, "/readyz")
}

// logTail returns the end of the process's log.
func (p *process) logTail() string {
	text, err := os.ReadFile(p.log)
	if err != nil {
		return err.Error()
	}
	return string(text[max(0, len(text)-1500):])
}

// newStore starts a store and waits until every group has all its copies.
func newStore(r *rig, cfg config) *store {
	s := &store{rig: r, cfg: cfg}
	s.startEtcds()
	s.startGateways()
	for i := range cfg.shards {
		s.addShard(i)
	}
	if cfg.spare {
		s.spare = r.newNode("spare")
	}
	must.OK(r.t, await("every group has its copies", 5*time.Minute, s.settledNow))
	must.OK(r.t, await("every copy has a vote", 5*time.Minute, s.noMoves))
	return s
}

// noMoves returns an error that names the moves in progress according to etcd. Until a move is complete, one of the
// copies may have no vote.
func (s *store) noMoves() error {
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	conn, err := grpc.NewClient(s.gateways[0].machine.address+":7600", s.dialOptions()...)
	if err != nil {
		return err
	}
	defer conn.Close()
	answer, err := recordv1.NewAdminServiceClient(conn).PlanMoves(ctx, &recordv1.PlanMovesRequest{})
	if err != nil {
		return err
	}
	for _, m := range answer.GetMoves() {
		if m.GetRunning() {
			return fmt.Errorf("group %s moves from %v to %v", m.GetGroup(), m.GetFrom(), m.GetTo())
		}
	}
	return nil
}

func (s *store) startEtcds() {
	var cluster, endpoints []string
	for i := range s.cfg.etcds {
		e := &server{machine: s.newNode("etcd-" + strconv.Itoa(i)), name: "etcd-" + strconv.Itoa(i)}
		e.http = e.machine.address + ":2381"
		cluster = append(cluster, e.name+"="+e.machine.address+":2380")
		endpoints = append(endpoints, e.machine.address+":2379")
		s.etcds = append(s.etcds, e)
	}
	for _, e := range s.etcds {
		at := e.machine.address
		e.args = []string{
			sheafBinary, "etcd", "--name", e.name, "--dir", filepath.Join(s.dir, e.name), "--listen-client", at + ":2379",
			"--listen-peer", at + ":2380", "--http", e.http, "--initial-cluster", strings.Join(cluster, ","),
		}
		must.OK(s.t, e.start())
	}
	for _, e := range s.etcds {
		must.OK(s.t, await(e.name, 2*time.Minute, e.ready))
	}
	s.common = []string{"--etcd", strings.Join(endpoints, ","), "--store", storeName}
}

func (s *store) startGateways() {
	for i := range 2 {
		g := &server{machine: s.newNode("gateway-" + strconv.Itoa(i)), name: "gateway-" + strconv.Itoa(i)}
		g.http = g.machine.address + ":7601"
		g.args = append([]string{
			sheafBinary, "gateway", "--listen", g.machine.address + ":7600", "--http", g.http, "--create", "--groups",
			strconv.Itoa(s.cfg.groups),
			"--copies", strconv.Itoa(copies), "--shards-min", strconv.Itoa(s.cfg.shards),
		}, s.common...)
		must.OK(s.t, g.start())
		must.OK(s.t, await(g.name, 2*time.Minute, g.ready))
		s.gateways = append(s.gateways, g)
	}
}

// All disks have the same size, because the planner must give all shards the same share. One of the disks can be made
// slow.
const (
	filledDisk = 1
	slowedDisk = 2
	diskBytes  = 512 << 20

	// memoryOfShard is the memory limit that a shard's programs see. It is small, so that a few callers can overload the
	// shard.
	memoryOfShard = 256 << 20
)

// limitMemory makes the programs in the machine see a memory limit. The kernel does not enforce this limit.
func (m *machine) limitMemory(bytes int64) {
	const cgroups = "/sys/fs/cgroup"
	m.must("mount", "-t", "tmpfs", "tmpfs", cgroups)
	must.OK(m.rig.t, os.WriteFile(m.path(cgroups+"/memory.max"), []byte(strconv.FormatInt(bytes, 10)), 0o644))
}

func (s *store) addShard(number int) {
	name := string(rune('a' + number))
	h := &server{machine: s.newNode(name), name: name}
	h.machine.limitMemory(memoryOfShard)
	switch {
	case !s.cfg.disks:
		h.disk = s.dir
	case number == slowedDisk:
		h.disk = h.machine.mountSlowDisk(diskBytes)
	default:
		h.disk = h.machine.mountDisk(diskBytes)
	}
	h.dir = filepath.Join(h.disk, "volume-"+name)
	h.http = h.machine.address + ":7611"
	h.args = s.shardArgs(name, h.machine.address, h.dir)
	must.OK(s.t, h.start())
	var err error
	h.conn, err = grpc.NewClient(h.grpc(), s.dialOptions()...)
	must.OK(s.t, err)
	s.t.Cleanup(func() { h.conn.Close() })
	h.admin = recordv1.NewAdminServiceClient(h.conn)
	s.shards = append(s.shards, h)
}

// shardArgs returns a shard's arguments. They set small segments and frequent compaction, so that a run contains many
// new segments and compactions.
func (s *store) shardArgs(name, address, dir string) []string {
	return append([]string{
		sheafBinary, "shard", "--name", name, "--dir", dir, "--listen", address + ":7610", "--http", address + ":7611",
		"--segment-bytes", "1MiB", "--compaction-interval", "1s", "--compaction-min", "1MiB", "--compaction-share", "0.3",
	}, s.common...)
}

func (s *store) dialOptions() []grpc.DialOption {
	return []grpc.DialOption{
		grpc.WithTransportCredentials(insecure.NewCredentials()), grpc.WithContextDialer(s.dialGRPC),
		grpc.WithConnectParams(grpc.ConnectParams{MinConnectTimeout: time.Second}),
	}
}

// replica is a shard's report about one of its replicas.
type replica struct {
	shard *server
	row   *recordv1.Group
}

// survey asks all shards except the given ones for their replicas, and returns the replicas by group. It skips shards
// that do not respond.
func (s *store) survey(but ...*server) (map[string][]replica, error) {
	ctx, cancel := context.WithTimeout(context.Background(), 3*time.Second)
	defer cancel()
	var (
		mu   sync.Mutex
		wait sync.WaitGroup
		errs []error
	)
	all := map[string][]replica{}
	for _, h := range s.shards {
		if slices.Contains(but, h) {
			continue
		}
		wait.Go(func() {
			h.conn.ResetConnectBackoff()
			answer, err := h.admin.ListGroups(ctx, &recordv1.ListGroupsRequest{})
			mu.Lock()
			defer mu.Unlock()
			if err != nil {
				errs = append(errs, fmt.Errorf("shard %s: %w", h.name, err))
			}
			for _, row := range answer.GetGroups() {
				all[row.GetGroup()] = append(all[row.GetGroup()], replica{h, row})
			}
		})
	}
	wait.Wait()
	return all, errors.Join(errs...)
}

// groupsLedBy returns the groups that a shard leads.
func groupsLedBy(all map[string][]replica, h *server) (groups []string) {
	for name, replicas := range all {
		for _, r := range replicas {
			if r.shard == h && r.row.GetLeader() {
				groups = append(groups, name)
			}
		}
	}
	slices.Sort(groups)
	return groups
}

// checkWhole returns an error unless each group has all its copies, all copies serve, and one of them leads.
func (s *store) checkWhole(all map[string][]replica) error {
	var errs []error
	for g := range s.cfg.groups {
		name, serving, leaders := strconv.Itoa(g), 0, 0
		words := ""
		for _, r := range all[name] {
			if r.row.GetState() == recordv1.GroupState_GROUP_STATE_SERVING {
				serving++
			}
			if r.row.GetLeader() {
				leaders++
			}
			words += fmt.Sprintf(" %s %v at %d %s", r.shard.name, r.row.GetState(), r.row.GetAppliedIndex(), r.row.GetMessage())
		}
		if serving != copies || len(all[name]) != copies || leaders != 1 {
			errs = append(errs, fmt.Errorf("group %s has %d of %d copies and %d leaders:%s", name, serving, copies, leaders,
				words))
		}
	}
	return errors.Join(errs...)
}

// settledNow returns an error with the reason why the store is not whole at this moment.
func (s *store) settledNow() error {
	all, err := s.survey()
	if err != nil {
		return err
	}
	return s.checkWhole(all)
}

// settle waits until the store is whole and no replica is behind. A replica counts as behind until it has applied
// every entry that any replica had already applied when settle was called.
func (s *store) settle() error {
	if err := await("the store is whole again", 3*time.Minute, s.settledNow); err != nil {
		return err
	}
	goal := map[string]uint64{}
	return await("all copies have caught up", 3*time.Minute, func() error {
		all, err := s.survey()
		if err != nil {
			return err
		}
		first := len(goal) == 0
		for name, replicas := range all {
			for _, r := range replicas {
				if first {
					goal[name] = max(goal[name], r.row.GetAppliedIndex())
				} else if at := r.row.GetAppliedIndex(); at < goal[name] {
					return fmt.Errorf("shard %s has applied group %s up to %d of %d", r.shard.name, name, at, goal[name])
				}
			}
		}
		if first {
			return errors.New("not asked twice yet")
		}
		return s.checkWhole(all)
	})
}
