package recordv1

// Serves reports whether a replica in this state serves calls. A damaged replica does, and returns DATA_LOSS only for
// its damaged records.
func (x GroupState) Serves() bool {
	return x == GroupState_GROUP_STATE_SERVING || x == GroupState_GROUP_STATE_DAMAGED
}

// Serves reports whether a shard in this state serves calls for those of its groups that are loaded.
func (x ShardState) Serves() bool {
	return x == ShardState_SHARD_STATE_LOADING || x == ShardState_SHARD_STATE_SERVING ||
		x == ShardState_SHARD_STATE_DRAINING
}

// Add adds the progress of another shard that loads at the same time. It does not add the rates, because only the
// caller knows whether the two shards share a device.
func (x *Load) Add(one *Load) {
	x.GroupsTotal += one.GetGroupsTotal()
	x.GroupsLoaded += one.GetGroupsLoaded()
	x.GroupsDamaged += one.GetGroupsDamaged()
	x.GroupsFailed += one.GetGroupsFailed()
	x.BytesTotal += one.GetBytesTotal()
	x.BytesDone += one.GetBytesDone()
	x.EtaSeconds = max(x.GetEtaSeconds(), one.GetEtaSeconds())
	x.ElapsedSeconds = max(x.GetElapsedSeconds(), one.GetElapsedSeconds())
	x.Done = x.GetDone() && one.GetDone()
}

// PercentOfDevice returns the load rate as a percentage of the device's rate. It returns 0 if the device was not
// measured.
func (x *Load) PercentOfDevice() float64 {
	if x.GetDeviceBytesPerSecond() <= 0 {
		return 0
	}
	return 100 * x.GetBytesPerSecond() / x.GetDeviceBytesPerSecond()
}
