package bench

import (
	"bufio"
	"bytes"
	"cmp"
	"context"
	"embed"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"time"

	"sheaf.dev/sheaf/bench/drive"
	"sheaf.dev/sheaf/bench/rounds"
)

// readerScripts are the Python programs that read. bench/readers/worker.py defines how this process talks to them.
//
//go:embed readers/*.py
var readerScripts embed.FS

// These are the metrics of a worker's turn: units per second, and per second of the processors in its process.
const (
	byTime = "time"
	byCPU  = "cpu"
)

// worker is a Python process with one reader.
type worker struct {
	name    string
	missing string // why the reader cannot be measured here; empty if it can be
	address string // where the reader serves, if it does
	process *drive.Process
	in      *os.File
	out     *os.File
	answers *bufio.Scanner
	said    bytes.Buffer // what the process has written to its standard error
}

// turn is a worker's answer to a turn, and its first answer.
type turn struct {
	Missing string  `json:"missing"`
	Address string  `json:"address"`
	Units   float64 `json:"units"`
	Wall    float64 `json:"wall"`
	CPU     float64 `json:"cpu"`
}

// writeReaderScripts writes the Python programs to a new folder.
func writeReaderScripts(dir string) error {
	files, err := readerScripts.ReadDir("readers")
	if err == nil {
		err = os.Mkdir(dir, 0o755)
	}
	for _, file := range files {
		if err != nil {
			break
		}
		var text []byte
		if text, err = readerScripts.ReadFile("readers/" + file.Name()); err == nil {
			err = os.WriteFile(filepath.Join(dir, file.Name()), text, 0o600)
		}
	}
	if err != nil {
		return fmt.Errorf("writing the programs that read: %w", err)
	}
	return nil
}

// startWorker starts a reader of the scripts' folder, and returns when it is ready or has said that it is missing. The
// caller must call close.
func startWorker(ctx context.Context, python, scripts, name string, config map[string]any) (_ *worker, err error) {
	arguments, err := json.Marshal(config)
	if err != nil {
		return nil, fmt.Errorf("reader %s: %w", name, err)
	}
	w := &worker{name: name}
	defer func() {
		if err != nil {
			w.close()
		}
	}()
	var theirIn, theirOut *os.File
	if theirIn, w.in, err = os.Pipe(); err != nil {
		return nil, fmt.Errorf("reader %s: %w", name, err)
	}
	defer func() { _ = theirIn.Close() }()
	if w.out, theirOut, err = os.Pipe(); err != nil {
		return nil, fmt.Errorf("reader %s: %w", name, err)
	}
	defer func() { _ = theirOut.Close() }()
	cmd := exec.CommandContext(ctx, python, filepath.Join(scripts, "worker.py"), name, string(arguments))
	cmd.Stdin, cmd.Stdout, cmd.Stderr = theirIn, theirOut, &w.said
	cmd.Env = append(os.Environ(), "PYTHONDONTWRITEBYTECODE=1")
	if w.process, err = drive.Start(cmd, syscall.SIGKILL); err != nil {
		return nil, fmt.Errorf("reader %s: %w: give --python", name, err)
	}
	w.answers = bufio.NewScanner(w.out)
	_ = theirOut.Close() // so that the end of the process is the end of its answers
	facts, err := w.answer()
	w.missing, w.address = facts.Missing, facts.Address
	return w, err
}

// work lets the reader work for about the given time.
func (w *worker) work(duration time.Duration) (turn, error) {
	if _, err := fmt.Fprintln(w.in, duration.Seconds()); err != nil {
		return turn{}, w.failed(err)
	}
	did, err := w.answer()
	if err == nil && (did.Units <= 0 || did.Wall <= 0) {
		err = w.failed(fmt.Errorf("%v units were read in %v s", did.Units, did.Wall))
	}
	return did, err
}

// answer reads an answer. The process ends when the context of its start is done.
func (w *worker) answer() (got turn, err error) {
	if !w.answers.Scan() {
		<-w.process.Ended
		return got, w.failed(cmp.Or(w.answers.Err(), w.process.Err()))
	}
	if err := json.Unmarshal(w.answers.Bytes(), &got); err != nil {
		return got, w.failed(err)
	}
	return got, nil
}

// failed returns an error of the reader, with the end of what the process has said if it has ended.
func (w *worker) failed(err error) error {
	select {
	case <-w.process.Ended:
		const most = 2 << 10
		text := w.said.Bytes()
		return fmt.Errorf("reader %s: %w: %s", w.name, err, bytes.TrimSpace(text[max(0, len(text)-most):]))
	default:
		return fmt.Errorf("reader %s: %w", w.name, err)
	}
}

// close ends the process, and the processes that it has started.
func (w *worker) close() {
	if w.in != nil {
		_ = w.in.Close()
	}
	if w.process != nil {
		const patience = 10 * time.Second
		select {
		case <-w.process.Ended:
		case <-time.After(patience):
			w.process.Kill()
		}
	}
	if w.out != nil {
		_ = w.out.Close()
	}
}

// cell creates a cell with the two rates of a reader.
func (w *worker) cell(duration time.Duration) rounds.Cell {
	return rounds.Cell{Key: w.name, Run: func(_ context.Context, f *rounds.Figures) error {
		did, err := w.work(duration)
		if err != nil {
			return err
		}
		f.Set(byTime, did.Units/did.Wall)
		if did.CPU > 0 {
			f.Set(byCPU, did.Units/did.CPU)
		}
		return nil
	}}
}
