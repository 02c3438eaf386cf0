package layouts

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync/atomic"

	"golang.org/x/sys/unix"
)

// poolBytes of random bytes are what all data is cut from, so that making it costs nothing while something is timed.
const poolBytes = 1 << 20

// recordSet is what is stored: version number k, from 0 on, is of the record with id k % live + 1.
type recordSet struct {
	live  int // records
	total int // versions, at least live
	size  int // bytes of data of each
	pool  []byte
}

func newSet(live, total, size int) *recordSet {
	s := &recordSet{live: live, total: max(live, total), size: size, pool: make([]byte, poolBytes+size)}
	source := rand.NewChaCha8([32]byte{1})
	_, _ = source.Read(s.pool) // never fails
	return s
}

func (s *recordSet) id(k int) int64 { return int64(k%s.live) + 1 }

// data of version number k.
func (s *recordSet) data(k int) []byte {
	at := int(mix(uint64(k)) % poolBytes)
	return s.pool[at : at+s.size]
}

// mix spreads numbers over all bits, and is its own kind of random.
func mix(x uint64) uint64 {
	x = (x ^ x>>30) * 0xbf58476d1ce4e5b9
	x = (x ^ x>>27) * 0x94d049bb133111eb
	return x ^ x>>31
}

// spread makes names of files that look random from ids: odd, so that no two ids share a name; gather undoes it.
const (
	spread uint64 = 0x9e3779b97f4a7c15
	gather uint64 = 0xf1de83e19937733d
)

// fileName of a record: 16 hexadecimal digits.
func fileName(id int64) string { return fmt.Sprintf("%016x", uint64(id)*spread) }

// fileID is the id of a file's record.
func fileID(name string) (int64, error) {
	var n uint64
	if _, err := fmt.Sscanf(name, "%016x", &n); err != nil {
		return 0, fmt.Errorf("file %q: not a record's: %w", name, err)
	}
	return int64(n * gather), nil
}

// visitor gets each record's data, from several goroutines where several read.
type visitor func(id int64, data []byte) error

// arena is memory that data is read into and stays in. Every layout has to bring all records there, as a program that
// starts does.
type arena struct {
	memory []byte
	used   atomic.Int64
}

func newArena(bytes int64) (*arena, error) {
	memory, err := unix.Mmap(-1, 0, int(max(bytes, 1)), unix.PROT_READ|unix.PROT_WRITE,
		unix.MAP_PRIVATE|unix.MAP_ANONYMOUS)
	if err != nil {
		return nil, fmt.Errorf("mapping %d bytes: %w", bytes, err)
	}
	_ = unix.Madvise(memory, unix.MADV_NOHUGEPAGE) // as Sheaf's own loader asks for; an advice
	return &arena{memory: memory}, nil
}

var errArena = errors.New("more data was found than was written")

// take gives n bytes that nobody else has.
func (a *arena) take(n int) ([]byte, error) {
	end := a.used.Add(int64(n))
	if end > int64(len(a.memory)) {
		return nil, errArena
	}
	return a.memory[end-int64(n) : end : end], nil
}

func (a *arena) release() { _ = unix.Munmap(a.memory) } // fails for what is not mapped only

// stopped looks at the context once in lookEvery steps: each look costs as much as a small write.
const lookEvery = 256

func stopped(ctx context.Context, i int) error {
	if i%lookEvery != 0 {
		return nil
	}
	return context.Cause(ctx)
}
