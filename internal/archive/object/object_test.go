package object

import (
	"bytes"
	"encoding/binary"
	"encoding/hex"
	"encoding/json"
	"errors"
	"flag"
	"io"
	"math/rand/v2"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"testing"
	"testing/iotest"

	"github.com/google/uuid"
)

var update = flag.Bool("update", false, "write the golden files anew")

var (
	store = uuid.MustParse("11111111-2222-3333-4444-555555555555")
	group = uuid.MustParse("66666666-7777-8888-9999-aaaaaaaaaaaa")
	fixed = uuid.MustParse("bbbbbbbb-cccc-dddd-eeee-ffffffffffff")
)

func key(t testing.TB, fill byte) Key {
	k, err := NewKey(bytes.Repeat([]byte{fill}, KeyBytes))
	if err != nil {
		t.Fatal(err)
	}
	return k
}

// random returns n pseudorandom bytes, which are the same in each run.
func random(n int) []byte {
	b := make([]byte, n)
	source := rand.NewChaCha8([32]byte{1})
	_, _ = source.Read(b)
	return b
}

func encode(t testing.TB, spec Spec) []byte {
	t.Helper()
	e, err := newEncoder(spec, fixed)
	if err != nil {
		t.Fatal(err)
	}
	b, err := io.ReadAll(e)
	if err != nil {
		t.Fatal(err)
	}
	if int64(len(b)) != e.Bytes() {
		t.Fatalf("%d bytes, Bytes says %d", len(b), e.Bytes())
	}
	return b
}

func blob(body []byte, k Key) Spec {
	return Spec{
		Store: store, Header: &Blob{Group: group, Size: int64(len(body))},
		Body: bytes.NewReader(body), BodyBytes: int64(len(body)), Key: k,
	}
}

// read returns the body of an object.
func read(b []byte, kind Kind, keys Keys, to Header) ([]byte, error) {
	d, err := NewDecoder(bytes.NewReader(b), store, kind, keys)
	if err != nil {
		return nil, err
	}
	if err := d.Header(to); err != nil {
		return nil, err
	}
	return io.ReadAll(d)
}

func TestAnObjectIsReadBack(t *testing.T) {
	for _, k := range []Key{{}, key(t, 7)} {
		for _, n := range []int{0, 1, 100, ChunkBytes - 1, ChunkBytes, ChunkBytes + 1, 3*ChunkBytes + 5} {
			body := random(n)
			b := encode(t, blob(body, k))
			var h Blob
			got, err := read(b, KindBlob, Keys{key(t, 1), key(t, 7)}, &h)
			if err != nil || !bytes.Equal(got, body) || h.Group != group {
				t.Fatalf("%d bytes, key %t: %v, header %+v", n, !k.IsZero(), err, h)
			}
			e, err := Verify(iotest.OneByteReader(bytes.NewReader(b)), store, KindBlob)
			if err != nil || e.ObjectBytes() != int64(len(b)) {
				t.Fatalf("verify without a key: %v, %+v", err, e)
			}
			if n > 100 && !k.IsZero() && bytes.Contains(b, body[:100]) {
				t.Fatal("the body can be read in the encrypted object")
			}
		}
	}
}

