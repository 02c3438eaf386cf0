package shard

import (
	"context"
	"flag"
	"fmt"
	"log/slog"
	"maps"
	"os"
	"path"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"

	"sheaf.dev/sheaf/internal/placement"
	"sheaf.dev/sheaf/internal/storage/group/format"
)

var update = flag.Bool("update", false, "rewrite the golden transcripts")

// TestTranscriptOfStarts records how each replica changes when a shard starts, and when the state in etcd changes
// afterwards, and compares the transcript with a golden file. The file lists the phases and standings of each group
// in order, and the responses to calls to the group. Of the groups, two load, one has a damaged tail, one is a stray,
// one is a learner that joins, and one has lost its data.
func TestTranscriptOfStarts(t *testing.T) {
	t.Parallel()
	inBubble(t, func(t *bubble) {
		registry := newRegistry(named, "s1", "first", "second", "stray", "tail")
		log := &phaseLog{Handler: slog.NewTextHandler(testWriter{t}, nil), lines: map[string][]string{}}
		f := start(t, registry, func(cfg *Config) { cfg.Logger = slog.New(log) }).ready()
		var out strings.Builder
		stage := func(what string) {
			time.Sleep(2 * time.Second)
			fmt.Fprintf(&out, "== %s\n%s", what, log.take())
			names := registry.now().Groups
			for _, name := range slices.Sorted(maps.Keys(names)) {
				fmt.Fprintf(&out, "%-7s answers: %s\n", name, f.answer(name))
			}
			shown, _ := forAdmin{f.shard}.Groups("", "", 0)
			for _, g := range shown {
				fmt.Fprintf(&out, "%-7s is shown as %s, lost %t\n", g.GetGroup(), g.GetState().Word(), g.GetLost())
			}
			routed, _ := forCalls{f.shard}.Groups()
			fmt.Fprintf(&out, "routes: %s\n", strings.Join(routed, " "))
		}
		stage("groups are created")

		volume := registry.now().Shards["s1"].VolumeUUID
		f.shard.Kill()
		f.hitTail("tail", volume)
		registry.change(func(v *placement.View) {
			g := v.Groups["tail"]
			g.ConfIndex, g.Members = 9, append(slices.Clone(g.Members), othersOf(g.Members[0])...)
			v.Groups["tail"] = g
			g = v.Groups["stray"]
			g.Members, g.Leader = []placement.Member{{Shard: "s2", VolumeUUID: uuid.New(), RaftID: 7}}, "s2"
			v.Groups["stray"] = g
			v.Groups["lost"] = placement.Group{Name: "lost", UUID: uuid.New(), Revision: 1,
				Members: []placement.Member{{Shard: "s1", VolumeUUID: volume, RaftID: 8}}}
		})
		f.again(nil)
		stage("a start")
		registry.change(func(v *placement.View) {
			learner := placement.Member{Shard: "s1", VolumeUUID: volume, RaftID: 9, Role: placement.Learner}
			v.Groups["joins"] = placement.Group{Name: "joins", UUID: uuid.New(), Revision: 1, ConfIndex: 9,
				Members: append(othersOf(learner), learner)}
		})
		stage("a learner is recorded here")

		f.shard.Kill()
		f.again(nil)
		stage("the next start")

		was, strayID := registry.now().Groups, f.raftID("stray")
		registry.change(func(v *placement.View) {
			stray, second := v.Groups["stray"], v.Groups["second"]
			stray.Members, stray.Leader = []placement.Member{{Shard: "s1", VolumeUUID: volume, RaftID: strayID}}, "s1"
			second.Members, second.Leader = []placement.Member{{Shard: "s2", VolumeUUID: uuid.New(), RaftID: 7}}, "s2"
			v.Groups["stray"], v.Groups["second"] = stray, second
		})
		stage("the stray and the second group change places")

		registry.change(func(v *placement.View) { v.SetBack = "its revision is 3, and was 5" })
		stage("etcd was set back")
		registry.change(func(v *placement.View) {
			v.SetBack = ""
			second := was["second"]
			second.Revision = v.Groups["second"].Revision
			v.Groups["second"] = second
			joins := v.Groups["joins"]
			joins.Members, joins.ConfIndex = joins.Members[:2], 10
			v.Groups["joins"] = joins
		})
		stage("the learner is removed, and the second group is here again")
		f.stop()
		fmt.Fprintf(&out, "== the stop\n%s", log.take())
		golden := path.Join("testdata", "starts.golden")
		if *update {
			must(t, os.WriteFile(golden, []byte(out.String()), 0o644))
		}
		want, err := os.ReadFile(golden)
		if err != nil || out.String() != string(want) {
			t.Errorf("%v\nthe transcript is now:\n%s", err, out.String())
		}
	})
}

