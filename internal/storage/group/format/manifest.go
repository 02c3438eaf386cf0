package format

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"path"
	"slices"
	"unicode/utf8"

	"go.etcd.io/raft/v3/raftpb"

	"sheaf.dev/sheaf/internal/storage/vfs"
)

// The manifest file consists of two copies, each of which is half of the file. A copy has this layout:
//
//	0       8         12    16      24         32             64                                          112
//	├ magic ┼ version ┼ CRC ┼ length┼ sequence ┼ store, group ┼ compacted through, term, tombstone floor, ┼
//	                                             conf index, accepted through, next segment (8 each)
//	112          152              168                                  176             176 or 184
//	├ hard state ┼ counts of ids  ┼ flags, name length, segment count  ┼ history floor ┼ ids ┼ segments ┼ name ┼ zeros ┤
//
// Only version 2 has the history floor.
const (
	ManifestMagic        = "SHEAFMAN"
	manifestFixedBytes   = 176
	manifestHistoryBytes = 8
	manifestSegmentBytes = 40
	// manifestVersionHistory is the version of manifests that have a history floor. An older version of Sheaf reports
	// that it cannot read such a manifest, because it is too new. A manifest without a history floor has FormatVersion.
	manifestVersionHistory = 2
	// ManifestBytesMax is the greatest size of a manifest file. It is more than 2^20 segments need, and limits the
	// memory needed to read the file.
	ManifestBytesMax = 256 << 20
	nameBytesMax     = 253
)

// Manifest lists a group's live segments and its floors. A file of the group that the manifest does not list is
// garbage. The manifest is stored twice in its file. Each copy has a separate CRC and separate 4 KiB blocks, so that
// one bad sector loses nothing.
type Manifest struct {
	Identity         Identity
	Sequence         uint64            // grows with each write of the manifest
	Segments         []ManifestSegment // in log order; the last one is active
	CompactedThrough uint64            // Raft's log begins after this index
	CompactedTerm    uint64
	TombstoneFloor   uint64 // tombstones at or below this index may be dropped
	Conf             *raftpb.ConfState
	ConfIndex        uint64
	HardState        StateRecord // hard state at the time when this manifest was written
	AcceptedThrough  uint64      // damage at or below this index was accepted as a loss
	NextSegment      uint64      // number that the next new segment gets
	// HistoryFloor is the lowest index for which the state of all records as of that index can still be read. For this
	// index and each higher one, every record's newest version at or below the index is still stored. It is 0 unless
	// HistoryKnown is set.
	HistoryFloor uint64
	HistoryKnown bool // whether the manifest has version 2, which includes HistoryFloor
}

// LossEnd returns the index up to which entries are missing because a loss was accepted, or 0 if none was. The log goes
// on behind it. A reader of another copy may have read lost entries above AcceptedThrough, if that copy had more of
// them.
func (m *Manifest) LossEnd() uint64 {
	if m.AcceptedThrough == 0 {
		return 0
	}
	return m.AcceptedThrough + LossJump
}

// Version returns the format version with which the manifest is stored.
func (m *Manifest) Version() uint32 {
	if m.HistoryKnown {
		return manifestVersionHistory
	}
	return FormatVersion
}

// ManifestSegment is one segment in the manifest.
type ManifestSegment struct {
	Number     uint64 // number in the names of its files (SegmentName, HintName)
	ID         SegmentID
	FirstIndex uint64
	// LastIndex is the index of the last entry that this sealed segment ever held. It is FirstIndex - 1 if the segment
	// never held an entry, and 0 for the active segment.
	LastIndex uint64
	Bytes     int64 // size of a sealed segment's file; 0 for the active segment
}

// Sealed reports whether the segment is sealed, and therefore never changes.
func (s ManifestSegment) Sealed() bool { return s.Bytes != 0 }

// ReadManifest reads the manifest of a group's folder. It ignores a damaged copy if the other one is valid, because the
// next write repairs the copy and VerifyDir reports it. It returns fs.ErrNotExist, ErrCorrupt, ErrFormatVersion, or an
// error from reading the file.
func ReadManifest(fs vfs.FS, dir string) (*Manifest, error) {
	b, err := ReadAll(fs, path.Join(dir, ManifestName), ManifestBytesMax)
	if err != nil {
		return nil, err
	}
	m, _, err := DecodeManifest(b)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", path.Join(dir, ManifestName), err)
	}
	return m, nil
}