// Every flipped bit in an object, every wrong length and every swap of two chunks is detected before a wrong byte is
// returned.
func TestNoChangeOfAnObjectPasses(t *testing.T) {
	for _, k := range []Key{{}, key(t, 7)} {
		body := random(300)
		whole := encode(t, blob(body, k))
		check := func(what string, b []byte) {
			t.Helper()
			var h Blob
			if got, err := read(b, KindBlob, Keys{k}, &h); err == nil || !refused(err) {
				t.Fatalf("%s: error %v", what, err)
			} else if !bytes.HasPrefix(body, got) {
				t.Fatalf("%s: wrong bytes were handed out", what)
			}
			if _, err := Verify(bytes.NewReader(b), store, KindBlob); !refused(err) {
				t.Fatalf("%s: verify: %v", what, err)
			}
		}
		for bit := range 8 * len(whole) {
			b := bytes.Clone(whole)
			b[bit/8] ^= 1 << (bit % 8)
			check("bit "+hex.EncodeToString(binary.BigEndian.AppendUint32(nil, uint32(bit))), b)
		}
		for n := range whole {
			check("cut", whole[:n])
		}
		check("longer", append(bytes.Clone(whole), 0))

		two := encode(t, blob(random(2*ChunkBytes), k)) // the header makes the content longer than two chunks
		each := int(ChunkBytes + CipherNone.checkBytes())
		if !k.IsZero() {
			each = int(ChunkBytes + CipherAES256GCM.checkBytes())
		}
		exchanged := bytes.Clone(two)
		copy(exchanged[EnvelopeBytes:], two[EnvelopeBytes+each:EnvelopeBytes+2*each])
		copy(exchanged[EnvelopeBytes+each:], two[EnvelopeBytes:EnvelopeBytes+each])
		if _, err := Verify(bytes.NewReader(exchanged), store, KindBlob); !errors.Is(err, ErrCorrupt) {
			t.Fatalf("exchanged chunks: %v", err)
		}
		foreign, err := newEncoder(blob(body, k), uuid.New())
		if err != nil {
			t.Fatal(err)
		}
		other, err := io.ReadAll(foreign)
		if err != nil {
			t.Fatal(err)
		}
		check("chunk of another object", append(bytes.Clone(whole[:EnvelopeBytes]), other[EnvelopeBytes:]...))
	}
}

func refused(err error) bool {
	return errors.Is(err, ErrCorrupt) || errors.Is(err, ErrVersion) || errors.Is(err, ErrForeign) || errors.Is(err, ErrKey)
}

// An object with a correct checksum is refused if it has another version, or belongs to another store or kind.
func TestIntactForeignObjectIsRefused(t *testing.T) {
	whole := encode(t, blob(nil, Key{}))
	sealed := func(change func(b []byte)) []byte {
		b := bytes.Clone(whole)
		change(b)
		binary.LittleEndian.PutUint32(b[12:], envelopeCRC(b))
		return b
	}
	for name, c := range map[string]struct {
		b    []byte
		want error
	}{
		"newer":              {sealed(func(b []byte) { b[8] = 2 }), ErrVersion},
		"version 0":          {sealed(func(b []byte) { b[8] = 0 }), ErrCorrupt},
		"no kind":            {sealed(func(b []byte) { b[48] = 0 }), ErrCorrupt},
		"unknown kind":       {sealed(func(b []byte) { b[48] = 11 }), ErrCorrupt},
		"another kind":       {sealed(func(b []byte) { b[48] = byte(KindLog) }), ErrForeign},
		"another store":      {sealed(func(b []byte) { b[16]++ }), ErrForeign},
		"unknown cipher":     {sealed(func(b []byte) { b[49] = 2 }), ErrCorrupt},
		"key without cipher": {sealed(func(b []byte) { b[72] = 1 }), ErrCorrupt},
		"unknown key":        {sealed(func(b []byte) { b[49], b[72] = 1, 1 }), ErrKey},
		"reserved":           {sealed(func(b []byte) { b[127] = 1 }), ErrCorrupt},
		"no header":          {sealed(func(b []byte) { b[64] = 0 }), ErrCorrupt},
		"header too long":    {sealed(func(b []byte) { b[70] = 1 }), ErrCorrupt},
		"content too long":   {sealed(func(b []byte) { b[63] = 0xff }), ErrCorrupt},
	} {
		if _, err := NewDecoder(bytes.NewReader(c.b), store, KindBlob, nil); !errors.Is(err, c.want) {
			t.Errorf("%s: error %v, want %v", name, err, c.want)
		}
	}
}

func TestBodyShorterThanDeclaredIsRefused(t *testing.T) {
	spec := blob(random(100), Key{})
	spec.BodyBytes, spec.Header = 101, &Blob{Group: group, Size: 101}
	e, err := NewEncoder(spec)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := io.ReadAll(e); !errors.Is(err, io.ErrUnexpectedEOF) {
		t.Fatalf("error %v", err)
	}
}

