package main

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"sheaf.dev/sheaf/client/recordv1"
	"sheaf.dev/sheaf/internal/local/cli"
	"sheaf.dev/sheaf/internal/status/finding"
)

func storeOf(shards, groups int) *storeSeen {
	s := &storeSeen{Facts: finding.Facts{Whole: true}}
	for n := range shards {
		s.Shards = append(s.Shards, &recordv1.Shard{
			Name: fmt.Sprintf("shard-%d", n), Alive: true, Address: "host:7610", CapacityBytes: 100 << 20, FreeBytes: 90 << 20,
			ReserveBytes: 1,
			Load:         &recordv1.Load{Done: true}, FileSystem: "ext4",
		})
	}
	for n := range groups {
		s.Groups = append(s.Groups, &recordv1.Group{
			Group: fmt.Sprint(n), Shard: "shard-0", State: recordv1.GroupState_GROUP_STATE_SERVING, Leader: true,
		})
	}
	return s
}

// A screen never has more lines or columns than the terminal. It shows problems first, and the number of rows that do
// not fit.
func TestTopFitsTheTerminal(t *testing.T) {
	many := storeOf(50, 1000)
	for n := range 30 {
		many.Shards[n].Alive = false
		many.moves = append(many.moves, &recordv1.Move{Group: fmt.Sprint(n), Running: true, Bytes: 10})
	}
	for name, s := range map[string]*storeSeen{
		"small": storeOf(3, 3), "many": many, "empty": {Facts: finding.Facts{Whole: true}},
		"away": {err: errors.New(strings.Repeat("nobody answers ", 30))},
	} {
		for _, size := range [][2]int{{80, 24}, {140, 50}, {20, 8}, {1, 1}} {
			for _, colour := range []bool{false, true} {
				screen := s.draw("127.0.0.1:7600", time.Now(), colour, size[0], size[1])
				lines := strings.Split(screen, "\n")
				if len(lines) > max(size[1], 8) {
					t.Errorf("%s at %v: %d lines", name, size, len(lines))
				}
				for _, line := range lines {
					for _, c := range []cli.Colour{cli.Green, cli.Yellow, cli.Red, cli.ColourEnd} {
						line = strings.ReplaceAll(line, string(c), "")
					}
					if n := utf8.RuneCountInString(line); n > size[0] || strings.Contains(line, "\x1b") {
						t.Errorf("%s at %v: %d columns: %q", name, size, n, line)
					}
				}
			}
		}
	}
	screen := many.draw("server", time.Now(), false, 140, 50)
	for _, words := range []string{"50 shards, 1,000 groups: 30 problems", "problem  shard shard-0", "do: start",
		"30 running", "more lines", "S S S"} {
		if !strings.Contains(screen, words) {
			t.Errorf("%q is not in\n%s", words, screen)
		}
	}
}

func TestTopShowsWhatIsWrongWithTheStore(t *testing.T) {
	s := storeOf(1, 3)
	s.Store = []string{"key /sheaf/q/states/a in etcd cannot be used"}
	if screen := s.draw("server", time.Now(), false, 100, 24); !strings.Contains(screen, "problem  store: key /sheaf/q") {
		t.Errorf("%s", screen)
	}
}

func TestTopShowsTheWorstCopyOfEachGroup(t *testing.T) {
	s := storeOf(1, 3)
	s.Groups = append(s.Groups, &recordv1.Group{Group: "1", Shard: "shard-0",
		State: recordv1.GroupState_GROUP_STATE_DAMAGED})
	if screen := s.draw("server", time.Now(), false, 80, 24); !strings.Contains(screen, "\nS D S\n") {
		t.Errorf("%s", screen)
	}
	if screen := s.draw("server", time.Now(), true, 80, 24); !strings.Contains(screen,
		string(cli.Red)+"D"+string(cli.ColourEnd)) {
		t.Errorf("%q", screen)
	}
}

// A group that is served is not shown in red, even if one of its copies is lost. Advice is wrapped, not truncated.
func TestTopDoesNotMarkServedGroupsRed(t *testing.T) {
	s := storeOf(2, 2)
	s.Shards[1].Alive = false
	s.Groups = append(s.Groups,
		&recordv1.Group{Group: "1", Shard: "shard-1", State: recordv1.GroupState_GROUP_STATE_UNAVAILABLE},
		&recordv1.Group{Group: "2", Shard: "shard-1", State: recordv1.GroupState_GROUP_STATE_UNAVAILABLE})
	screen := s.draw("server", time.Now(), true, 80, 40)
	for _, words := range []string{string(cli.Yellow) + "½", string(cli.Red) + "U", "What is lost"} {
		if !strings.Contains(strings.Join(strings.Fields(screen), " "), words) {
			t.Errorf("%q is not in\n%s", words, screen)
		}
	}
	if strings.Count(screen, string(cli.Red)+"U") != 1 {
		t.Errorf("%s", screen)
	}
}

