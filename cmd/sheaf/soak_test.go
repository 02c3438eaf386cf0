package main

import (
	"context"
	"io"
	"net/http"
	"os"
	"strconv"
	"strings"
	"testing"
	"time"

	"sheaf.dev/sheaf/internal/test/soaktest"
)

// TestSoak overwrites, deletes and reads records of all sizes, on a small disk and with little memory. Each write has
// a request id. Meanwhile, a thousand readers hang and disconnect, and the shard and the gateway are repeatedly
// killed and started again. No call fails, all acknowledged records exist, the kernel kills no process for lack of
// memory, and the disk never fills up. At the end, the files take at most 2.2 times the live data and the data that
// interrupted scans may keep, plus one segment for each group. SHEAF_SOAK_FOR sets the duration: `make soak-short`
// runs for 3 minutes, and `make soak-proc` for an hour.
func TestSoak(t *testing.T) {
	lasts, err := time.ParseDuration(os.Getenv("SHEAF_SOAK_FOR"))
	switch {
	case soaktest.Long():
		lasts = time.Hour
	case err != nil:
		t.Skip("make soak-short")
	case os.Getuid() != 0:
		t.Fatal("it needs root, to mount and to make cgroups")
	}
	s := newSoakStore(t)
	l := s.load()
	l.awaitMore(200, 0)
	begin, rounds := time.Now(), 0
	var calm, stalled []float64
	open, refused, least, freed, lost := 0.0, 0.0, s.free(), 0.0, 0.0
	for ; time.Since(begin) < lasts; rounds++ {
		calm = append(calm, l.rate())
		goAway := s.stall()
		stalled = append(stalled, l.rate())
		l.awaitMore(20, 5*time.Second)
		samples := s.metrics()
		open = max(open, sum(samples, "sheaf_shard_open_streams"))
		refused += sum(samples, `sheaf_shard_calls_total{code="ResourceExhausted"`)
		freed += sum(samples, "sheaf_shard_compaction_freed_bytes_total")
		lost += sum(samples, "sheaf_shard_scans_given_up_total")
		least = min(least, s.free())
		if rounds%2 == 0 {
			goAway()
		}
		s.restartOne(rounds)
		if rounds%2 == 1 {
			goAway()
		}
		for name, limit := range s.limits {
			if n := limit.kills(); n > 0 {
				t.Fatalf("the kernel ended the %s %d times for want of memory", name, n)
			}
		}
	}
	l.awaitMore(20, 0)
	l.end()
	if err := l.failed.Load(); err != nil {
		t.Fatalf("a call failed: %v", *err)
	}
	live, records, most := int64(8*64*1090), 0, time.Duration(0)
	for _, w := range l.writers {
		live, most = live+w.live(), max(most, w.most)
		for id := range w.known {
			must(t, w.check(context.Background(), id))
			records++
		}
	}
	// Interrupted scans may keep data on the disk, up to a sixteenth of its size.
	bound := 22*(live+soakDisk/16)/10 + soakGroups*soakSegment
	// Compaction merges small adjacent segments, but may leave up to three of them next to each full segment.
	files := 6*int(bound/soakSegment) + soakGroups*12
	for end := time.Now().Add(3 * time.Minute); groupBytes(t, s.dir) > bound ||
		s.files() > files; time.Sleep(10 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("%d bytes are on disk in %d files, %d live: want at most %d in %d", groupBytes(t, s.dir), s.files(), live,
				bound, files)
		}
	}
	t.Logf("%d rounds, %d writes, %d records read back; %d MiB live, %d MiB on disk, %d files; %d MiB of %d were free "+
		"at least; the longest call took %.1f s",
		rounds, l.writes.Load(), records, live>>20, groupBytes(t, s.dir)>>20, s.files(), least>>20, soakDisk>>20,
		most.Seconds())
	t.Logf("puts of 1 KB per second beside the writers: %.0f, beside a thousand stalled streams, too, %.0f: %.2f of it; "+
		"at most %.0f streams open at the shard, %.0f calls refused, %.0f scans given up",
		mean(calm), mean(stalled), mean(stalled)/mean(calm), open, refused, lost)
	if open < soakStalled/10 || refused == 0 || freed == 0 {
		t.Errorf("the faults did not fire: %.0f streams were open, %.0f calls were refused, compaction freed %.0f bytes",
			open, refused, freed)
	}
	if code := s.shard.stop(t); code != 0 {
		t.Errorf("stopping: exit code %d: %s", code, lastLines(s.shard))
	}
	sheaf(t, nil, "verify", "--quiet", s.dir).Want(t, 0)
}

// restartOne ends the shard or the gateway, alternately by SIGKILL and gracefully, and starts it again.
func (s *soakStore) restartOne(round int) {
	s.t.Helper()
	p, start := s.shard, s.startShard
	if round%3 == 2 {
		p, start = s.gateway, s.startGateway
	}
	select {
	case <-p.ended:
		s.t.Fatalf("it ended by itself, %v: %s", p.cmd.ProcessState, lastLines(p))
	default:
	}
	if round%2 == 0 {
		p.kill()
	} else if code := p.stop(s.t); code != 0 {
		s.t.Fatalf("stopping: exit code %d: %s", code, lastLines(p))
	}
	start()
}

// metrics returns the metrics of the shard, by name and labels.
func (s *soakStore) metrics() map[string]float64 {
	response, err := http.Get("http://" + s.shard.http + "/metrics")
	must(s.t, err)
	defer response.Body.Close()
	body, err := io.ReadAll(response.Body)
	must(s.t, err)
	samples := map[string]float64{}
	for line := range strings.Lines(string(body)) {
		if name, value, ok := strings.Cut(strings.TrimSpace(line), "} "); ok && !strings.HasPrefix(line, "#") {
			samples[name], _ = strconv.ParseFloat(value, 64)
		}
	}
	return samples
}

// sum adds up all samples whose name begins with name.
func sum(samples map[string]float64, name string) (all float64) {
	for of, value := range samples {
		if strings.HasPrefix(of, name) {
			all += value
		}
	}
	return all
}

func mean(all []float64) (sum float64) {
	for _, one := range all {
		sum += one
	}
	return sum / float64(len(all))
}