func TestBodyLongerThanDeclaredIsRefused(t *testing.T) {
	spec := blob(random(100), Key{})
	spec.BodyBytes, spec.Header = 99, &Blob{Group: group, Size: 99}
	e, err := NewEncoder(spec)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := io.ReadAll(e); err == nil || errors.Is(err, io.ErrUnexpectedEOF) {
		t.Fatalf("error %v", err)
	}
}

// A range can be read without the chunks before and after it.
func TestARange(t *testing.T) {
	for _, k := range []Key{{}, key(t, 7)} {
		body := random(3*ChunkBytes + 500)
		whole := encode(t, blob(body, k))
		e, err := DecodeEnvelope(whole)
		if err != nil {
			t.Fatal(err)
		}
		for _, r := range [][2]int64{{0, 1}, {5, 10}, {ChunkBytes - 1, 2}, {ChunkBytes, ChunkBytes},
			{ChunkBytes + 7, 2 * ChunkBytes}, {3 * ChunkBytes, 400}, {int64(len(body)) - 1, 1}, {int64(len(body)), 0}} {
			from := e.HeaderBytes + r[0]
			d, err := NewRangeDecoder(*e, Keys{k}, from, func(at int64) (io.Reader, error) {
				return bytes.NewReader(whole[at:e.EndOfRange(from+r[1])]), nil
			})
			if err != nil {
				t.Fatal(err)
			}
			got := make([]byte, r[1])
			if _, err := io.ReadFull(d, got); err != nil || !bytes.Equal(got, body[r[0]:r[0]+r[1]]) {
				t.Errorf("range %v: error %v", r, err)
			}
		}
		d, err := NewRangeDecoder(*e, Keys{k}, 2*ChunkBytes, func(at int64) (io.Reader, error) {
			return bytes.NewReader(whole[at-1:]), nil
		})
		if err == nil {
			_, err = io.ReadAll(d)
		}
		if !errors.Is(err, ErrCorrupt) {
			t.Errorf("bytes of another offset: error %v", err)
		}
	}
}

func TestAnErrorOfTheConnectionIsNotDamage(t *testing.T) {
	whole := encode(t, blob(random(100), Key{}))
	reset := errors.New("connection reset")
	for _, n := range []int{0, 50, 150, len(whole)} {
		src := io.MultiReader(bytes.NewReader(whole[:n]), iotest.ErrReader(reset))
		if _, err := Verify(src, store, KindBlob); !errors.Is(err, reset) || errors.Is(err, ErrCorrupt) {
			t.Errorf("after %d bytes: %v", n, err)
		}
	}
}