// Numbers that could not be read are shown as unknown, not as 0.
func TestSilentShardHasNoNumbers(t *testing.T) {
	s := storeOf(2, 0)
	s.Shards[0].Alive, s.Shards[0].Load, s.Shards[0].FreeBytes = false, nil, 0
	s.Shards[1].MemoryUsedBytes = 700 << 10
	table := shardTable(s.Shards)
	column := func(row int, name string) string {
		for i, head := range table.Header {
			if head == name {
				return table.Rows[row][i].Text
			}
		}
		return "no such column"
	}
	for _, name := range []string{"LOAD", "MEMORY", "FREE"} {
		if got := column(0, name); got != "?" {
			t.Errorf("%s of a silent shard: %q", name, got)
		}
	}
	if got := column(1, "MEMORY"); got != "700.0 KiB" {
		t.Errorf("memory: %q", got)
	}
}

// A copy that is not served has no numbers, and neither does a group without a copy.
func TestUnservedCopyHasNoNumbers(t *testing.T) {
	s := storeOf(1, 3)
	s.Groups[1].State, s.Groups[1].StoredBytes = recordv1.GroupState_GROUP_STATE_UNAVAILABLE, 1<<10
	s.Groups[2].State, s.Groups[2].Shard = recordv1.GroupState_GROUP_STATE_PENDING, ""
	table := groupTable(s.Groups)
	for row, want := range []string{"0 0 B 0 B 0 0 B", "? 1.0 KiB ? ? ?", "    "} {
		var got []string
		for i, head := range table.Header {
			switch head {
			case "RECORDS", "STORED", "SUPERSEDED", "SEGMENTS", "MEMORY":
				got = append(got, table.Rows[row][i].Text)
			}
		}
		if strings.Join(got, " ") != want {
			t.Errorf("row %d: %q, want %q", row, got, want)
		}
	}
}

// An error ends with advice on what to do, so it is wrapped, not truncated.
func TestTopShowsAllOfAnError(t *testing.T) {
	s := storeSeen{err: status.Error(codes.Unavailable, "connection error: "+strings.Repeat("dialing ", 20))}
	screen := s.draw("127.0.0.1:7600", time.Now(), false, 80, 24)
	if words := strings.Join(strings.Fields(screen), " "); !strings.Contains(words, "start `sheaf dev`, or give --server") {
		t.Error(screen)
	}
}

// The key q closes the screen, as in less and top. Other keys, or the end of the input, do not close it.
func TestTopEndsWithQ(t *testing.T) {
	for keys, want := range map[string]bool{"q": true, "xyQ": true, "x\n": false, "": false} {
		if got := quits(strings.NewReader(keys)); got != want {
			t.Errorf("%q: %v", keys, got)
		}
	}
}

func TestTopNeedsATerminal(t *testing.T) {
	sheaf(t, nil, "top").Want(t, 2).Has(t, "sheaf status")
}

// Traffic is computed from the difference between two readings. Unknown values are not shown as zero: there are no
// rates before the second reading, and a shard that started between the readings is left out.
func TestTopShowsWhatCallersDo(t *testing.T) {
	began := time.Unix(1000, 0)
	of := func(after time.Duration, calls ...int64) *reading {
		r := &reading{at: began.Add(after)}
		for n, total := range calls {
			s := &recordv1.Shard{Name: fmt.Sprint(n), Generation: 1}
			if total >= 0 {
				s.Traffic = &recordv1.Traffic{CallsTotal: 2 * total, RecordBytesTotal: total << 20, UnaryCallsTotal: total,
					UnarySecondsTotal: float64(total) / 400}
			}
			r.shards = append(r.shards, s)
		}
		return r
	}
	again := func(r *reading) *reading {
		r.shards[0].Generation++
		return r
	}
	const unknown = "calls ?/s, records ?/s, time of a call ?"
	for name, c := range map[string]struct {
		before, now *reading
		want        string
	}{
		"the first reading": {&reading{}, of(0, 100), unknown},
		"two shards": {of(0, 100, 0), of(2*time.Second, 200, 100),
			"calls 200/s, records 100.0 MiB/s, time of a call 2.5 ms"},
		"nobody calls":               {of(0, 100), of(time.Second, 100), "calls 0/s, records 0 B/s, time of a call ?"},
		"shards of an older version": {of(0, -1), of(time.Second, -1), unknown},
		"one has started again": {of(0, 500, 0), again(of(time.Second, 700, 100)),
			"calls 200/s, records 100.0 MiB/s, time of a call 2.5 ms (of 1 of 2 shards)"},
		"no time went by": {of(0, 1), of(0, 2), unknown},
	} {
		if got := c.now.since(c.before); got != c.want {
			t.Errorf("%s: %q, want %q", name, got, c.want)
		}
	}
	s := storeOf(1, 1)
	s.traffic = unknown
	if screen := s.draw("server", began, false, 100, 24); !strings.Contains(screen, "\n"+unknown+"\n") {
		t.Errorf("%s", screen)
	}
}
