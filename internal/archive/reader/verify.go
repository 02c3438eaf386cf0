package reader

import (
	"context"
	"fmt"
	"hash/fnv"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/google/uuid"

	"sheaf.dev/sheaf/internal/archive/bucket"
	"sheaf.dev/sheaf/internal/archive/object"
	"sheaf.dev/sheaf/internal/archive/pieces"
	"sheaf.dev/sheaf/internal/storage/group/format"
)

// VerifyOptions determine how much Verify reads.
type VerifyOptions struct {
	// Sample is the percentage of segments, blobs and bodies of log objects that are read. 0 means all. Catalogues and
	// the headers of log objects are always read, and listings show which objects exist.
	Sample int
	// Seed selects the sample. Runs with different seeds read different objects.
	Seed uint64
	// Progress, if not nil, is called with the size of each object before it is read.
	Progress func(name string, bytes int64)
}

// Report is the result of Verify.
type Report struct {
	Store      uuid.UUID `json:"store"`
	Name       string    `json:"name"`
	Groups     int       `json:"groups"`
	Logs       int64     `json:"logs"`       // log objects
	Catalogues int64     `json:"catalogues"` // all catalogues, including older ones
	Segments   int64     `json:"segments"`   // segment objects that the newest catalogues list
	Blobs      int64     `json:"blobs"`      // blobs to which the entries that were read refer
	Points     int64     `json:"points"`     // points, all of which must be readable
	Bytes      int64     `json:"bytes"`      // total size of the objects that were read completely
	Entries    int64     `json:"entries"`    // entries that were read
	Records    int64     `json:"records"`    // puts and deletes among the entries
	Skipped    int64     `json:"skipped"`    // objects that are not in the sample
	// Gaps is the number of index ranges without an entry, above the floors and outside of holes. Compaction creates
	// such gaps when it drops Raft entries that are not records, so a gap is not a problem.
	Gaps int64 `json:"gaps"`
	// Unused is the number of objects to which nothing refers. They were left behind by interrupted attempts, or only
	// older catalogues refer to them.
	Unused  int64     `json:"unused"`
	Covered time.Time `json:"covered"` // all groups are archived up to this time; zero if it is unknown
	// Keyless is true if a key was not available, so only the checksums were verified.
	Keyless bool `json:"keyless,omitempty"`
	// UnknownKeys are the ids of keys that were not available, sorted. There may be more if Keyless and Skipped are set.
	UnknownKeys []string `json:"unknownKeys,omitempty"`
	// Keys says with which keys the objects that were read are encrypted. It is empty if none of them is.
	Keys     []KeyUse  `json:"keys,omitempty"`
	Problems []Problem `json:"problems"`
}

// KeyUse is the number of objects that are encrypted with a key.
type KeyUse struct {
	KeyID   string `json:"keyId"` // empty for objects that are not encrypted, though others of their kind may be
	Objects int64  `json:"objects"`
}

// Problem is a fault of an archive.
type Problem struct {
	Group string `json:"group,omitempty"` // name and UUID of the group; empty if the whole store is concerned
	What  string `json:"what"`            // description that names the object
}

// verifier checks one archive.
type verifier struct {
	a      *Archive
	opts   VerifyOptions
	report *Report
	names  map[string]int64 // sizes of all objects
	used   map[string]bool
	walks  map[uuid.UUID]*groupWalk // walks over the groups that could be read
	locked map[object.KeyID]bool    // the ids of keys that objects need and that were not given

	mu     sync.Mutex
	sealed map[string]object.KeyID // key ids of the objects that were read, but are not always plain; guarded by mu
}

func newVerifier(store uuid.UUID, opts VerifyOptions) *verifier {
	return &verifier{opts: opts, report: &Report{Store: store, Problems: []Problem{}}, names: map[string]int64{},
		used: map[string]bool{}, walks: map[uuid.UUID]*groupWalk{}, sealed: map[string]object.KeyID{},
		locked: map[object.KeyID]bool{}}
}

// Verify checks all objects of an archive, and the relations between objects that docs/archive.md promises. The
// report lists the faults of the archive. An error means that Verify could not finish.
//
// If an object needs a key that is not among the given ones, Verify only checks the lengths and checksums of all
// objects. If keys were given, the missing key is a fault as well.
func Verify(ctx context.Context, b bucket.Bucket, store uuid.UUID, keys object.Keys, opts VerifyOptions) (*Report,
	error) {
	v := newVerifier(store, opts)
	a, err := Open(ctx, b, store, keys)
	if err == nil {
		err = v.deep(ctx, a)
	}
	v.lacks(err)
	if len(v.locked) == 0 {
		return v.report, err
	}
	k := newVerifier(store, opts) // the report of what could be read is not used: it depends on what could not
	k.locked = v.locked
	return k.report, k.keyless(ctx, b, store, keys)
}

// deep checks an archive, and ends early if a key is missing.
func (v *verifier) deep(ctx context.Context, a *Archive) error {
	v.a = a
	a.folder.saw = v.saw
	v.report.Name = a.header.Store
	v.used[object.ArchiveName] = true
	if err := v.list(ctx, a.folder); err != nil {
		return err
	}
	for _, part := range []func(context.Context){v.logs, v.groups, v.small, v.bodies} {
		if part(ctx); len(v.locked) > 0 {
			return context.Cause(ctx)
		}
	}
	for name := range v.names {
		if !v.used[name] {
			v.report.Unused++
		}
	}
	v.keys()
	return context.Cause(ctx)
}

func (v *verifier) list(ctx context.Context, f *folder) error {
	for info, err := range f.bucket.List(ctx, "", "") {
		if err != nil {
			return fmt.Errorf("listing the archive of store %s: %w", f.store, err)
		}
		v.names[info.Name] = info.Bytes
	}
	return nil
}

