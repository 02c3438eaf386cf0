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
	"syscall"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"sheaf.dev/sheaf/client/call/routing"
	"sheaf.dev/sheaf/client/recordv1"
	"sheaf.dev/sheaf/internal/status/finding"
)

// holdMin is the minimum time for which a process is stopped. It is longer than an election takes (at most 2 s) and
// longer than a registration remains in etcd after its last renewal (6 s).
const holdMin = 8 * time.Second

// awaitOtherLeaders waits until other shards lead all the given groups.
func (n *nemesis) awaitOtherLeaders(groups []string, but *server) error {
	return await("others lead the groups of shard "+but.name, time.Minute, func() error {
		all, err := n.survey(but)
		if err != nil {
			return err
		}
		for _, g := range groups {
			if !slices.ContainsFunc(all[g], func(r replica) bool { return r.row.GetLeader() }) {
				return fmt.Errorf("nobody else leads group %s", g)
			}
		}
		return nil
	})
}

func (n *nemesis) ledBy(victim *server) []string {
	all, _ := n.survey()
	return groupsLedBy(all, victim)
}

// awaitLeading waits until a shard leads at least one group, and returns all groups that it leads.
func (n *nemesis) awaitLeading(victim *server) (groups []string, err error) {
	return groups, await("shard "+victim.name+" leads a group", time.Minute, func() error {
		if groups = n.ledBy(victim); len(groups) == 0 {
			return errors.New("it leads none")
		}
		return nil
	})
}

// kill kills a shard with SIGKILL, and starts it again when other shards lead its groups.
func (n *nemesis) kill(victim *server) (string, error) {
	groups := n.ledBy(victim)
	victim.kill()
	if !victim.killed() {
		return "", fmt.Errorf("it was not killed: %v", victim.cmd.ProcessState)
	}
	at := time.Now()
	if err := n.awaitOtherLeaders(groups, victim); err != nil {
		return "", err
	}
	took := time.Since(at)
	if err := n.expectFinding(at, "shard "+victim.name, finding.ShardSilent); err != nil {
		return "", err
	}
	if err := victim.start(); err != nil {
		return "", err
	}
	return fmt.Sprintf("ended by SIGKILL, others lead its %d groups after %.1f s", len(groups), took.Seconds()),
		await("shard "+victim.name, 2*time.Minute, victim.ready)
}

// killWithoutEtcd kills a shard while etcd is stopped. The shard cannot serve again until etcd is back.
func (n *nemesis) killWithoutEtcd() error {
	all, err := n.survey()
	if err != nil {
		return err
	}
	victim := n.anyLeader(all)
	s := &span{kind: "kill", victim: victim.name, led: groupsLedBy(all, victim), begin: n.load.now()}
	n.t.Logf("%7.1fs kill of %s, which leads %d groups, without etcd", time.Duration(s.begin).Seconds(), victim.name,
		len(s.led))
	victim.kill()
	if !victim.killed() {
		return fmt.Errorf("shard %s was not killed: %v", victim.name, victim.cmd.ProcessState)
	}
	at := time.Now()
	if err := n.awaitOtherLeaders(s.led, victim); err != nil {
		return err
	}
	s.evidence = fmt.Sprintf("ended by SIGKILL without etcd, others lead its %d groups after %.1f s", len(s.led),
		time.Since(at).Seconds())
	n.spans = append(n.spans, s)
	if err := n.expectFinding(at, "shard "+victim.name, finding.ShardSilent); err != nil {
		return err
	}
	if err := n.awaitCalls(); err != nil {
		return err
	}
	s.end = n.load.now()
	return victim.start()
}

// hold stops a process with SIGSTOP until a condition holds, but at least for the given time. Then it lets the process
// continue.
func hold(p *process, atLeast time.Duration, until func() error) (length time.Duration, err error) {
	at := time.Now()
	if err := p.cmd.Process.Signal(syscall.SIGSTOP); err != nil {
		return 0, err
	}
	defer func() { err = errors.Join(err, p.cmd.Process.Signal(syscall.SIGCONT)) }()
	if err := await("it is stopped", time.Minute, func() error {
		if state := p.state(); state != "T" {
			return fmt.Errorf("its state is %s", state)
		}
		return nil
	}); err != nil {
		return 0, err
	}
	if err := until(); err != nil {
		return 0, err
	}
	time.Sleep(time.Until(at.Add(atLeast))) // the process must be stopped for at least this time
	if state := p.state(); state != "T" {
		return 0, fmt.Errorf("it went on by itself: its state is %s", state)
	}
	return time.Since(at), nil
}