// WriteManifest writes a new file, syncs and renames it, and syncs the folder. If the manifest's content is invalid,
// WriteManifest returns an error and writes nothing. After any other error, either the old or the new manifest is in
// place.
func WriteManifest(fs vfs.FS, dir string, m *Manifest) error {
	b, err := m.Encode()
	if err != nil {
		return fmt.Errorf("%s: %w", path.Join(dir, ManifestName), err)
	}
	return WriteReplace(fs, dir, ManifestName, b)
}

// Encode returns the content of the manifest file with both copies.
func (m *Manifest) Encode() ([]byte, error) {
	if err := m.check(); err != nil {
		return nil, err
	}
	conf := m.Conf
	lists := [4][]uint64{conf.GetVoters(), conf.GetLearners(), conf.GetVotersOutgoing(), conf.GetLearnersNext()}
	le := binary.LittleEndian
	b := make([]byte, manifestFixedBytes, BlockBytes)
	le.PutUint64(b[24:], m.Sequence)
	copy(b[32:], m.Identity.Store[:])
	copy(b[48:], m.Identity.Group[:])
	for i, v := range []uint64{m.CompactedThrough, m.CompactedTerm, m.TombstoneFloor, m.ConfIndex, m.AcceptedThrough,
		m.NextSegment} {
		le.PutUint64(b[64+8*i:], v)
	}
	copy(b[112:], m.HardState.Encode())
	for i, ids := range lists {
		le.PutUint32(b[152+4*i:], uint32(len(ids)))
	}
	b[168] = boolByte(conf != nil)
	b[169] = boolByte(conf.GetAutoLeave())
	le.PutUint16(b[170:], uint16(len(m.Identity.Name)))
	le.PutUint32(b[172:], uint32(len(m.Segments)))
	if m.HistoryKnown {
		b = le.AppendUint64(b, m.HistoryFloor)
	}
	for _, ids := range lists {
		for _, id := range ids {
			b = le.AppendUint64(b, id)
		}
	}
	for _, s := range m.Segments {
		b = le.AppendUint64(b, s.Number)
		b = append(b, s.ID[:]...)
		b = le.AppendUint64(b, s.FirstIndex)
		b = le.AppendUint64(b, s.LastIndex)
		b = le.AppendUint64(b, uint64(s.Bytes))
	}
	b = append(b, m.Identity.Name...)
	le.PutUint64(b[16:], uint64(len(b)))
	putHeadOf(b, ManifestMagic, m.Version())
	half := (len(b) + BlockBytes - 1) / BlockBytes * BlockBytes
	file := make([]byte, 2*half)
	copy(file, b)
	copy(file[half:], b)
	if len(file) > ManifestBytesMax {
		return nil, fmt.Errorf("manifest of %d bytes is above the limit of %d", len(file), ManifestBytesMax)
	}
	return file, nil
}

// DecodeManifest is the inverse of Encode. It returns the newer of the valid copies. The result bad says why each copy
// is invalid. Both of its elements are nil if the file is intact.
func DecodeManifest(file []byte) (m *Manifest, bad [2]error, err error) {
	half := len(file) / 2
	var copies [2]*Manifest
	for i, b := range [2][]byte{file[:half], file[half:]} {
		copies[i], bad[i] = decodeManifestCopy(b)
	}
	if copies[0] == nil {
		// Because each copy contains its own length, the first copy can be read even if the end of the file is missing.
		if m, err := decodeManifestCopy(file); err == nil {
			copies[0], bad[0] = m, fmt.Errorf("%w: half of the file is missing", ErrCorrupt)
		}
	}
	switch {
	case copies[0] == nil && copies[1] == nil:
		return nil, bad, fmt.Errorf("no copy of the manifest can be used: %w; %w", bad[0], bad[1])
	case copies[0] == nil:
		return copies[1], bad, nil
	case copies[1] == nil || bytes.Equal(file[:half], file[half:]):
		return copies[0], bad, nil
	}
	older := 1
	if copies[1].Sequence > copies[0].Sequence {
		older = 0
	}
	bad[older] = fmt.Errorf("%w: copy is not the same as the other", ErrCorrupt)
	return copies[1-older], bad, nil
}

