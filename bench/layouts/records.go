package layouts

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync/atomic"

	"golang.org/x/sys/unix"
)

// poolBytes is the size of a pool of random bytes. All data is taken from the pool, so that no measurement includes
// the time to generate data.
const poolBytes = 1 << 20

// recordSet is a set of versions to store. The versions are numbered from 0. Version k belongs to the record with the
// id 1 + k % live.
type recordSet struct {
	live  int // number of records
	total int // number of versions, at least live
	size  int // bytes of data in each version
	pool  []byte
}

func newSet(live, total, size int) *recordSet {
	s := &recordSet{live: live, total: max(live, total), size: size, pool: make([]byte, poolBytes+size)}
	source := rand.NewChaCha8([32]byte{1})
	_, _ = source.Read(s.pool) // Read never returns an error
	return s
}

func (s *recordSet) id(k int) int64 { return int64(k%s.live) + 1 }

// data returns the data of version number k.
func (s *recordSet) data(k int) []byte {
	at := int(mix(uint64(k)) % poolBytes)
	return s.pool[at : at+s.size]
}

// mix returns a pseudo-random number that depends only on x. Each bit of the number depends on all bits of x.
func mix(x uint64) uint64 {
	x = (x ^ x>>30) * 0xbf58476d1ce4e5b9
	x = (x ^ x>>27) * 0x94d049bb133111eb
	return x ^ x>>31
}

// A file's name is its id multiplied by spread, which makes names look random. Two ids never have the same name,
// because spread is odd. gather is the inverse of spread, so multiplying a name by gather gives the id.
const (
	spread uint64 = 0x9e3779b97f4a7c15
	gather uint64 = 0xf1de83e19937733d
)

// fileName returns the name of a record's file: 16 hexadecimal digits.
func fileName(id int64) string { return fmt.Sprintf("%016x", uint64(id)*spread) }

// fileID returns the id that belongs to a file's name.
func fileID(name string) (int64, error) {
	var n uint64
	if _, err := fmt.Sscanf(name, "%016x", &n); err != nil {
		return 0, fmt.Errorf("file %q: not a record's: %w", name, err)
	}
	return int64(n * gather), nil
}

// visitor is called with each record's data, on several goroutines if there are several readers.
type visitor func(id int64, data []byte) error

// arena is memory into which records are read and in which they remain. All layouts have to read all records into an
// arena, as a program does when it starts.
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
	// Sheaf's own loader gives the kernel the same advice. An error does not matter.
	_ = unix.Madvise(memory, unix.MADV_NOHUGEPAGE)
	return &arena{memory: memory}, nil
}

var errArena = errors.New("more data was found than was written")

// take returns n bytes that no other caller uses.
func (a *arena) take(n int) ([]byte, error) {
	end := a.used.Add(int64(n))
	if end > int64(len(a.memory)) {
		return nil, errArena
	}
	return a.memory[end-int64(n) : end : end], nil
}

func (a *arena) release() { _ = unix.Munmap(a.memory) } // an error is impossible, because the memory is mapped

// lookEvery is the number of steps after which stopped checks the context. It does not check at every step, because a
// check costs as much as a small write.
const lookEvery = 256

func stopped(ctx context.Context, i int) error {
	if i%lookEvery != 0 {
		return nil
	}
	return context.Cause(ctx)
}
