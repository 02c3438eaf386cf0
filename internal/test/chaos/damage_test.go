package chaos

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"sheaf.dev/sheaf/client"
	"sheaf.dev/sheaf/internal/status/finding"
)

// damageCopy takes one of a group's three copies, and zeroes or truncates a segment of it while the copy's shard is
// down. `sheaf verify` on the volume must then name the file. `sheaf verify` on the group must name the shard, unless
// the shard has found the damage itself when it started. No scan may return an outdated version of a record. Finally,
// the copy must be repaired.
func (n *nemesis) damageCopy(victim *server) (words string, err error) {
	all, err := n.survey()
	if err != nil {
		return "", err
	}
	held := groupsOn(all, victim)
	if len(held) == 0 {
		return "", fmt.Errorf("shard %s holds no group", victim.name)
	}
	name := held[n.random.IntN(len(held))]
	group, err := strconv.Atoi(name)
	if err != nil {
		return "", err
	}
	if _, err := n.writeBallast(group); err != nil { // these versions will be superseded, so a scan must not return them
		return "", err
	}
	round, err := n.writeBallast(group)
	if err != nil {
		return "", err
	}
	if err := n.settle(); err != nil {
		return "", err
	}
	if err := victim.stop(); err != nil {
		return "", err
	}
	how, segment, err := n.damageSegment(victim, n.ballastIDs(group)[1], round)
	if err != nil {
		return "", errors.Join(err, victim.start())
	}
	offline := n.verifyVolume(victim, segment)
	logged := victim.logSize()
	if err := errors.Join(offline, victim.start()); err != nil {
		return "", err
	}
	if err := await("shard "+victim.name, 2*time.Minute, victim.ready); err != nil {
		return "", err
	}
	// A shard that found the damage when it started may have repaired it by now.
	var found string
	if err := await("verify of the group names the shard", time.Minute, func() error {
		found = "its shard found it as it started"
		if strings.Contains(victim.logSince(logged), "damage") {
			return nil
		}
		found = "verify of the group named the shard"
		out, err := n.verifyGroup(name)
		if err == nil || !strings.Contains(out, fmt.Sprintf("group %s on shard %s, ", name, victim.name)) {
			return fmt.Errorf("%s: %s: %s", how, fmt.Sprint(err), out)
		}
		return nil
	}); err != nil {
		return "", err
	}
	if err := n.scanBallast(group, round); err != nil {
		return "", err
	}
	return fmt.Sprintf("group %s: %s; verify of the volume named it, %s", name, how, found),
		await("the copy is whole again", 2*time.Minute, func() error {
			if out, err := n.verifyGroup(name); err != nil {
				return fmt.Errorf("%w: %s", err, out)
			}
			return n.scanBallast(group, round)
		})
}

// damageSegment damages the segment on a shard's volume that holds the given ballast record.
func (n *nemesis) damageSegment(victim *server, id int64, round uint64) (how, segment string, err error) {
	segments, err := filepath.Glob(victim.machine.path(filepath.Join(victim.dir, "groups", "*", "segment-*")))
	if err != nil {
		return "", "", err
	}
	content := ballastData(id, round)[:4096]
	for _, path := range segments {
		text, err := os.ReadFile(path)
		if err != nil {
			return "", "", err
		}
		at := bytes.Index(text, content)
		if at < 0 {
			continue
		}
		file, err := os.OpenFile(path, os.O_RDWR, 0)
		if err != nil {
			return "", "", err
		}
		at += ballastBytes / 2
		if round/2%2 == 1 { // every other time, choose damage that a shard does not notice when it starts
			how = fmt.Sprintf("%s on shard %s zeroed from %d on for 4 KiB", filepath.Base(path), victim.name, at)
			_, err = file.WriteAt(make([]byte, 4096), int64(at))
		} else {
			how = fmt.Sprintf("%s on shard %s cut off at %d of %d", filepath.Base(path), victim.name, at, len(text))
			err = file.Truncate(int64(at))
		}
		return how, filepath.Base(path), errors.Join(err, file.Sync(), file.Close())
	}
	return "", "", fmt.Errorf("record %d is in none of %d segments", id, len(segments))
}

// verifyVolume runs `sheaf verify` on a stopped volume. It returns an error if verify does not name the segment as bad.
func (n *nemesis) verifyVolume(victim *server, segment string) error {
	out, err := victim.machine.run(sheafBinary, "verify", "--quiet", victim.dir)
	if err == nil || !strings.Contains(err.Error(), "exit status 1") || !strings.Contains(out, segment) {
		return fmt.Errorf("verify of the volume does not name %s: %s: %s", segment, fmt.Sprint(err), out)
	}
	return nil
}