// stop stops a shard with SIGSTOP until other shards lead its groups and its registration has expired. Then it lets the
// shard continue.
func (n *nemesis) stop(victim *server) (string, error) {
	groups := n.ledBy(victim)
	at := time.Now()
	var took time.Duration
	stopped, err := hold(victim.process, holdMin, func() error {
		err := n.awaitOtherLeaders(groups, victim)
		if took = time.Since(at); err != nil {
			return err
		}
		return n.expectFinding(at, "shard "+victim.name, finding.ShardSilent)
	})
	if err != nil {
		return "", err
	}
	return fmt.Sprintf("stopped for %.1f s, others led its %d groups after %.1f s", stopped.Seconds(), len(groups),
		took.Seconds()), nil
}

// isolate drops packets between a shard and the other shards, or between a shard and all other machines.
func (n *nemesis) isolate(victim *server, d direction) (string, error) {
	groups := n.ledBy(victim)
	var others []string
	for _, h := range n.shards {
		if h != victim {
			others = append(others, h.machine.address)
		}
	}
	from := "the other shards"
	if n.random.IntN(2) == 0 {
		from = "everybody"
		others = append(others, hubAddress)
		for _, s := range slices.Concat(n.etcds, n.gateways) {
			others = append(others, s.machine.address)
		}
	}
	at := time.Now()
	if err := victim.machine.cut(d, others); err != nil {
		return "", err
	}
	led := n.awaitOtherLeaders(groups, victim)
	took := time.Since(at)
	if led == nil && len(groups) > 0 {
		led = n.expectFinding(at, "shard "+victim.name, finding.ShardSilent, finding.CopySilent)
	}
	time.Sleep(time.Until(at.Add(holdMin))) // the partition must last for at least this time
	length := time.Since(at)
	dropped, err := victim.machine.reconnect()
	if err := errors.Join(led, err); err != nil {
		return "", err
	}
	want := 1
	if d == silent {
		want = 2
	}
	if len(dropped) != want || slices.Min(dropped) == 0 {
		return "", fmt.Errorf("it did not fire: %v packets were dropped", dropped)
	}
	return fmt.Sprintf("cut from %s for %.1f s, %v packets dropped, others led its %d groups after %.1f s", from,
		length.Seconds(), dropped,
		len(groups), took.Seconds()), nil
}

// slowDown makes a disk hang for a while, and then keeps it slow for a while.
func (n *nemesis) slowDown(victim *server) (string, error) {
	disk := victim.machine.slow
	defer disk.set("off")
	disk.set("hang")
	type answer struct {
		took time.Duration
		err  error
	}
	answers := make(chan answer, 1)
	time.Sleep(200 * time.Millisecond) // slowdisk reads the rate ten times a second
	go func() {
		took, err := disk.probe(64 << 10)
		answers <- answer{took, err}
	}()
	const hang = 4 * time.Second
	time.Sleep(hang) // the disk must hang for this time
	disk.set("512K")
	first := <-answers
	if first.err != nil || first.took < hang-time.Second {
		return "", fmt.Errorf("it did not fire: a sync took %v while the disk hung: %w", first.took, first.err)
	}
	took, err := disk.probe(1 << 20)
	if err != nil || took < time.Second {
		return "", fmt.Errorf("it did not fire: 1 MiB at 512 KiB/s took %v: %w", took, err)
	}
	disk.set("off")
	if err := n.expectFinding(time.Now(), "shard "+victim.name, finding.SlowSyncs); err != nil {
		return "", err
	}
	return fmt.Sprintf("a sync took %.1f s while the disk hung, and 1 MiB %.1f s while it was slow", first.took.Seconds(),
		took.Seconds()), nil
}

