package status

import (
	"time"

	"sheaf.dev/sheaf/client/recordv1"
)

// Row returns the status as a row of AdminService.
func (st Shard) Row() *recordv1.Shard {
	p := &recordv1.Shard{
		Name: st.Name, Address: st.Address, Alive: true, VolumeUuid: st.VolumeUUID, Generation: st.Generation,
		Path: st.Path, FileSystem: st.FileSystem, MountOptions: st.MountOptions, Source: st.Source,
		Rotational: st.Rotational, CapacityBytes: st.CapacityBytes, FreeBytes: st.FreeBytes,
		ReserveBytes: st.ReserveBytes, MemoryNeedBytes: st.MemoryNeedBytes, MemoryLimitBytes: st.MemoryLimitBytes,
		Residency: st.Residency, Groups: int32(len(st.Groups)), Load: st.Load.Row(), Version: st.Version,
		State: st.state, Message: st.Message, WantedFileSystem: st.WantedFileSystem,
		WantedMountOptions: st.WantedMountOptions,
		StoreUuid:          st.StoreUUID, WantedStoreUuid: st.WantedStoreUUID, WantedVolumeUuid: st.WantedVolumeUUID,
		VolumeShard: st.VolumeShard,
		Node:        st.Node, Zone: st.Zone, Domain: st.Domain, Medium: st.Medium, MemoryUsedBytes: st.MemoryUsedBytes,
		Problems:     st.Problems,
		VolumeSilent: st.VolumeSilent,
	}
	if slow := st.Slow.Syncs; len(slow) > 0 {
		newest := &slow[0]
		ended := time.Unix(0, newest.BeganUnixNs+newest.DurationNs)
		p.SlowSyncs = &recordv1.SlowSyncs{
			Total: st.Slow.SyncsTotal, NewestSeconds: time.Duration(newest.DurationNs).Seconds(),
			NewestSecondsAgo: max(0, time.Since(ended).Seconds()),
			NewestFile:       newest.Kind,
		}
	}
	if t := st.Traffic; t != nil {
		p.Traffic = &recordv1.Traffic{
			CallsTotal: t.CallsTotal, RecordBytesTotal: t.RecordBytesTotal, UnaryCallsTotal: t.UnaryCallsTotal,
			UnarySecondsTotal: t.UnarySecondsTotal,
		}
	}
	for _, g := range st.Groups {
		if g.Leader {
			p.Leaders++
		}
	}
	return p
}

// Row returns the progress as a row of AdminService.
func (l Load) Row() *recordv1.Load {
	return &recordv1.Load{
		GroupsTotal: int32(l.GroupsTotal), GroupsLoaded: int32(l.GroupsLoaded), GroupsDamaged: int32(l.GroupsDamaged),
		BytesTotal: l.BytesTotal, BytesDone: l.BytesDone, BytesPerSecond: l.BytesPerSecond,
		DeviceBytesPerSecond: l.DeviceBytesPerSecond, EtaSeconds: l.ETASeconds, ElapsedSeconds: l.ElapsedSeconds,
		Done: l.Done,
	}
}

// GroupOf converts the row of a replica to its status, which has no ids of records.
func GroupOf(g *recordv1.Group) Group {
	st := Group{
		Group: g.GetGroup(), UUID: g.GetUuid(), Message: g.GetMessage(), Leader: g.GetLeader(), Records: g.GetRecords(),
		StoredBytes: g.GetStoredBytes(), SupersededBytes: g.GetSupersededBytes(), Segments: int(g.GetSegments()),
		AppliedIndex: g.GetAppliedIndex(), MemoryBytes: g.GetMemoryBytes(),
		State: g.GetState().Word(), Outcome: g.GetOutcome().Word(), DamagesTotal: int(g.GetDamagesTotal()),
	}
	for _, d := range g.GetDamages() {
		st.Damages = append(st.Damages, Damage{
			File: d.GetFile(), OffsetBytes: d.GetOffsetBytes(), LengthBytes: d.GetLengthBytes(), What: d.GetWhat(),
			Records: len(d.GetIds()), IDsUnknown: d.GetIdsUnknown(),
		})
	}
	return st
}
