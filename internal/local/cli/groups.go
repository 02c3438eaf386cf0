package cli

import (
	"cmp"
	"context"
	"errors"
	"fmt"

	"sheaf.dev/sheaf/client/recordv1"
)

// GroupDeleteLong describes the deletion of groups, for the help of commands.
const GroupDeleteLong = `Deletes groups that hold nothing: no record, and nothing of deleted ones that is still kept
(sheaf group compact GROUP --all frees it, once retention and repeated writes allow that). A group that
holds something stays, and the command says what it holds. A put at the same moment is refused, or keeps
the group. Its files go to the trash of the shards, for an hour. A group that is created later under the
same name is another one: the command looks up the UUID of each group once, and deletes only that group,
also if it has to repeat a call whose answer was lost.`

// DeleteGroups deletes groups one after another, and calls done after each. The error names each group that was not
// deleted.
func DeleteGroups(ctx context.Context, deleteOne func(ctx context.Context, group string) error, groups []string,
	done func(group string)) error {
	var failed error
	for _, group := range groups {
		if err := deleteOne(ctx, group); err != nil {
			failed = errors.Join(failed, fmt.Errorf("deleting group %s: %w", group, err))
			continue
		}
		done(group)
	}
	return failed
}

// These are states that only a group as a whole can have, and not a single copy. A RecordStore uses the same words in
// status.groups.notWell.
const (
	groupNoLeader = "NoLeader" // no copy leads, so calls wait
	groupDegraded = "Degraded" // the group is served, but by fewer copies than it should have
	groupLost     = "DataLost" // every copy's shard runs, and reports that the data is missing on its volume
)

// GroupRestoring is the state of a group that waits for its restore from an archive.
const GroupRestoring = "Restoring"

// GroupRow is a group with all its copies.
type GroupRow struct {
	Group string `json:"group"`
	// State is the state of the copies if it is the same for all of them, and otherwise NoLeader, Degraded, Damaged or
	// DataLost. A copy whose shard does not answer is Unavailable. A group whose disks are all lost together with their
	// shards is therefore Unavailable, too, although a RecordStore shows it as DataLost, because the operator inspects
	// the disks.
	State string `json:"state"`
	// Copies is the number of copies that etcd lists, without copies that are being created.
	Copies int `json:"copies"`
	// Leader is the shard that leads the group. It is empty if no copy leads.
	Leader string `json:"leader,omitempty"`
	// Records and StoredBytes are the figures of the leader, or of another copy if no copy leads. They are nil if they
	// are not known.
	Records     *int64 `json:"records"`
	StoredBytes *int64 `json:"storedBytes"`
	// Message is the message of the first copy that has one.
	Message string `json:"message,omitempty"`
}

// GroupRows combines the rows of copies, as returned by ListGroups, into one row for each group. The argument wanted
// is the number of copies that each group should have. The groups keep the order of the argument copies, in which
// numeric names are sorted by value.
func GroupRows(copies []*recordv1.Group, wanted int) []GroupRow {
	rows := []GroupRow{}
	for len(copies) > 0 {
		n := 1
		for n < len(copies) && copies[n].GetGroup() == copies[0].GetGroup() {
			n++
		}
		rows = append(rows, groupRow(copies[:n], wanted))
		copies = copies[n:]
	}
	return rows
}

// groupRow combines the copies of one group. The argument wanted is the number of copies that the group should have.
// A copy that is being created does not count, because a moving group has such a copy in addition to the others.
func groupRow(copies []*recordv1.Group, wanted int) GroupRow {
	row := GroupRow{Group: copies[0].GetGroup()}
	states, lost, served, out, damaged := map[recordv1.GroupState]bool{}, 0, 0, 0, false
	restoring := false
	var from *recordv1.Group // the copy whose figures are used
	for _, c := range copies {
		row.Message = cmp.Or(row.Message, c.GetMessage())
		if c.GetRole() == recordv1.MemberRole_MEMBER_ROLE_REMOVED || c.GetRole() == recordv1.MemberRole_MEMBER_ROLE_LEARNER ||
			c.GetCopy() != nil {
			continue
		}
		states[c.GetState()] = true
		if c.GetLost() {
			lost++
		}
		serves := c.GetState().Serves()
		if serves {
			served++
		} else {
			out++
		}
		restoring = restoring || c.GetRestoring()
		damaged = damaged || c.GetState() == recordv1.GroupState_GROUP_STATE_DAMAGED
		if c.GetState() != recordv1.GroupState_GROUP_STATE_PENDING {
			row.Copies++
		}
		if c.GetLeader() {
			row.Leader = c.GetShard()
		}
		// The row of a copy that does not answer has the figures from etcd. A zero may mean that etcd has no figure.
		if c.GetLeader() || from == nil && (serves || c.GetRecords() > 0 || c.GetStoredBytes() > 0) {
			from = c
		}
	}
	if from != nil {
		row.Records, row.StoredBytes = &from.Records, &from.StoredBytes
	}
	switch {
	case lost > 0 && lost == row.Copies:
		row.State = groupLost
	case row.Leader != "" && damaged:
		row.State = recordv1.GroupState_GROUP_STATE_DAMAGED.Word()
	case row.Leader != "" && (out > 0 || served < wanted):
		row.State = groupDegraded
	case row.Leader != "":
		row.State = recordv1.GroupState_GROUP_STATE_SERVING.Word()
	case restoring:
		row.State = GroupRestoring
	case len(states) == 1 && out > 0:
		for state := range states {
			row.State = cmp.Or(state.Word(), state.String())
		}
	default:
		row.State = groupNoLeader
	}
	return row
}
