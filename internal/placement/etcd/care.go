package etcd

import (
	"bufio"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"
)

// SnapshotConfig configures the snapshots that a member takes of its data. A snapshot is a file that contains the
// database and its SHA-256, and that etcdutl can restore.
type SnapshotConfig struct {
	Dir   string        // folder for the snapshots; if it is empty, none are taken
	Every time.Duration // interval between snapshots; 0 means 30 min
	Keep  int           // number of snapshots to keep; 0 means 5
}

const (
	snapshotSuffix = ".snapshot"
	snapshotTime   = "20060102T150405Z"
	defragFirst    = time.Minute // delay before the first defragmentation, in addition to the member's offset
)

// careStatus holds the results of the most recent snapshot and defragmentation. An error is empty if the last attempt
// succeeded.
type careStatus struct {
	LastSnapshot      SnapshotStatus `json:"lastSnapshot,omitzero"`
	LastSnapshotError string         `json:"lastSnapshotError,omitempty"`
	LastDefragTime    time.Time      `json:"lastDefragTime,omitzero"`
	LastDefragError   string         `json:"lastDefragError,omitempty"`
}

// SnapshotStatus describes the newest snapshot that this process has taken. Time is zero if there is none.
type SnapshotStatus struct {
	File  string    `json:"file"`
	Time  time.Time `json:"time"`
	Bytes int64     `json:"bytes"`
}

// Status is the status of a member.
type Status struct {
	Name         string   `json:"name"`
	Version      string   `json:"version"`
	Token        string   `json:"token"`
	MemberID     string   `json:"memberID"`
	ClusterID    string   `json:"clusterID"`
	LeaderID     string   `json:"leaderID"` // empty if no leader is known
	IsLeader     bool     `json:"isLeader"`
	IsLearner    bool     `json:"isLearner"` // the member has joined, but has no vote yet
	Revision     int64    `json:"revision"`
	DBBytes      int64    `json:"dbBytes"`
	DBInUseBytes int64    `json:"dbInUseBytes"`
	QuotaBytes   int64    `json:"quotaBytes"`
	Alarms       []string `json:"alarms,omitempty"`
	careStatus
}

// Status returns the current state of the member.
func (m *Member) Status() Status {
	s := m.etcd.Server
	st := Status{
		Name: m.cfg.Name, Version: m.cfg.Version, Token: m.cfg.Token, MemberID: s.MemberID().String(),
		ClusterID: s.Cluster().ID().String(), Revision: s.KV().Rev(), DBBytes: s.Backend().Size(),
		DBInUseBytes: s.Backend().SizeInUse(), QuotaBytes: m.cfg.QuotaBytes, IsLeader: s.Leader() == s.MemberID(),
		IsLearner: m.learns(),
	}
	if s.Leader() != 0 {
		st.LeaderID = s.Leader().String()
	}
	for _, alarm := range s.Alarms() {
		st.Alarms = append(st.Alarms, fmt.Sprintf("%s of member %x", alarm.Alarm, alarm.MemberID))
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	st.careStatus = m.care
	return st
}

// offset returns the delay by which this member shifts its periodic work, so that no two members do that work at the
// same moment.
func (m *Member) offset(every time.Duration) time.Duration {
	members := m.cfg.members()
	return every * time.Duration(slices.Index(members, m.cfg.Name)) / time.Duration(len(members))
}

// each calls do repeatedly until ctx is done. The argument first is the delay before the first call, and the argument
// every is the interval between calls.
func each(ctx context.Context, first, every time.Duration, do func()) {
	timer := time.NewTimer(first)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-timer.C:
			do()
			timer.Reset(every)
		}
	}
}