func (v *verifier) problem(g *Group, err error) {
	if v.lacks(err) {
		return
	}
	p := Problem{What: err.Error()}
	if g != nil {
		p.Group = g.String()
	}
	for _, known := range v.report.Problems {
		if known.What == p.What {
			return // already reported for another group that needs the same object
		}
	}
	v.report.Problems = append(v.report.Problems, p)
}

// picked reports whether an object is part of the sample, and counts the object as skipped if it is not.
func (v *verifier) picked(name string, bytes int64) bool {
	if v.opts.Sample > 0 && v.opts.Sample < 100 {
		h := fnv.New64a()
		_, _ = fmt.Fprintf(h, "%d %s", v.opts.Seed, name) // never fails
		if h.Sum64()%100 >= uint64(v.opts.Sample) {
			v.report.Skipped++
			return false
		}
	}
	if v.opts.Progress != nil {
		v.opts.Progress(name, bytes)
	}
	v.report.Bytes += bytes
	return true
}

// logs reads the header of each log object, and checks that the object continues the preceding one.
func (v *verifier) logs(ctx context.Context) {
	l := v.a.logs
	for number := l.first; number != 0 && number <= l.last && ctx.Err() == nil; number++ {
		if !l.has(number) {
			continue // the groups that need this object will report that it is missing
		}
		v.report.Logs++
		v.used[object.LogName(number)] = true
		if _, err := l.load(ctx, v.a.folder, number); err != nil {
			v.problem(nil, err)
		}
	}
}

// bodies reads and checks all pieces of the log objects in the sample. It reads object by object, because an object
// has pieces of many groups. The groups' segments must have been read before.
func (v *verifier) bodies(ctx context.Context) {
	for _, number := range slices.Sorted(maps.Keys(v.a.logs.loaded)) {
		if ctx.Err() != nil {
			return
		}
		if o := v.a.logs.loaded[number]; v.picked(o.name, o.bytes) {
			if err := v.pieces(ctx, o); err != nil {
				v.problem(nil, err)
			}
		}
	}
}

// pieces reads the pieces of one log object in order.
func (v *verifier) pieces(ctx context.Context, o *logObject) error {
	c := &content{folder: v.a.folder, name: o.name, kind: object.KindLog, bytes: o.bytes, chunks: o.chunks}
	defer c.close()
	e := o.chunks.Envelope()
	for at, i := e.HeaderBytes, 0; i < len(o.header.Pieces); i++ {
		p := &o.header.Pieces[i]
		if p.Bytes == 0 {
			continue
		}
		src := c.part(ctx, at, at+p.Bytes)
		c.limit = e.ContentBytes
		w := v.walks[p.Group]
		if w != nil && o.number <= w.g.catalogue.Log {
			w = nil // these entries are also in segments, which have been checked already
		}
		if w != nil {
			w.next = max(w.next, p.After+1)
		}
		r := pieces.NewReader(src, pieces.Want{Store: v.a.folder.store, Range: p.Range, Bytes: p.Bytes})
		for r.Next() {
			v.count(r.Entry())
			if w == nil {
				continue
			}
			if err := w.entry(ctx, o.name, r.Entry()); err != nil {
				v.problem(w.g, err)
			}
		}
		if err := r.Err(); err != nil {
			return c.named(fmt.Errorf("piece of group %s (%s): %w", p.Name, p.Group, err))
		}
		at += p.Bytes
	}
	return nil
}

// groups checks each group by its catalogues and pieces.
func (v *verifier) groups(ctx context.Context) {
	ids := map[uuid.UUID]bool{}
	for name := range v.names {
		if id, _, ok := object.ParseCatalogueName(name); ok {
			ids[id] = true
		}
	}
	for _, o := range v.a.logs.loaded {
		for i := range o.header.Pieces {
			ids[o.header.Pieces[i].Group] = true
		}
	}
	all := slices.SortedFunc(maps.Keys(ids), func(a, b uuid.UUID) int { return strings.Compare(a.String(), b.String()) })
	v.report.Groups = len(all)
	var read []*Group
	for _, id := range all {
		if ctx.Err() != nil {
			return
		}
		g, err := v.a.Group(ctx, id)
		if err != nil {
			v.problem(nil, err)
			continue
		}
		v.group(ctx, g)
		read = append(read, g)
	}
	v.report.Covered = Covered(read)
}

func (v *verifier) count(e *format.Entry) {
	v.report.Entries++
	if e.Kind.IsVersion() {
		v.report.Records++
	}
}

// KindOf returns the kind of an object, given its name in the store's folder. It returns false if the name is not
// that of an object of an archive.
func KindOf(name string) (object.Kind, bool) {
	if name == object.ArchiveName {
		return object.KindArchive, true
	}
	if _, ok := object.ParseLogName(name); ok {
		return object.KindLog, true
	}
	if _, _, ok := object.ParseCatalogueName(name); ok {
		return object.KindCatalogue, true
	}
	if _, _, ok := object.ParseBaseName(name); ok {
		return object.KindBase, true
	}
	parts := strings.Split(name, "/")
	folder := parts[0]
	if len(parts) == 4 && folder == "g" {
		folder = parts[2]
	}
	kind, ok := map[string]object.Kind{"seg": object.KindSegment, "blob": object.KindBlob, "points": object.KindPoint,
		"use": object.KindUse, "drop": object.KindDrop, "drill": object.KindDrill}[folder]
	return kind, ok && (len(parts) == 4) == (kind == object.KindSegment || kind == object.KindBlob)
}