// verifyGroup runs `sheaf verify` on all copies of a group.
func (n *nemesis) verifyGroup(name string) (string, error) {
	return n.hub.run(sheafBinary, "group", "verify", name, "--server", n.gateways[0].machine.address+":7600")
}

// scanBallast scans a group and checks its ballast records, which must have the data of the given round. A record may
// be missing only if the scan reports damage.
func (n *nemesis) scanBallast(group int, round uint64) error {
	ids := n.ballastIDs(group)
	return await("a scan of the group ends", time.Minute, func() error {
		ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
		defer cancel()
		seen := 0
		for r, err := range n.load.clients[0].Scan(ctx, &client.ScanOptions{Group: strconv.Itoa(group)}) {
			switch {
			case errors.Is(err, client.ErrDataLoss):
				return nil
			case err != nil:
				return err
			case !slices.Contains(ids, r.Key.ID):
				continue
			}
			seen++
			if !bytes.Equal(r.Data, ballastData(r.Key.ID, round)) {
				return fmt.Errorf("%w: a scan gave %.60q for record %d, which is of round %d", errHopeless, r.Data, r.Key.ID, round)
			}
		}
		if seen != len(ids) {
			return fmt.Errorf("%w: a scan ended well with %d of %d records", errHopeless, seen, len(ids))
		}
		return nil
	})
}

// logSize returns the size of the server's log in bytes.
func (s *server) logSize() int64 {
	info, err := os.Stat(s.log)
	if err != nil {
		return 0
	}
	return info.Size()
}

// logSince returns the log from an offset on.
func (s *server) logSince(at int64) string {
	text, err := os.ReadFile(s.log)
	if err != nil || int64(len(text)) < at {
		return ""
	}
	return string(text[at:])
}

// zeroDisk zeroes the block device that a running shard uses. The shard must stop serving, and other shards must take
// over its groups. Then the disk is formatted again, and its copies are rebuilt.
func (n *nemesis) zeroDisk(victim *server) (words string, err error) {
	groups, err := n.awaitLeading(victim)
	if err != nil {
		return "", err
	}
	device, err := victim.machine.run("findmnt", "--noheadings", "--output", "SOURCE", victim.disk)
	if err != nil {
		return "", err
	}
	device = strings.TrimSpace(device)
	if !strings.HasPrefix(device, "/dev/loop") {
		return "", fmt.Errorf("%s is on %s, which is no loop device", victim.disk, device)
	}
	at := time.Now()
	if _, err := victim.machine.run("dd", "if=/dev/zero", "of="+device, "bs=1M", fmt.Sprintf("count=%d", diskBytes>>20),
		"conv=fsync"); err != nil {
		return "", err
	}
	if err := n.awaitOtherLeaders(groups, victim); err != nil {
		return "", err
	}
	led := time.Since(at)
	if err := await("shard "+victim.name+" ends by itself", time.Minute, func() error {
		if victim.alive() {
			return errors.New("it runs")
		}
		return nil
	}); err != nil {
		return "", err
	}
	took, code := time.Since(at), victim.cmd.ProcessState.ExitCode()
	if code != 1 {
		return "", fmt.Errorf("shard %s ended with code %d: %s", victim.name, code, victim.logTail())
	}
	if err := n.expectFinding(at.Add(took), "shard "+victim.name, finding.ShardSilent); err != nil {
		return "", err
	}
	if err := await("the disk is created again", time.Minute, func() error {
		if err := victim.machine.unmount(victim.disk); err != nil {
			return err
		}
		image := filepath.Join(n.dir, victim.machine.name+".image")
		victim.machine.makeImage(image, diskBytes)
		return victim.machine.mountAt(image, victim.disk)
	}); err != nil {
		return "", err
	}
	if err := victim.start(); err != nil {
		return "", err
	}
	if err := await("shard "+victim.name, 2*time.Minute, victim.ready); err != nil {
		return "", err
	}
	if err := n.settle(); err != nil {
		return "", err
	}
	return fmt.Sprintf(
		"others led its %d groups after %.1f s, it ended by itself after %.1f s, with code 1; begun anew on a blank disk",
		len(groups),
		led.Seconds(), took.Seconds()), await("every copy has a vote again", 3*time.Minute, n.noMoves)
}