// othersOf returns the given member and two voters whose shards do not run.
func othersOf(m placement.Member) []placement.Member {
	return []placement.Member{{Shard: "s2", VolumeUUID: uuid.UUID{2}, RaftID: m.RaftID + 100},
		{Shard: "s3", VolumeUUID: uuid.UUID{3}, RaftID: m.RaftID + 101}}
}

// answer returns the response to a call to a group, as a string.
func (f *fixture) answer(name string) string {
	g, err := forCalls{f.shard}.Group(f.ctx(), name, 0)
	switch {
	case err != nil:
		return reasonOf(err)
	case g.Name() != name:
		return "by " + g.Name()
	}
	return "served"
}

// raftID returns the Raft id of the only voter in a group's manifest.
func (f *fixture) raftID(name string) uint64 {
	m, err := format.ReadManifest(f.cfg.FS, f.dirOf(name))
	must(f.t, err)
	return m.Conf.GetVoters()[0]
}

// dirOf returns a group's folder.
func (f *fixture) dirOf(name string) string {
	return path.Join(f.cfg.Dir, "groups", f.registry.now().Groups[name].UUID.String())
}

// hitTail simulates a damaged tail: it destroys a replica's manifest while the shard is stopped, and leaves the
// replica file in place.
func (f *fixture) hitTail(name string, volume uuid.UUID) {
	view := f.registry.now()
	file := format.ReplicaFile{RaftID: view.Groups[name].Members[0].RaftID, Volume: volume, Store: view.Meta.StoreUUID,
		Group: view.Groups[name].UUID}
	must(f.t, format.WriteReplicaFile(f.cfg.FS, f.dirOf(name), file))
	manifest, err := f.cfg.FS.OpenWrite(path.Join(f.dirOf(name), format.ManifestName))
	must(f.t, err)
	defer manifest.Close()
	if _, err := manifest.WriteAt(make([]byte, 64<<10), 0); err != nil {
		f.t.Fatal(err)
	}
}

// phaseLog is a log handler that keeps each group's changes of phase and standing, and passes on warnings and errors.
type phaseLog struct {
	slog.Handler
	mu    sync.Mutex
	lines map[string][]string // by group name
}

func (l *phaseLog) Enabled(context.Context, slog.Level) bool { return true }

func (l *phaseLog) WithAttrs([]slog.Attr) slog.Handler { return l }

func (l *phaseLog) Handle(ctx context.Context, r slog.Record) error {
	if r.Level >= slog.LevelWarn {
		return l.Handler.Handle(ctx, r)
	}
	if r.Message != "the phase of a replica changes" && r.Message != "the standing of a replica changes" {
		return nil
	}
	var group string
	var words []string
	r.Attrs(func(a slog.Attr) bool {
		if a.Key == "group" {
			group = a.Value.String()
			return true
		}
		words = append(words, fmt.Sprintf("%s %q", a.Key, a.Value))
		return true
	})
	l.mu.Lock()
	defer l.mu.Unlock()
	l.lines[group] = append(l.lines[group], strings.Fields(r.Message)[1]+" "+strings.Join(words, " "))
	return nil
}

// take returns the changes since the last call, by group.
func (l *phaseLog) take() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	var out strings.Builder
	for _, group := range slices.Sorted(maps.Keys(l.lines)) {
		for _, line := range l.lines[group] {
			fmt.Fprintf(&out, "%-7s %s\n", group, line)
		}
	}
	clear(l.lines)
	return out.String()
}
