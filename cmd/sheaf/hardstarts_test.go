package main

import (
	"context"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"sheaf.dev/sheaf/client/recordv1"
	"sheaf.dev/sheaf/internal/test/soaktest"
)

const (
	hardStarts = 1000
	// hardStartMax is much longer than any start of a small store. A start that takes longer is considered to hang.
	hardStartMax = 3 * time.Minute
)

// TestHardStartsUnderPressure repeatedly kills a small store by SIGKILL and starts it again. At the same time, other
// processes keep the processors busy and sync files. If the test runs as root, it drops caches. During some of the
// starts, the process is stopped and continued alternately. After each start, the store must become ready. Otherwise
// the test reports the status, the output and the goroutine stacks of the process.
func TestHardStartsUnderPressure(t *testing.T) {
	soaktest.Only(t, "proc", "it takes every processor, and drops the page cache of the whole machine")
	dir, random := t.TempDir(), rand.New(rand.NewPCG(soaktest.Seed(t, 0), 0))
	p := startDev(t, dir, "--residency", "resident")
	loadMachine(t, 4*runtime.NumCPU())
	var took []time.Duration
	for n := range hardStarts {
		kept := writeUntilKilled(t, p, uint64(n), random)
		if n%3 == 0 {
			_ = os.WriteFile("/proc/sys/vm/drop_caches", []byte("3"), 0o200) // works only as root
		}
		begin := time.Now()
		p = launch(t, dir, p.server, p.http, "--residency", []string{"resident", "index"}[random.IntN(2)])
		p.waitHardStart(t, n, n%4 == 1, random)
		took = append(took, time.Since(begin))
		if kept != "" {
			if o := p.do(t, "", "get", kept).Want(t, 0); o.Stdout != kept {
				t.Fatalf("start %d: record %s holds %q", n, kept, o.Stdout)
			}
		}
	}
	slices.Sort(took)
	soaktest.Report(t, "starts", len(took))
	t.Logf("%d starts: min %.2f s, median %.2f s, max %.2f s", len(took), took[0].Seconds(), took[len(took)/2].Seconds(),
		took[len(took)-1].Seconds())
}

// loadMachine keeps processors and disk busy until the test ends.
func loadMachine(t *testing.T, spinners int) {
	t.Helper()
	for range spinners {
		cmd := exec.Command("sh", "-c", "while :; do :; done")
		cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
		must(t, cmd.Start())
		t.Cleanup(func() {
			_ = cmd.Process.Kill()
			_ = cmd.Wait()
		})
	}
	name := filepath.Join(t.TempDir(), "pressure")
	ctx, cancel := context.WithCancel(context.Background())
	var writing sync.WaitGroup
	writing.Go(func() {
		block := make([]byte, 8<<20)
		for ctx.Err() == nil {
			if err := writeSynced(name, block); err != nil {
				t.Errorf("keeping the disk busy: %v", err)
				return
			}
		}
	})
	t.Cleanup(func() {
		cancel()
		writing.Wait()
	})
}

// writeSynced creates or truncates a file, writes a few blocks, and syncs it.
func writeSynced(name string, block []byte) error {
	f, err := os.Create(name)
	if err != nil {
		return err
	}
	defer f.Close()
	for range 8 {
		if _, err := f.Write(block); err != nil {
			return err
		}
	}
	return f.Sync()
}

// writeUntilKilled puts records and kills the store at a random moment. It returns the id of an acknowledged record,
// whose data is its id, or an empty string if no record was acknowledged.
func writeUntilKilled(t *testing.T, p *process, round uint64, random *rand.Rand) string {
	t.Helper()
	cc := dial(t, p.server)
	defer cc.Close()
	reconnect(t, cc)
	records := recordv1.NewRecordServiceClient(cc)
	kills := 1 + random.Int64N(200) // the number of acknowledged puts after which the store is killed
	var acknowledged atomic.Int64
	var last atomic.Value
	enough := make(chan struct{})
	var once sync.Once
	var writing sync.WaitGroup
	for worker := range 4 {
		writing.Go(func() {
			for n := 0; ; n++ {
				id := int64(round)<<32 | int64(worker)<<24 | int64(n)
				text := strconv.FormatInt(id, 10)
				ctx, cancel := context.WithTimeout(context.Background(), hardStartMax)
				_, err := records.Put(ctx, &recordv1.PutRequest{Key: &recordv1.RecordKey{Id: id}, Data: []byte(text)})
				cancel()
				if err != nil {
					once.Do(func() { close(enough) })
					return
				}
				last.Store(text)
				if acknowledged.Add(1) >= kills {
					once.Do(func() { close(enough) })
				}
			}
		})
	}
	<-enough
	p.kill()
	writing.Wait()
	kept, _ := last.Load().(string)
	return kept
}

// waitHardStart waits until the store serves every group. If the start is throttled, the process is allowed to run
// for only about a tenth of the time.
func (p *process) waitHardStart(t *testing.T, n int, throttled bool, random *rand.Rand) {
	t.Helper()
	deadline := time.Now().Add(hardStartMax)
	client := &http.Client{Timeout: 5 * time.Second}
	for {
		if _, err := ask(client, p.http, "/readyz"); err == nil {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("start %d is not ready after %v: %s", n, hardStartMax, p.evidence(client))
		}
		running := 5 * time.Millisecond
		if throttled {
			_ = p.cmd.Process.Signal(syscall.SIGSTOP)
			// Keep the process stopped for a while. Nothing that the test waits for can happen in this time.
			time.Sleep(time.Duration(10+random.IntN(80)) * time.Millisecond)
			_ = p.cmd.Process.Signal(syscall.SIGCONT)
		}
		select {
		case <-p.ended:
			t.Fatalf("start %d ended before it was ready: %s", n, p.stderr)
		case <-time.After(running):
		}
	}
}

// evidence kills the process, and returns its last output and the stacks of its goroutines.
func (p *process) evidence(client *http.Client) string {
	status, err := ask(client, p.http, "/status")
	if err != nil {
		status = err.Error()
	}
	_ = p.cmd.Process.Signal(syscall.SIGQUIT)
	select {
	case <-p.ended:
	case <-time.After(time.Minute):
	}
	return fmt.Sprintf("/status: %s\nits words and stacks: %s", status, p.stderr)
}

// ask returns the body of a successful HTTP response.
func ask(client *http.Client, address, path string) (string, error) {
	response, err := client.Get("http://" + address + path)
	if err != nil {
		return "", err
	}
	defer response.Body.Close()
	body, err := io.ReadAll(response.Body)
	if err == nil && response.StatusCode != http.StatusOK {
		err = fmt.Errorf("%s: %s", response.Status, body)
	}
	return string(body), err
}
