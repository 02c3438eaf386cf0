package demo

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/signal"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"sheaf.dev/sheaf/client/recordv1"
	"sheaf.dev/sheaf/internal/local/cli"
	"sheaf.dev/sheaf/internal/local/dev"
	"sheaf.dev/sheaf/internal/test/loopback"
	"sheaf.dev/sheaf/internal/test/must"
)

// fakeVariable is an environment variable. If it is set, this test binary acts as `sheaf dev`, and the value selects
// how the fake behaves.
const fakeVariable = "SHEAF_DEMO_FAKE"

func TestMain(m *testing.M) {
	if how := os.Getenv(fakeVariable); how != "" && len(os.Args) > 1 && os.Args[1] == "dev" {
		fakeDev(how, os.Args[slices.Index(os.Args, "--http")+1])
		return
	}
	os.Exit(m.Run())
}

// fakeDev acts as a `sheaf dev` that never becomes ready. In the mode "slow", however, it becomes ready after a load
// that makes progress all the time.
func fakeDev(how, address string) {
	fmt.Fprintln(os.Stderr, "fake: a word in the log")
	if how == "ends" {
		os.Exit(1)
	}
	if how == "silent" {
		signals := make(chan os.Signal, 1)
		// Nobody sends this signal. The process waits for nothing else, and without the handler Go would consider it
		// deadlocked and abort it.
		signal.Notify(signals, syscall.SIGUSR1)
		<-signals
	}
	l, err := net.Listen("tcp", address)
	if err != nil {
		panic(err)
	}
	if how == "deaf" {
		for {
			if _, err := l.Accept(); err != nil {
				panic(err)
			}
		}
	}
	began := time.Now()
	status := dev.Status{Load: &recordv1.Load{}}
	status.NotYet = "15 of 16 groups serve"
	status.Shards = []*recordv1.ShardStatus{{
		Shard: &recordv1.Shard{Name: "shard-1", Problems: []string{"the disk is very odd"}},
		Groups: []*recordv1.Group{
			{Group: "3", State: recordv1.GroupState_GROUP_STATE_LOADING},
			{Group: "4", State: recordv1.GroupState_GROUP_STATE_SERVING},
		}}}
	status.Load.GroupsTotal = 16
	if how == "failed" {
		status.Load.Done, status.Load.GroupsFailed = true, 1
		status.Shards[0].Groups[0] = &recordv1.Group{Group: "3", State: recordv1.GroupState_GROUP_STATE_FAILED,
			Message: "its manifest is gone"}
	}
	panic(http.Serve(l, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		now := status
		if how == "slow" {
			now.Load.BytesDone = time.Since(began).Microseconds()
			now.Ready = time.Since(began) > slowTime
		}
		switch {
		case r.URL.Path == "/status":
			_ = json.NewEncoder(w).Encode(now)
		case now.Ready:
			fmt.Fprintln(w, "ok")
		default:
			http.Error(w, now.NotYet, http.StatusServiceUnavailable)
		}
	})))
}

const (
	stallMax = 2 * time.Second
	slowTime = 3 * stallMax
)

// fakeRun returns the options of a demo on a fake store, the buffer for the demo's output, and its folder for temporary
// files.
func fakeRun(t *testing.T, how string) (opts Options, said *bytes.Buffer, temp string) {
	t.Setenv(fakeVariable, how)
	temp = t.TempDir()
	t.Setenv("TMPDIR", temp)
	said = &bytes.Buffer{}
	return Options{
		Trees: []string{t.TempDir()}, Listen: loopback.Free(t), HTTP: loopback.Free(t), Residency: "index", Once: true,
		StallMax: stallMax, Out: &cli.Output{Out: said, Err: said},
	}, said, temp
}