func decodeManifestCopy(b []byte) (*Manifest, error) {
	if len(b) < manifestFixedBytes {
		return nil, fmt.Errorf("%w: %d bytes are too few", ErrCorrupt, len(b))
	}
	le := binary.LittleEndian
	length := le.Uint64(b[16:])
	if length < manifestFixedBytes || length > uint64(len(b)) {
		return nil, fmt.Errorf("%w: length %d does not fit", ErrCorrupt, length)
	}
	version, err := checkHeadOf(b[:length], ManifestMagic, manifestVersionHistory)
	if err != nil {
		return nil, err
	}
	if uint64(len(b))-length >= BlockBytes || len(b)%BlockBytes != 0 || !IsZero(b[length:]) {
		return nil, fmt.Errorf("%w: padding", ErrCorrupt)
	}
	return decodeManifestFields(b[:length], version)
}

func decodeManifestFields(b []byte, version uint32) (*Manifest, error) {
	le := binary.LittleEndian
	fixed := manifestFixedBytes
	if version >= manifestVersionHistory {
		fixed += manifestHistoryBytes
	}
	var ids int64
	for i := range 4 {
		ids += int64(le.Uint32(b[152+4*i:]))
	}
	segments, nameBytes := int64(le.Uint32(b[172:])), int64(le.Uint16(b[170:]))
	if int64(len(b)) != int64(fixed)+8*ids+manifestSegmentBytes*segments+nameBytes {
		return nil, fmt.Errorf("%w: counts do not fit the length", ErrCorrupt)
	}
	if b[168] > 1 || b[169] > b[168] || ids > 0 && b[168] == 0 {
		return nil, fmt.Errorf("%w: membership", ErrCorrupt)
	}
	hardState, err := DecodeStateRecord(b[112:152])
	if err != nil {
		return nil, err
	}
	m := &Manifest{
		Sequence: le.Uint64(b[24:]), CompactedThrough: le.Uint64(b[64:]), CompactedTerm: le.Uint64(b[72:]),
		TombstoneFloor: le.Uint64(b[80:]), ConfIndex: le.Uint64(b[88:]), AcceptedThrough: le.Uint64(b[96:]),
		NextSegment: le.Uint64(b[104:]), HardState: hardState,
	}
	copy(m.Identity.Store[:], b[32:])
	copy(m.Identity.Group[:], b[48:])
	if m.HistoryKnown = fixed > manifestFixedBytes; m.HistoryKnown {
		m.HistoryFloor = le.Uint64(b[manifestFixedBytes:])
	}
	rest := b[fixed:]
	if b[168] == 1 {
		autoLeave := b[169] == 1
		m.Conf = &raftpb.ConfState{AutoLeave: &autoLeave}
		for i, list := range []*[]uint64{&m.Conf.Voters, &m.Conf.Learners, &m.Conf.VotersOutgoing, &m.Conf.LearnersNext} {
			for range le.Uint32(b[152+4*i:]) {
				*list = append(*list, le.Uint64(rest))
				rest = rest[8:]
			}
		}
	}
	m.Segments = make([]ManifestSegment, segments)
	for i := range m.Segments {
		s := &m.Segments[i]
		s.Number, s.FirstIndex, s.LastIndex = le.Uint64(rest), le.Uint64(rest[16:]), le.Uint64(rest[24:])
		s.Bytes = int64(le.Uint64(rest[32:]))
		copy(s.ID[:], rest[8:])
		rest = rest[manifestSegmentBytes:]
	}
	m.Identity.Name = string(rest)
	if err := m.check(); err != nil {
		return nil, err
	}
	return m, nil
}