// fillUp fills the file system of a shard to the last byte. It checks that the shard then refuses writes to the
// groups that it leads, and accepts them again when there is free space.
func (n *nemesis) fillUp(victim *server) (string, error) {
	if _, err := n.awaitLeading(victim); err != nil {
		return "", err
	}
	freeBefore, err := victim.machine.free(victim.disk)
	if err != nil {
		return "", err
	}
	if err := victim.machine.fill(victim.disk); err != nil {
		return "", err
	}
	least, err := victim.machine.free(victim.disk)
	spaceReleased := false
	defer func() {
		if !spaceReleased {
			_ = victim.machine.releaseSpace(victim.disk)
		}
	}()
	if err != nil {
		return "", err
	}
	refused := ""
	if err := await("a write is refused for want of room", time.Minute, func() error {
		// Compaction may have freed space since the last attempt, so fill it again.
		if err := victim.machine.fill(victim.disk); err != nil {
			return err
		}
		reason, err := n.probe(victim, []byte("probe"))
		if reason == "DISK_FULL" {
			refused = err.Error()
			return nil
		}
		return fmt.Errorf("the answer is %q: %w", reason, err)
	}); err != nil {
		return "", err
	}
	if err := n.expectFinding(time.Now(), "shard "+victim.name, finding.DiskFull); err != nil {
		return "", err
	}
	for at := time.Now(); time.Since(at) < holdMin; time.Sleep(200 * time.Millisecond) {
		if err := victim.machine.fill(victim.disk); err != nil {
			return "", err
		}
	}
	spaceReleased = true
	if err := victim.machine.releaseSpace(victim.disk); err != nil {
		return "", err
	}
	if err := await("shard "+victim.name+" takes writes again", time.Minute, func() error {
		reason, err := n.probe(victim, []byte("probe"))
		if err != nil {
			return fmt.Errorf("%s: %w", reason, err)
		}
		return nil
	}); err != nil {
		return "", err
	}
	if len(refused) > 160 {
		refused = refused[:160] + "..."
	}
	return fmt.Sprintf("%d MiB free were filled to %d bytes; %s", freeBefore>>20, least, refused), nil
}

// probe puts a record directly to a shard, into a group that the shard leads. If the shard refuses it, probe returns
// the reason. The record has a negative id, because no worker uses these.
func (n *nemesis) probe(victim *server, data []byte) (reason string, err error) {
	groups := n.ledBy(victim)
	if len(groups) == 0 {
		return "", errors.New("it leads no group now")
	}
	number, err := strconv.Atoi(groups[0])
	if err != nil {
		return "", err
	}
	hash := routing.Routing{Mode: routing.Hash, Groups: n.cfg.groups}
	id := int64(-1)
	for hash.GroupOf(id) != number {
		id--
	}
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	_, err = recordv1.NewRecordServiceClient(victim.conn).Put(ctx, &recordv1.PutRequest{
		Key: &recordv1.RecordKey{Id: id}, Data: data, RequestId: make([]byte, 0),
	})
	reason = reasonOf(err)
	if reason == "DISK_FULL" && status.Code(err) != codes.ResourceExhausted {
		return "", fmt.Errorf("DISK_FULL with code %v", status.Code(err))
	}
	return reason, err
}

// startTwin starts the same shard a second time on the same volume. The second process must exit, and the first process
// must continue.
func (n *nemesis) startTwin(victim *server) (string, error) {
	args := slices.Clone(victim.args)
	for i, a := range args {
		args[i] = strings.Replace(strings.Replace(a, ":7610", ":7710", 1), ":7611", ":7711", 1)
	}
	p, err := victim.machine.launch("twin-of-"+victim.name, args...)
	if err != nil {
		return "", err
	}
	return n.awaitTwinExit(p, victim, "locked by another process")
}

// startTwinOnCopy starts the same shard on a copy of its volume, on another machine.
func (n *nemesis) startTwinOnCopy(victim *server) (string, error) {
	n.copied++
	dir := filepath.Join(n.dir, fmt.Sprintf("copy-%d", n.copied))
	// Files appear and disappear while cp runs, which makes cp fail. The copy need not be a snapshot.
	if _, err := n.command("sh", "-c", `cp -a "$0" "$1" 2>/dev/null || true`, victim.machine.path(victim.dir),
		dir); err != nil {
		return "", err
	}
	if _, err := os.Stat(filepath.Join(dir, "superblock")); err != nil {
		return "", err
	}
	p, err := n.spare.launch("copy-of-"+victim.name, n.shardArgs(victim.name, n.spare.address, dir)...)
	if err != nil {
		return "", err
	}
	defer os.RemoveAll(dir)
	return n.awaitTwinExit(p, victim, "is live on")
}

// awaitTwinExit waits until the second process of a shard (a twin) has exited on its own and has logged the given
// words, while the first process continues to serve.
func (n *nemesis) awaitTwinExit(p *process, first *server, words string) (string, error) {
	begin := time.Now()
	select {
	case <-p.ended:
	case <-time.After(time.Minute):
		p.kill()
		return "", fmt.Errorf("the twin runs: %s", p.logTail())
	}
	code := p.cmd.ProcessState.ExitCode()
	text := p.logTail()
	if code != 1 || !strings.Contains(text, words) {
		return "", fmt.Errorf("the twin ended with code %d, without the words %q: %s", code, words, text)
	}
	took := time.Since(begin)
	if err := await("the first one is ready", time.Minute, first.ready); err != nil {
		return "", err
	}
	return fmt.Sprintf("refused after %.1f s: %s", took.Seconds(), words), nil
}