// headers returns a valid header of each kind, with the length of its body.
func headers() map[Kind]struct {
	header Header
	body   int64
} {
	r := Range{
		Group: group, Name: "quotes", First: 5, Last: 9, Floor: 3, FirstCommit: 1000, LastCommit: 2000, Records: 4,
	}
	type one = struct {
		header Header
		body   int64
	}
	return map[Kind]one{
		KindArchive: {&Archive{Store: "quotes", Created: 1000, Routing: "hash", Groups: 256, Lanes: 1}, 0},
		KindLog: {&Log{
			Writer: fixed, Epoch: 1, Previous: 7, Time: 3000, Pieces: []Piece{
				{Range: r, Bytes: 600, After: 4, Through: 9, ReadAt: 2500, Holes: []Hole{{From: 6, To: 7}}},
				{Range: Range{Group: store, Name: "old"}, Through: 2, ReadAt: 2500, Gone: true},
			},
		}, 600},
		KindSegment: {&Segment{Range: r, Made: MadeByRoll}, 600},
		KindBlob:    {&Blob{Group: group, Size: 600}, 600},
		KindCatalogue: {&Catalogue{
			Group: group, Name: "quotes", Through: 9, Floor: 3, Log: 2, Holes: []Hole{{From: 6, To: 7}},
			Segments: []SegmentRef{{First: 5, Last: 9, ID: "0123456789abcdef", Bytes: 1000}},
		}, 0},
		KindBase: {&Base{
			Group: group, Name: "quotes", Replaces: []SegmentRef{{First: 5, Last: 9, ID: "0123456789abcdef", Bytes: 1000}},
			Segments: []SegmentRef{{First: 6, Last: 8, ID: "fedcba9876543210", Bytes: 500}}, Floor: 8,
			Holes: []Hole{{From: 2, To: 4}}, Blobs: []uuid.UUID{fixed},
		}, 0},
		KindPoint: {&Point{
			Name: "before-1.2", Time: 1500, Created: 3000, Made: MadeByHand, Until: 9000,
			Groups: []PointGroup{{Group: group, Name: "quotes", Index: 6}}, Facts: []Fact{{Name: "RecordStore/q", YAML: "a: b"}},
		}, 0},
		KindUse:  {&Use{Created: 3000, Until: 4000, What: "restore"}, 0},
		KindDrop: {&Drop{Time: 3000, Objects: []string{"log/00/0000000000000000001"}}, 0},
		KindDrill: {&Drill{
			Time: 3000, Seconds: 12, Point: 1500, Result: DrillDiffers, Records: 4, Bytes: 600, Differing: 1,
			Groups: []DrillGroup{{
				Group: group, Name: "quotes", Index: 6, Result: DrillDiffers, Records: 4, Bytes: 600, Compared: 2, Changed: 1,
			}},
			Differences: []DrillDifference{{Group: group, Name: "quotes", ID: "-9223372036854775808", What: "it is not there"}},
		}, 0},
	}
}

