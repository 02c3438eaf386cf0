package main

import (
	"bufio"
	"context"
	"crypto/aes"
	"crypto/cipher"
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"sheaf.dev/sheaf/client"
)

// floodVariable is an environment variable whose value names a flood. If it is set, this test binary runs as the
// attacker of BenchmarkFloods.
const floodVariable = "SHEAF_TEST_FLOOD"

// attackers is the number of connections on which the attacker runs a flood at the same time. In the flood of
// incomplete handshakes, each of them is replaced by halfOpens connections, whose handshakes never complete.
const (
	attackers = 16
	halfOpens = 64
)

// attack is the main function of the attacker's process. It floods the gateway at os.Args[1], with the certificate in
// the folder os.Args[2], until standard input ends. For each newline that it reads, it prints the amount sent so far.
func attack(name string) error {
	folder := os.Args[2]
	known, err := knownBy(client.TLSFiles{CA: filepath.Join(folder, "ca.crt"), Cert: filepath.Join(folder, "tls.crt"),
		Key: filepath.Join(folder, "tls.key")})
	if err != nil {
		return err
	}
	run := floods[name]
	if name == idle {
		run = keepBusy
	}
	if run == nil {
		return fmt.Errorf("no flood %q", name)
	}
	var sent atomic.Int64
	a := attacker{server: os.Args[1], known: known, total: &sent}
	for range attackers {
		go func() {
			if name == "handshakes that do not go on" {
				keepHalfOpen(a)
			}
			for {
				_, _ = run(a) // an error is expected, because the gateway closes connections
			}
		}()
	}
	in := bufio.NewReader(os.Stdin)
	for {
		if _, err := in.ReadString('\n'); err != nil {
			return nil //nolint:nilerr // the end of the benchmark
		}
		fmt.Println(sent.Load())
	}
}

// idle is the name of a control run without a flood: the attacker keeps its processor busy but sends nothing. If
// throughput still drops, the cause is the machine, whose processors share caches and often a core.
const idle = "nothing, with a busy processor"

// keepBusy encrypts for a while, as an attacker does.
func keepBusy(a attacker) (sent int, err error) {
	block, err := aes.NewCipher(make([]byte, 16))
	if err != nil {
		return 0, err
	}
	seal, err := cipher.NewGCM(block)
	if err != nil {
		return 0, err
	}
	record := make([]byte, 16<<10)
	for range 1000 {
		seal.Seal(record[:0], make([]byte, seal.NonceSize()), record[:len(record)-seal.Overhead()], nil)
		a.count(&sent)
	}
	return sent, nil
}

// keepHalfOpen begins handshakes as fast as it can, and keeps the latest ones open.
func keepHalfOpen(a attacker) {
	var held [halfOpens]net.Conn
	for i := 0; ; i = (i + 1) % len(held) {
		conn, err := net.Dial("tcp", a.server)
		if err != nil {
			continue
		}
		_, _ = conn.Write([]byte{22, 3, 1}) // the server may have closed the connection
		if held[i] != nil {
			_ = held[i].Close()
		}
		held[i] = conn
		a.total.Add(1)
	}
}

// flooding is a running attacker process.
type flooding struct {
	in  io.WriteCloser
	out *bufio.Reader
	cmd *exec.Cmd
}

// startAttack starts a flood on the second processor.
func (d *flooded) startAttack(b *testing.B, name string) *flooding {
	b.Helper()
	cmd := exec.Command("taskset", "-c", "1", os.Args[0], d.attacker.server, filepath.Dir(d.files.CA))
	cmd.Env = append(os.Environ(), floodVariable+"="+name)
	cmd.Stderr = os.Stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	in, errIn := cmd.StdinPipe()
	out, errOut := cmd.StdoutPipe()
	must(b, errors.Join(errIn, errOut, cmd.Start()))
	f := &flooding{in: in, out: bufio.NewReader(out), cmd: cmd}
	b.Cleanup(f.stop)
	return f
}

// sent returns the amount sent so far. It first waits until the attacker runs.
func (f *flooding) sent(b *testing.B) int {
	b.Helper()
	if _, err := io.WriteString(f.in, "\n"); err != nil {
		b.Fatal(err)
	}
	line, err := f.out.ReadString('\n')
	must(b, err)
	n, err := strconv.Atoi(strings.TrimSpace(line))
	must(b, err)
	return n
}

// stop ends the attacker. It may be called repeatedly.
func (f *flooding) stop() {
	_ = f.cmd.Process.Kill() // killing the attacker also closes its connections
	_ = f.cmd.Wait()
}

