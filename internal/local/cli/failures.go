package cli

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"sync"
)

// reportedFailures is the number of failures of each kind that are printed. The file in --failures lists all failures.
const reportedFailures = 20

// failure describes a file or record that could not be imported, exported or deleted.
type failure struct {
	Kind string `json:"kind"`
	Path string `json:"path"`
	What string `json:"what"`
}

// whatOf returns the text of an error without the path, which is already printed.
func whatOf(err error) string {
	if p, ok := err.(*fs.PathError); ok { //nolint:errorlint // a wrapped PathError is printed with the text around it
		return p.Op + ": " + p.Err.Error()
	}
	return Describe(err, "")
}

// Failed contains the number of failures of each kind.
type Failed map[string]int64

// Total returns the number of failures of all kinds.
func (f Failed) Total() int64 {
	var n int64
	for _, k := range f {
		n += k
	}
	return n
}

// failures counts and lists failures. Safe for concurrent use.
type failures struct {
	mu   sync.Mutex
	n    Failed
	file io.WriteCloser
	err  error
}

func (f *failures) open(name string) error {
	f.n = Failed{}
	if name == "" {
		return nil
	}
	file, err := os.Create(name)
	if err != nil {
		return fmt.Errorf("the list of failures: %w", err)
	}
	f.file = file
	return nil
}

func (f *failures) add(one failure, out *Output) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.n[one.Kind]++
	switch n := f.n[one.Kind]; {
	case n <= reportedFailures:
		out.Sayf("%s: %s: %s", one.Kind, shortName(one.Path), one.What)
	case n == reportedFailures+1:
		out.Sayf("%s: more follow; --failures FILE lists all", one.Kind)
	}
	if f.file == nil {
		return
	}
	line, err := json.Marshal(one)
	if err == nil {
		_, err = f.file.Write(append(line, '\n'))
	}
	f.err = errors.Join(f.err, err)
}

func (f *failures) counts() Failed {
	f.mu.Lock()
	defer f.mu.Unlock()
	return maps.Clone(f.n)
}

func (f *failures) close() error {
	if f.file == nil {
		return nil
	}
	if err := errors.Join(f.err, f.file.Close()); err != nil {
		return fmt.Errorf("the list of failures: %w", err)
	}
	return nil
}

// FailureList counts and lists failures for commands of other packages. It is safe for concurrent use.
type FailureList struct {
	failures
	out *Output
}

// NewFailureList creates a list. It also writes all failures to the file of this name, as JSON lines, unless the name
// is empty.
func NewFailureList(name string, out *Output) (*FailureList, error) {
	l := &FailureList{out: out}
	return l, l.open(name)
}

// Add counts and prints a failure of a kind. The argument where names a file, or a place in one.
func (l *FailureList) Add(kind, where string, err error) {
	l.add(failure{Kind: kind, Path: where, What: whatOf(err)}, l.out)
}

// Counts returns the number of failures of each kind.
func (l *FailureList) Counts() Failed { return l.counts() }

// Close closes the file. The error says that it lacks failures.
func (l *FailureList) Close() error { return l.close() }