// sealed returns an encrypted object of a kind that is never encrypted today.
func sealed(t *testing.T, file string) []byte {
	t.Helper()
	b, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// Golden files of every version are kept forever. They contain an object of each kind, both plain and encrypted.
func TestGoldenObjects(t *testing.T) {
	for kind, c := range headers() {
		for suffix, k := range map[string]Key{"": {}, "-encrypted": key(t, 7)} {
			body := random(int(c.body))
			b := encode(t, Spec{
				Store: store, Header: c.header, Body: bytes.NewReader(body), BodyBytes: c.body, Key: k,
			})
			file := filepath.Join("testdata", "v1", kind.String()+suffix)
			if !k.IsZero() && kind.IsPlain() {
				// No program writes such an object, and every reader accepts it.
				b = sealed(t, file)
			}
			if *update {
				if err := os.WriteFile(file, b, 0o644); err != nil {
					t.Fatal(err)
				}
			}
			golden, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			if !bytes.Equal(golden, b) {
				t.Errorf("%s differs from what is written today", file)
			}
			to := reflect.New(reflect.TypeOf(c.header).Elem()).Interface().(Header)
			got, err := read(golden, kind, Keys{k}, to)
			if err != nil || !bytes.Equal(got, body) || !reflect.DeepEqual(to, c.header) {
				t.Errorf("%s: %v, header %+v", file, err, to)
			}
		}
	}
}

func TestInconsistentHeadersAreRefused(t *testing.T) {
	piece := func(change func(*Log)) *Log {
		l := *headers()[KindLog].header.(*Log)
		l.Pieces = append([]Piece(nil), l.Pieces...)
		change(&l)
		return &l
	}
	segment := func(change func(*Segment)) *Segment {
		s := *headers()[KindSegment].header.(*Segment)
		change(&s)
		return &s
	}
	catalogue := func(change func(*Catalogue)) *Catalogue {
		c := *headers()[KindCatalogue].header.(*Catalogue)
		c.Segments = append([]SegmentRef(nil), c.Segments...)
		change(&c)
		return &c
	}
	base := func(change func(*Base)) *Base {
		b := *headers()[KindBase].header.(*Base)
		change(&b)
		return &b
	}
	point := func(change func(*Point)) *Point {
		p := *headers()[KindPoint].header.(*Point)
		change(&p)
		return &p
	}
	drill := func(change func(*Drill)) *Drill {
		d := *headers()[KindDrill].header.(*Drill)
		change(&d)
		return &d
	}
	for name, c := range map[string]struct {
		header Header
		body   int64
	}{
		"base with a body":           {base(func(*Base) {}), 1},
		"base that replaces nothing": {base(func(b *Base) { b.Replaces = nil }), 0},
		"base beyond what it replaces": {base(func(b *Base) {
			b.Segments = []SegmentRef{{First: 6, Last: 10, ID: "fedcba9876543210"}}
		}), 0},
		"base with a bad segment":   {base(func(b *Base) { b.Segments = []SegmentRef{{First: 6, Last: 8, ID: "x"}} }), 0},
		"base with a bad hole":      {base(func(b *Base) { b.Holes = []Hole{{From: 2, To: 1}} }), 0},
		"base with an absurd floor": {base(func(b *Base) { b.Floor = 1 << 63 }), 0},
		"point with a body":         {point(func(*Point) {}), 1},
		"point with a bad name":     {point(func(p *Point) { p.Name = "a/b" }), 0},
		"point without a time":      {point(func(p *Point) { p.Time = 0 }), 0},
		"point made by nobody":      {point(func(p *Point) { p.Made = "" }), 0},
		"point with an absurd index": {point(func(p *Point) {
			p.Groups = []PointGroup{{Group: group, Index: 1 << 63}}
		}), 0},
		"point with a group twice": {point(func(p *Point) {
			p.Groups = []PointGroup{{Group: group, Index: 1}, {Group: group, Index: 2}}
		}), 0},
		"use with a body":       {&Use{}, 1},
		"use that never ends":   {&Use{Created: 1, Until: 2 + int64(UseMax)}, 0},
		"use before time began": {&Use{Created: -1}, 0},
		"drop with a body":      {&Drop{}, 1},
		"drop before its time":  {&Drop{Time: -1}, 0},
		"drop that is too long": {&Drop{Objects: make([]string, DropObjectsMax+1)}, 0},

		"two lanes":                {&Archive{Routing: "named", Lanes: 2}, 0},
		"no routing":               {&Archive{Lanes: 1}, 0},
		"hash without groups":      {&Archive{Routing: "hash", Lanes: 1}, 0},
		"named with groups":        {&Archive{Routing: "named", Groups: 1, Lanes: 1}, 0},
		"archive with a body":      {&Archive{Routing: "named", Lanes: 1}, 1},
		"negative time":            {&Archive{Routing: "named", Lanes: 1, Created: -1}, 0},
		"pieces longer than body":  {piece(func(*Log) {}), 599},
		"pieces shorter than body": {piece(func(*Log) {}), 601},
		"bytes that overflow": {piece(func(l *Log) {
			l.Pieces[1].Bytes, l.Pieces[1].Last, l.Pieces[1].Through = 1<<62, 1, 1
		}), 600},
		"negative bytes":         {piece(func(l *Log) { l.Pieces[1].Bytes, l.Pieces[1].Last = -1, 1 }), 599},
		"entries without bytes":  {piece(func(l *Log) { l.Pieces[1].Last = 1 }), 600},
		"bytes without entries":  {piece(func(l *Log) { l.Pieces[0].First, l.Pieces[0].Last = 0, 0 }), 600},
		"last above through":     {piece(func(l *Log) { l.Pieces[0].Through = 8 }), 600},
		"first at after":         {piece(func(l *Log) { l.Pieces[0].After = 5 }), 600},
		"after above through":    {piece(func(l *Log) { l.Pieces[1].After = 3 }), 600},
		"after too large":        {piece(func(l *Log) { l.Pieces[1].After = 1 << 63 }), 600},
		"first above last":       {piece(func(l *Log) { l.Pieces[0].First = 10 }), 600},
		"commit times fall":      {piece(func(l *Log) { l.Pieces[0].FirstCommit = 2001 }), 600},
		"one group twice":        {piece(func(l *Log) { l.Pieces[1].Group = group }), 600},
		"index too large":        {piece(func(l *Log) { l.Pieces[0].Through = 1<<62 + 1 }), 600},
		"index beyond int64":     {piece(func(l *Log) { l.Pieces[0].Through = 1 << 63 }), 600},
		"hole upside down":       {piece(func(l *Log) { l.Pieces[0].Holes = []Hole{{From: 2, To: 1}} }), 600},
		"epoch too large":        {piece(func(l *Log) { l.Epoch = 1<<62 + 1 }), 600},
		"segment without a body": {segment(func(*Segment) {}), 0},
		"segment made by nobody": {segment(func(s *Segment) { s.Made = "" }), 600},
		"blob of another size":   {&Blob{Size: 5}, 6},
		"catalogue with a body":  {catalogue(func(*Catalogue) {}), 1},
		"segments out of order": {catalogue(func(c *Catalogue) {
			c.Segments = append(c.Segments, SegmentRef{First: 1, Last: 2, ID: "0123456789abcdef"})
		}), 0},
		"segment id in upper case":  {catalogue(func(c *Catalogue) { c.Segments[0].ID = "0123456789ABCDEF" }), 0},
		"segment id that is short":  {catalogue(func(c *Catalogue) { c.Segments[0].ID = "0123" }), 0},
		"catalogue with a bad hole": {catalogue(func(c *Catalogue) { c.Holes = []Hole{{From: 2, To: 1}} }), 0},
		"drill with a body":         {drill(func(*Drill) {}), 1},
		"drill without a result":    {drill(func(d *Drill) { d.Result = "fine" }), 0},
		"drill that hides a result": {drill(func(d *Drill) { d.Groups[0].Result = "" }), 0},
		"drill with a negative sum": {drill(func(d *Drill) { d.Records = -1 }), 0},
		"proof with a difference":   {drill(func(d *Drill) { d.Result = DrillProven }), 0},
		"proof of one group twice":  {drill(func(d *Drill) { d.Groups = append(d.Groups, d.Groups[0]) }), 0},
		"difference without words":  {drill(func(d *Drill) { d.Differences[0].What = "" }), 0},
		"differences without end": {drill(func(d *Drill) {
			d.Differences = slices.Repeat(d.Differences, DrillDifferencesMax+1)
		}), 0},
	} {
		if _, err := NewEncoder(Spec{Store: store, Header: c.header, BodyBytes: c.body}); err == nil {
			t.Errorf("%s passes", name)
		}
	}
	for kind, c := range headers() {
		if err := c.header.check(c.body); err != nil {
			t.Errorf("the good header of a %s: %v", kind, err)
		}
	}
}

// raw is a header as a faulty program might write it.
type raw struct{ json.RawMessage }

func (raw) kind() Kind        { return KindBlob }
func (raw) check(int64) error { return nil }

func TestAHeaderThatIsNotJSONIsDamage(t *testing.T) {
	for _, header := range []string{`[]`, `{"size":1.5}`, `{"size":1e99}`, `{"group":"x"}`} {
		b := encode(t, Spec{Store: store, Header: raw{json.RawMessage(header)}})
		if _, err := read(b, KindBlob, nil, &Blob{}); !errors.Is(err, ErrCorrupt) {
			t.Errorf("%s: error %v", header, err)
		}
	}
}

func TestNames(t *testing.T) {
	id, err := ParseSegmentID("0123456789abcdef")
	if err != nil {
		t.Fatal(err)
	}
	for got, want := range map[string]string{
		LogName(42):      "log/00/0000000000000000042",
		LogName(1 << 62): "log/00/4611686018427387904",
		SegmentName(group, 1, 1<<62, id): "g/66666666-7777-8888-9999-aaaaaaaaaaaa/seg/" +
			"0000000000000000001-4611686018427387904-0123456789abcdef",
		BlobName(group, fixed):  "g/66666666-7777-8888-9999-aaaaaaaaaaaa/blob/bbbbbbbb-cccc-dddd-eeee-ffffffffffff",
		CatalogueName(group, 7): "g/66666666-7777-8888-9999-aaaaaaaaaaaa/cat/0000000000000000007",
	} {
		if got != want {
			t.Errorf("%s, want %s", got, want)
		}
	}
	if n, ok := ParseLogName(LogName(42)); n != 42 || !ok {
		t.Error("the name of a log object is not parsed")
	}
	if n, ok := ParseDrillName(DrillName(42)); n != 42 || !ok {
		t.Error("the name of a drill is not parsed")
	}
	for _, name := range []string{"", "drill/", "drill/42", "drill/4611686018427387905", "drop/0000000000000000042"} {
		if _, ok := ParseDrillName(name); ok {
			t.Errorf("%q is taken for a drill", name)
		}
	}
	if g, n, ok := ParseCatalogueName(CatalogueName(group, 7)); g != group || n != 7 || !ok {
		t.Error("the name of a catalogue is not parsed")
	}
	for _, name := range []string{"", "log/00/", "log/00/42", "log/01/0000000000000000042", "log/00/00000000000000000042",
		"log/00/000000000000000004x", "log/00/-000000000000000042", "log/00/0000000000000000042/"} {
		if _, ok := ParseLogName(name); ok {
			t.Errorf("%q is taken for a log object", name)
		}
	}
	for _, name := range []string{"", "g/x/cat/0000000000000000007",
		"g/66666666-7777-8888-9999-AAAAAAAAAAAA/cat/0000000000000000007",
		"g/66666666-7777-8888-9999-aaaaaaaaaaaa/seg/0000000000000000007", "g/66666666-7777-8888-9999-aaaaaaaaaaaa/cat/7"} {
		if _, _, ok := ParseCatalogueName(name); ok {
			t.Errorf("%q is taken for a catalogue", name)
		}
	}
}

func FuzzDecoder(f *testing.F) {
	for _, c := range headers() {
		for _, k := range []Key{{}, key(f, 7)} {
			f.Add(encode(f, Spec{
				Store: store, Header: c.header, Body: bytes.NewReader(random(int(c.body))), BodyBytes: c.body, Key: k,
			}))
		}
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		if len(b) >= EnvelopeBytes { // correct the CRC so that the fuzzed object passes the first check
			b = bytes.Clone(b)
			copy(b[16:32], store[:])
			binary.LittleEndian.PutUint32(b[12:], envelopeCRC(b))
		}
		for kind, c := range headers() {
			to := reflect.New(reflect.TypeOf(c.header).Elem()).Interface().(Header)
			if _, err := read(b, kind, Keys{key(t, 7)}, to); err != nil && !refused(err) {
				t.Fatalf("error %v", err)
			}
		}
	})
}

