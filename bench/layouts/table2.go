package layouts

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"time"

	"golang.org/x/sys/unix"

	"sheaf.dev/sheaf/internal/storage/group"
	"sheaf.dev/sheaf/internal/storage/group/format"
)

const hashedBytes = 1 << 10 // size of a record in table 2

// table2 is the table about hashed paths. It measures random access to single records.
func table2(fs *fileSystem, s *scale) []cell {
	var cells []cell
	for _, records := range s.hashed {
		n := fs.limitRecords(records)
		random := min(s.random, n/2)
		base := cell{table: 2, fs: fs, x: float64(n)}
		base.variant = fmt.Sprintf("%s of 1 KB, %s at random", countWords(n), countWords(random))
		add := func(title string, needs need, steps func(dir string, set *recordSet) oneByOne) {
			cells = append(cells, base.withLayout(title, needs, func(ctx context.Context, s *site) error {
				set := newSet(n, n, hashedBytes)
				return randomAccess(ctx, s, steps(s.dir, set), set, random)
			}))
		}
		for _, l := range []*fileLayout{
			{title: flatTitle, folder: flatFolder},
			{title: "hashed path, first character", folder: nestedFolders(1)},
			{title: "hashed path, first two characters", folder: nestedFolders(1, 1)},
		} {
			add(l.title, needOf(n, hashedBytes, false), func(dir string, set *recordSet) oneByOne {
				return &filesOneByOne{l: l, dir: dir, set: set}
			})
		}
		add(oursTitle, needOne(n, hashedBytes), func(dir string, set *recordSet) oneByOne {
			return &oursOneByOne{dir: dir, set: set}
		})
	}
	return cells
}

// oneByOne is implemented by layouts that can read single records by their number.
type oneByOne interface {
	create(ctx context.Context) error
	// start opens the files that single accesses need. It is called after the caches were dropped. stop closes the
	// files.
	start(ctx context.Context) error
	stop() error
	seek(i int) error
	get(i int, buffer []byte) error
	remove(ctx context.Context, numbers []int) error
}

// randomAccess creates all records. Then it opens, reads and deletes n of them at random, and measures each of these
// steps with cold caches first. A step with cold caches includes the call of start.
func randomAccess(ctx context.Context, s *site, l oneByOne, set *recordSet, n int) (err error) {
	numbers := rand.New(rand.NewPCG(2, 3)).Perm(set.live)[:n]
	begin := time.Now()
	if err := l.create(ctx); err != nil {
		return err
	}
	s.Set("create", since(begin))
	buffer := make([]byte, hashedBytes+1<<10)
	seek := func() error { return eachNumber(ctx, numbers, l.seek) }
	get := func() error { return eachNumber(ctx, numbers, func(i int) error { return l.get(i, buffer) }) }
	for _, step := range []struct {
		key  string
		cold bool
		run  func() error
	}{
		// A group keeps a record in the page cache only after the record's second read. Therefore get runs once without
		// being measured.
		{"seek", true, seek}, {"seek-warm", false, seek}, {"get", true, get}, {unmeasured, false, get},
		{"get-warm", false, get},
		{"delete", true, func() error { return l.remove(ctx, numbers) }},
	} {
		if step.cold {
			if err := errors.Join(l.stop(), s.cold(ctx)); err != nil {
				return err
			}
		}
		begin := time.Now()
		err := l.start(ctx)
		if err == nil {
			err = step.run()
		}
		if err != nil {
			return errors.Join(fmt.Errorf("%s: %w", step.key, err), l.stop())
		}
		if step.key != unmeasured {
			s.Set(step.key, since(begin))
		}
	}
	return l.stop()
}

// unmeasured is the key of a step whose time is not stored, because it only warms caches.
const unmeasured = ""

func eachNumber(ctx context.Context, numbers []int, each func(i int) error) error {
	for k, i := range numbers {
		if err := stopped(ctx, k); err != nil {
			return err
		}
		if err := each(i); err != nil {
			return err
		}
	}
	return nil
}

// filesOneByOne stores records as files.
type filesOneByOne struct {
	l   *fileLayout
	dir string
	set *recordSet
}

func (f *filesOneByOne) create(ctx context.Context) error { return f.l.fill(ctx, f.dir, f.set, false) }
func (f *filesOneByOne) start(context.Context) error      { return nil }
func (f *filesOneByOne) stop() error                      { return nil }

func (f *filesOneByOne) seek(i int) error {
	_, path := f.l.path(f.dir, f.set, i)
	fd, err := open(path, unix.O_RDONLY, 0)
	if err != nil {
		return err
	}
	return unix.Close(fd)
}

func (f *filesOneByOne) get(i int, buffer []byte) error {
	_, path := f.l.path(f.dir, f.set, i)
	return readFile(path, buffer[:f.set.size])
}

func (f *filesOneByOne) remove(ctx context.Context, numbers []int) error {
	return eachNumber(ctx, numbers, func(i int) error {
		_, path := f.l.path(f.dir, f.set, i)
		return unix.Unlink(path)
	})
}

// oursOneByOne is a group with its index in memory and its data on disk.
type oursOneByOne struct {
	dir string
	set *recordSet
	log *group.Log
}

func (o *oursOneByOne) create(ctx context.Context) error {
	return (&sheafLayout{}).fill(ctx, o.dir, o.set, false)
}

func (o *oursOneByOne) start(ctx context.Context) (err error) {
	if o.log == nil {
		o.log, err = (&sheafLayout{residency: group.Index}).load(ctx, o.dir)
	}
	return err
}

func (o *oursOneByOne) stop() error {
	if o.log == nil {
		return nil
	}
	err := o.log.Close(false)
	o.log = nil
	return err
}

func (o *oursOneByOne) seek(i int) error {
	_, deleted, err := o.log.Head(o.set.id(i))
	if err == nil && deleted {
		err = group.ErrNotFound
	}
	return err
}

func (o *oursOneByOne) get(i int, buffer []byte) error {
	r, err := o.log.Get(o.set.id(i), group.GetOptions{Buffer: buffer})
	if err == nil && len(r.Data) != o.set.size {
		err = fmt.Errorf("record %d has %d bytes, not %d", r.ID, len(r.Data), o.set.size)
	}
	return err
}

// remove deletes records durably, up to batchEntries in one commit.
func (o *oursOneByOne) remove(ctx context.Context, numbers []int) error {
	w, err := NewWriter(o.log)
	if err != nil {
		return err
	}
	for len(numbers) > 0 {
		if err := context.Cause(ctx); err != nil {
			return err
		}
		n := min(batchEntries, len(numbers))
		entries := make([]format.Entry, 0, n)
		for _, i := range numbers[:n] {
			entries = append(entries, format.Entry{Kind: format.KindDelete, ID: o.set.id(i)})
		}
		if err := w.Commit(entries); err != nil {
			return err
		}
		numbers = numbers[n:]
	}
	return nil
}