// pin restricts all threads of a process to the first processor.
func pin(b *testing.B, pid int) {
	b.Helper()
	var set unix.CPUSet
	set.Set(0)
	threads, err := os.ReadDir(fmt.Sprintf("/proc/%d/task", pid))
	must(b, err)
	for _, thread := range threads {
		id, err := strconv.Atoi(thread.Name())
		must(b, err)
		if err := unix.SchedSetaffinity(id, &set); err != nil && !errors.Is(err, unix.ESRCH) {
			b.Fatalf("pinning thread %d of process %d: %v", id, pid, err)
		}
	}
}

// processorTime returns the processor time that a process has used.
func processorTime(b *testing.B, pid int) time.Duration {
	b.Helper()
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	must(b, err)
	// proc(5) numbers the fields from 1. The command is field 2, and utime and stime are fields 14 and 15.
	_, fields, _ := strings.Cut(string(stat), ") ")
	var ticks int
	for _, field := range strings.Fields(fields)[11:13] {
		n, err := strconv.Atoi(field)
		must(b, err)
		ticks += n
	}
	return time.Duration(ticks) * 10 * time.Millisecond // Go assumes a USER_HZ of 100 on every architecture
}

// BenchmarkFloods measures how much each flood reduces the throughput of other callers. It alternates between turns
// with and without the flood, compares the gets of four callers in both, and reports medians over the turns. The
// attacker has the second processor to itself, and sends as much as that processor allows. The store and the other
// callers share the first processor, and would use all of it. Gets are counted per second of processor time that the
// store and the callers together received, so that other work on the machine does not count. The attacker's processor
// runs independently of them, so a busy machine makes floods look worse, not better.
func BenchmarkFloods(b *testing.B) {
	if _, err := exec.LookPath("taskset"); err != nil || runtime.NumCPU() < 2 {
		b.Skip("two processors and taskset are needed")
	}
	const turns, turn = 5, time.Second
	d := startFlooded(b)
	pin(b, os.Getpid())
	pin(b, d.cmd.Process.Pid)
	for _, name := range append(slices.Sorted(maps.Keys(floods)), idle) {
		b.Run(name, func(b *testing.B) {
			var served atomic.Int64
			over := make(chan struct{})
			var callers sync.WaitGroup
			for range 4 {
				callers.Go(func() {
					for {
						select {
						case <-over:
							return
						default:
						}
						if _, err := d.client.Get(context.Background(), client.Key{ID: 1}, nil); err != nil {
							b.Errorf("a call of somebody else: %v", err)
							return
						}
						served.Add(1)
					}
				})
			}
			// measure returns how many calls the other callers completed per second of processor time, and the share of that
			// time that the store used.
			measure := func() (calls, store float64) {
				before, ofStore, ofCallers := served.Load(), processorTime(b, d.cmd.Process.Pid), processorTime(b, os.Getpid())
				time.Sleep(turn)
				ofStore, ofCallers = processorTime(b, d.cmd.Process.Pid)-ofStore, processorTime(b, os.Getpid())-ofCallers
				used := (ofStore + ofCallers).Seconds()
				return float64(served.Load()-before) / used, ofStore.Seconds() / used
			}
			var alone, beside, ratios, share, shareAlone, rates []float64
			for range turns {
				calls, part := measure()
				alone, shareAlone = append(alone, calls), append(shareAlone, part)
				attack := d.startAttack(b, name)
				begun, before := time.Now(), attack.sent(b)
				with, part := measure()
				rates = append(rates, float64(attack.sent(b)-before)/time.Since(begun).Seconds())
				attack.stop()
				beside, share, ratios = append(beside, with), append(share, part), append(ratios, with/calls)
				settle(served.Load)
			}
			close(over)
			callers.Wait()
			b.ReportMetric(median(alone), "calls-alone/cpu-s")
			b.ReportMetric(median(beside), "calls-beside/cpu-s")
			b.ReportMetric(median(ratios), "goodput-ratio")
			b.ReportMetric(slices.Min(ratios), "goodput-least")
			b.ReportMetric(median(shareAlone), "store-share-alone")
			b.ReportMetric(median(share), "store-share-beside")
			b.ReportMetric(median(rates), "flood/s")
			b.ReportMetric(0, "ns/op")
		})
	}
}

// settle waits until a hundred more calls are answered, so that the attack no longer affects later calls.
func settle(served func() int64) {
	for enough := served() + 100; served() < enough; {
		time.Sleep(time.Millisecond)
	}
}

func median(of []float64) float64 {
	slices.Sort(of)
	return of[len(of)/2]
}
