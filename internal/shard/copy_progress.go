package shard

import (
	"slices"

	"sheaf.dev/sheaf/client/recordv1"
	"sheaf.dev/sheaf/internal/consensus/peer"
	"sheaf.dev/sheaf/internal/placement"
	"sheaf.dev/sheaf/internal/shard/member"
	"sheaf.dev/sheaf/internal/shard/replicas"
	"sheaf.dev/sheaf/internal/storage/group/transfer"
)

// countedFile counts the bytes written to a file that is being received.
type countedFile struct {
	peer.SinkFile
	copying *replicas.Copying
}

func (f countedFile) Write(b []byte) (int, error) {
	n, err := f.SinkFile.Write(b)
	f.copying.Add(int64(n))
	return n, err
}

// haveBytes returns how many bytes are present while the given files are missing. Blobs are known only after all
// segments are present.
func haveBytes(missing []transfer.File, segments, total int64) (have int64) {
	have = total
	if slices.ContainsFunc(missing, func(f transfer.File) bool { return f.Kind == transfer.SegmentFile }) {
		have = segments
	}
	for _, f := range missing {
		have -= f.Bytes - f.Have
	}
	return max(0, have)
}

// copyTo describes the progress of copying a replica to the named shard; nil if it is complete.
func copyTo(shard string, g *replicas.Replica, phase member.Phase) *recordv1.Copy {
	p := &recordv1.Copy{Shard: shard}
	if c := g.Copying(); c != nil {
		c.Describe(p)
		return p
	}
	if phase == member.Joining {
		p.Phase = recordv1.CopyPhase_COPY_PHASE_WAITING
		return p
	}
	return nil
}

// copies describes the copies that are being created on this shard, sorted by group.
func (s *Shard) copies() []*recordv1.Move {
	var out []*recordv1.Move
	add := func(group string, c *recordv1.Copy) {
		out = append(out, &recordv1.Move{
			Group: group, To: []string{s.cfg.Name}, Running: true, Bytes: c.GetBytesTotal(), BytesDone: c.GetBytesDone(),
			BytesPerSecond: c.GetBytesPerSecond(), EtaSeconds: c.EtaSeconds, Phase: phaseOf(c.GetPhase()),
			Copies: []*recordv1.Copy{c},
		})
	}
	for _, g := range s.replicas.All() {
		known := g.State()
		if known.Name == "" {
			continue
		}
		if c := copyTo(s.cfg.Name, g, known.Phase); c != nil {
			add(known.Name, c)
		} else if sv := g.Served(); sv != nil && sv.Replica().Status().Learner {
			bytes := sv.Log().Stats().StoredBytes
			add(known.Name, &recordv1.Copy{Shard: s.cfg.Name, Phase: recordv1.CopyPhase_COPY_PHASE_ENTRIES, BytesTotal: bytes,
				BytesDone: bytes})
		}
	}
	slices.SortFunc(out, func(a, b *recordv1.Move) int { return placement.CompareGroups(a.GetGroup(), b.GetGroup()) })
	return out
}

// phaseOf returns the phase of a move with a single copy in the given phase.
func phaseOf(p recordv1.CopyPhase) recordv1.MovePhase {
	switch p {
	case recordv1.CopyPhase_COPY_PHASE_WAITING:
		return recordv1.MovePhase_MOVE_PHASE_WAITING
	case recordv1.CopyPhase_COPY_PHASE_FILES:
		return recordv1.MovePhase_MOVE_PHASE_COPYING
	case recordv1.CopyPhase_COPY_PHASE_ENTRIES:
		return recordv1.MovePhase_MOVE_PHASE_CATCHING_UP
	default:
		return recordv1.MovePhase_MOVE_PHASE_SWITCHING
	}
}
