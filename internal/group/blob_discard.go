package group

import "sheaf.dev/sheaf/internal/group/format"

// DiscardBlob removes a committed blob that no entry refers to, and that none on its way will: its put was refused for
// sure, or an earlier one counted. A failure is logged: the file is garbage for the next load.
func (l *Log) DiscardBlob(ref format.BlobRef) {
	if !l.blobs.isReferred(ref.ID) {
		l.blobs.drop(ref.ID)
	}
}