// takeSnapshots takes the first snapshot soon after the start, and further ones at regular intervals.
func (m *Member) takeSnapshots(ctx context.Context) {
	c := m.cfg.Snapshots
	if c.Dir == "" || !m.joined(ctx) {
		return
	}
	each(ctx, min(time.Minute, c.Every), c.Every, func() {
		taken, err := m.Snapshot()
		m.mu.Lock()
		defer m.mu.Unlock()
		if err != nil {
			m.care.LastSnapshotError = err.Error()
			m.logger.Error("taking a snapshot of etcd", "error", err)
			return
		}
		m.care.LastSnapshot, m.care.LastSnapshotError = taken, ""
	})
}

// joined waits until the member serves requests. It returns false if ctx is done first.
func (m *Member) joined(ctx context.Context) bool {
	select {
	case <-ctx.Done():
		return false
	case <-m.etcd.Server.ReadyNotify():
		return true
	}
}

// Snapshot writes a snapshot of this member's data into the snapshot folder. It then removes the oldest snapshots, so
// that the configured number remains.
func (m *Member) Snapshot() (SnapshotStatus, error) {
	dir := m.cfg.Snapshots.Dir
	if dir == "" {
		return SnapshotStatus{}, errors.New("no folder for snapshots is given")
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return SnapshotStatus{}, err
	}
	now := time.Now().UTC()
	out := SnapshotStatus{File: filepath.Join(dir, m.cfg.Name+"-"+now.Format(snapshotTime)+snapshotSuffix), Time: now}
	err := writeAside(dir, filepath.Base(out.File), func(f *os.File) (err error) {
		snapshot := m.etcd.Server.Backend().Snapshot()
		defer func() { err = errors.Join(err, snapshot.Close()) }()
		hash, buffered := sha256.New(), bufio.NewWriterSize(f, 1<<20)
		if out.Bytes, err = snapshot.WriteTo(io.MultiWriter(buffered, hash)); err != nil {
			return err
		}
		n, err := buffered.Write(hash.Sum(nil))
		out.Bytes += int64(n)
		return errors.Join(err, buffered.Flush())
	})
	if err != nil {
		return SnapshotStatus{}, fmt.Errorf("snapshot into %s: %w", dir, err)
	}
	return out, m.pruneSnapshots()
}

// pruneSnapshots removes this member's oldest snapshots. It can rely on the order of the file names, which is the
// order of the snapshots' times.
func (m *Member) pruneSnapshots() error {
	dir := m.cfg.Snapshots.Dir
	entries, err := os.ReadDir(dir)
	if err != nil {
		return err
	}
	var ours []string
	for _, e := range entries {
		stamp, ok := strings.CutPrefix(e.Name(), m.cfg.Name+"-")
		if stamp, cut := strings.CutSuffix(stamp, snapshotSuffix); ok && cut {
			if _, err := time.Parse(snapshotTime, stamp); err == nil {
				ours = append(ours, e.Name())
			}
		}
	}
	slices.Sort(ours)
	for len(ours) > m.cfg.Snapshots.Keep {
		if err := os.Remove(filepath.Join(dir, ours[0])); err != nil {
			return fmt.Errorf("remove an old snapshot: %w", err)
		}
		ours = ours[1:]
	}
	return nil
}

// defragment returns unused space in the database to the file system. The member does not respond while defragment
// runs, so each member has its own time slot. If the cluster has no quorum, the member skips this slot and waits for
// the next one.
func (m *Member) defragment(ctx context.Context) {
	every := m.cfg.DefragEvery
	if every == 0 || !m.joined(ctx) {
		return
	}
	each(ctx, min(defragFirst, every)+m.offset(every), every, func() {
		err := m.Ready(ctx)
		if err == nil {
			err = m.etcd.Server.Backend().Defrag()
		}
		m.mu.Lock()
		defer m.mu.Unlock()
		if err != nil {
			m.care.LastDefragError = err.Error()
			m.logger.Error("defragmenting etcd", "error", err)
			return
		}
		m.care.LastDefragTime, m.care.LastDefragError = time.Now().UTC(), ""
	})
}