// Chunks can be opened in any order, as needed by a reader of ranges. A chunk from another position or of another
// length is refused.
func TestChunksOpenInAnyOrder(t *testing.T) {
	for _, k := range []Key{{}, key(t, 7)} {
		body := random(2*ChunkBytes + 77)
		b := encode(t, blob(body, k))
		c, err := NewChunks(b, store, KindBlob, Keys{k})
		if err != nil {
			t.Fatal(err)
		}
		e := c.Envelope()
		content := make([]byte, e.ContentBytes)
		for _, number := range []int64{2, 0, 1} {
			offset, length := c.Place(number)
			if _, err := c.Open(bytes.Clone(b[offset:offset+length-1]), number); !errors.Is(err, ErrCorrupt) {
				t.Fatalf("a shorter chunk: %v", err)
			}
			if _, err := c.Open(bytes.Clone(b[offset:offset+length]), number^1); !errors.Is(err, ErrCorrupt) {
				t.Fatalf("a chunk of another place: %v", err)
			}
			data, err := c.Open(bytes.Clone(b[offset:offset+length]), number)
			if err != nil {
				t.Fatal(err)
			}
			copy(content[number*ChunkBytes:], data)
		}
		var h Blob
		if err := c.Header(content[:e.HeaderBytes], &h); err != nil || h.Size != int64(len(body)) {
			t.Fatalf("header %+v, %v", h, err)
		}
		if !bytes.Equal(content[e.HeaderBytes:], body) {
			t.Fatal("another body")
		}
		if _, length := c.Place(3); length != 0 {
			t.Fatalf("a chunk behind the end has %d bytes", length)
		}
	}
}