// check validates the content of the fields.
func (m *Manifest) check() error {
	if n := len(m.Identity.Name); n < 1 || n > nameBytesMax || !utf8.ValidString(m.Identity.Name) {
		return fmt.Errorf("%w: manifest: name of the group is not 1 to 253 bytes of UTF-8", ErrCorrupt)
	}
	if m.HardState.SyncedOffset < 0 {
		return fmt.Errorf("%w: manifest: synced offset is negative", ErrCorrupt)
	}
	if n := max(m.Sequence, m.CompactedThrough, m.CompactedTerm, m.TombstoneFloor, m.ConfIndex, m.AcceptedThrough,
		m.NextSegment, m.HistoryFloor, m.HardState.Term, m.HardState.Commit, m.HardState.SyncedIndex); n > NumberMax {
		return fmt.Errorf("%w: manifest: sequence, index, term or number %d", ErrCorrupt, n)
	}
	if m.HistoryFloor != 0 && !m.HistoryKnown {
		return fmt.Errorf("%w: manifest: history floor %d in a manifest without one", ErrCorrupt, m.HistoryFloor)
	}
	numbers := make(map[uint64]bool, len(m.Segments))
	segmentIDs := make(map[SegmentID]bool, len(m.Segments))
	last := uint64(0)
	for i, s := range m.Segments {
		why := ""
		switch {
		case s.Number >= m.NextSegment:
			why = "number is not below the next one"
		case numbers[s.Number]:
			why = "number is used twice"
		case segmentIDs[s.ID]:
			why = "id is used twice"
		case max(s.FirstIndex, s.LastIndex) > NumberMax:
			why = "first or last index is impossible"
		case s.FirstIndex == 0:
			why = "first index is zero"
		case s.FirstIndex < last:
			why = "first index is below that of the segment before it"
		case !s.Sealed() && (i != len(m.Segments)-1 || s.LastIndex != 0):
			why = "it is active, but not the last or with a last index"
		case s.Sealed() && (s.Bytes < SegmentHeaderBytes || s.LastIndex < s.FirstIndex-1):
			why = "size or last index is impossible"
		}
		if why != "" {
			return fmt.Errorf("%w: manifest: segment %d: %s", ErrCorrupt, s.Number, why)
		}
		numbers[s.Number], segmentIDs[s.ID], last = true, true, s.FirstIndex
	}
	return nil
}

func boolByte(b bool) byte {
	if b {
		return 1
	}
	return 0
}

// CheckIdentity returns ErrForeign if the identity in a file differs from the wanted one. If the wanted name is empty,
// any name is accepted.
func CheckIdentity(is, want Identity) error {
	switch {
	case is.Store != want.Store:
		return fmt.Errorf("%w: store is %s, not %s", ErrForeign, is.Store, want.Store)
	case is.Group != want.Group:
		return fmt.Errorf("%w: group is %s, not %s", ErrForeign, is.Group, want.Group)
	case want.Name != "" && is.Name != want.Name:
		return fmt.Errorf("%w: group is named %q, not %q", ErrForeign, is.Name, want.Name)
	}
	return nil
}

// MayBeTruncated reports whether a new leader may ever have truncated the log. A truncation is impossible while the
// group has always had a single voter.
func (m *Manifest) MayBeTruncated() bool { return m.ConfIndex > 0 || len(VotersOf(m.Conf)) > 1 }

// VotersOf returns the ids of all voters, including the outgoing ones in a joint membership.
func VotersOf(conf *raftpb.ConfState) map[uint64]bool {
	ids := make(map[uint64]bool)
	for _, id := range slices.Concat(conf.GetVoters(), conf.GetVotersOutgoing()) {
		ids[id] = true
	}
	return ids
}

// ActiveSegment returns the last segment. It returns false if that segment is sealed, or if there is no segment.
func (m *Manifest) ActiveSegment() (ManifestSegment, bool) {
	n := len(m.Segments)
	if n == 0 || m.Segments[n-1].Sealed() {
		return ManifestSegment{}, false
	}
	return m.Segments[n-1], true
}

// EndedID is a Raft id that no replica has, because ids of replicas are odd (NewRaftID). A membership with this learner
// means that the group has ended, so that no leader accepts a write (ADR 53). Such a membership is committed and stored
// like any other. It is in the manifest of each copy, and in the files that a new copy receives.
const EndedID uint64 = 0x73686561_665f656e

// IsEnded reports whether a membership says that its group has ended.
func IsEnded(conf *raftpb.ConfState) bool {
	return slices.Contains(conf.GetLearners(), EndedID) || slices.Contains(conf.GetLearnersNext(), EndedID)
}

// LearnersOf returns the replicas in a membership that have no vote, including those that lose their vote with the
// change in progress. EndedID is not a replica, and is left out.
func LearnersOf(conf *raftpb.ConfState) []uint64 {
	return slices.DeleteFunc(slices.Concat(conf.GetLearners(), conf.GetLearnersNext()), func(id uint64) bool {
		return id == EndedID
	})
}