// If the store never becomes ready, the demo fails with an explanation and with evidence.
func TestDemoExplainsStoreThatIsNeverReady(t *testing.T) {
	const stacks = "goroutine "
	for how, want := range map[string]struct {
		words []string // strings that the error message must contain
		stall bool     // the error must say that there was no progress, and the log must contain stacks
	}{
		"silent": {[]string{"nothing has moved", "/status did not answer"}, true},
		"deaf":   {[]string{"nothing has moved", "/status did not answer"}, true},
		"never": {[]string{
			"nothing has moved", "15 of 16 groups serve", "shard-1: the disk is very odd", "group 3 is Loading",
			"stacks of its goroutines",
		}, true},
		"failed": {[]string{"1 of 16 groups cannot be loaded", "group 3 is Failed its manifest is gone"}, false},
		"ends":   {[]string{"ended by itself"}, false},
	} {
		t.Run(how, func(t *testing.T) {
			opts, said, temp := fakeRun(t, how)
			ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
			defer cancel()
			err := Run(ctx, opts)
			if err == nil || ctx.Err() != nil {
				t.Fatalf("it does not end by itself: %v", err)
			}
			for _, word := range append(want.words, "fake: a word in the log", "kept: "+temp) {
				if !strings.Contains(err.Error(), word) {
					t.Errorf("the error does not say %q: %v", word, err)
				}
			}
			if strings.Contains(err.Error(), "group 4") {
				t.Errorf("the error names a group that serves: %v", err)
			}
			if want.stall && !strings.Contains(said.String(), "the last progress") {
				t.Errorf("no words while it waits: %s", said)
			}
			left, errList := filepath.Glob(filepath.Join(temp, "*"))
			if errList != nil || len(left) != 1 {
				t.Fatalf("left behind: %v %v, wanted is one folder with the log", left, errList)
			}
			log, errLog := os.ReadFile(filepath.Join(left[0], "log"))
			if errLog != nil || strings.Contains(string(log), stacks) != want.stall {
				t.Errorf("the log that is kept: %v %s", errLog, log)
			}
			if _, errStatus := os.Stat(filepath.Join(left[0], "status.json")); (errStatus == nil) != strings.Contains(
				err.Error(), "/status said last") {
				t.Errorf("the status that is kept: %v", errStatus)
			}
		})
	}
}

// The demo does not give up a load that is still making progress.
func TestDemoWaitsForProgressingLoad(t *testing.T) {
	opts, said, temp := fakeRun(t, "slow")
	d := &demo{Options: opts, dir: temp, logDir: temp}
	var err error
	if d.Program, err = os.Executable(); err != nil {
		t.Fatal(err)
	}
	took, err := d.start(context.Background())
	if errEnd := d.end(); errEnd != nil {
		t.Error(errEnd)
	}
	if err != nil || took < slowTime {
		t.Errorf("ready after %v: %v", took, err)
	}
	if !strings.Contains(said.String(), "15 of 16 groups serve") {
		t.Errorf("it does not say what it waits for: %s", said)
	}
}

// Work that needs the store is canceled when the store exits or stops making progress.
func TestWorkEndsWithTheStore(t *testing.T) {
	for how, want := range map[string]string{"never": "the work: nothing has moved", "ends": "ended by itself"} {
		t.Run(how, func(t *testing.T) {
			opts, _, temp := fakeRun(t, how)
			d := &demo{Options: opts, dir: temp, logDir: temp}
			var err error
			if d.Program, err = os.Executable(); err != nil {
				t.Fatal(err)
			}
			must.OK(t, d.launch())
			var told atomic.Bool
			err = d.runWhileServing(context.Background(), "the work", writeMark, func(ctx context.Context) error {
				<-ctx.Done()
				told.Store(true)
				return ctx.Err()
			})
			if err == nil || !strings.Contains(err.Error(), want) || !told.Load() {
				t.Errorf("the work was told: %v: %v", told.Load(), err)
			}
			if err := d.end(); err != nil {
				t.Error(err)
			}
		})
	}
}

func TestAGroupThatMovesIsCountedOnce(t *testing.T) {
	s := dev.Status{Shards: []*recordv1.ShardStatus{
		{Groups: []*recordv1.Group{{Group: "1", Records: 10, StoredBytes: 100}, {Group: "2", Records: 1, StoredBytes: 5}}},
		{Groups: []*recordv1.Group{{Group: "1", Records: 7, StoredBytes: 90}}},
		{Groups: []*recordv1.Group{{Group: "2", Records: 2, StoredBytes: 6}}},
	}}
	if records, bytes := groupTotals(s); records != 12 || bytes != 106 {
		t.Errorf("%d records of %d bytes, want 12 of 106", records, bytes)
	}
}

// The demo prints an explanation after its last line only if the ratio is poor.
func TestPoorRatiosAreExplained(t *testing.T) {
	for _, c := range []struct {
		name                 string
		load, besides, files float64
		state                string
		want                 []string
	}{
		{"large and cold", 1, 0.1, 8, "cold", nil},
		{"small and cold", 0.02, 0.3, 0.6, "cold", []string{"this one is small"}},
		{"warm", 1, 0.1, 1.2, "warm", []string{"page cache"}},
		{"small and warm", 0.02, 0.3, 0.1, "warm", []string{"page cache", "this one is small"}},
		{"large records", 1, 0.1, 2, "cold", []string{"few or large"}},
	} {
		got := poorReasons(c.load, c.besides, c.files, c.state)
		if len(got) != len(c.want) {
			t.Errorf("%s: %q", c.name, got)
			continue
		}
		for i, word := range c.want {
			if !strings.Contains(got[i], word) {
				t.Errorf("%s: %q does not say %q", c.name, got[i], word)
			}
		}
	}
}
