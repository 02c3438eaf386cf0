package format

import (
	"fmt"
	"strconv"
	"strings"

	"github.com/google/uuid"

	"sheaf.dev/sheaf/internal/storage/vfs"
)

// These are the names of files and folders within a group's folder.
const (
	ManifestName   = "manifest"
	MarkName       = "mark"
	ReplicaName    = "replica"
	ActiveHintName = "hint-active" // hint of the active segment, whatever its number is
	IncomingName   = "incoming"    // folder with the files of an unfinished Install
	QuarantineName = "quarantine"
	// TmpSuffix ends the name of a file that is still being written. If the process crashes before the file is complete,
	// the file is garbage.
	TmpSuffix = vfs.TempSuffix

	SegmentPrefix = "segment-"
	HintPrefix    = "hint-"
	BlobPrefix    = "blob-"
)

// SegmentName returns the file name of a segment within the group's folder.
func SegmentName(number uint64) string { return fmt.Sprintf("%s%012d", SegmentPrefix, number) }

// HintName returns the file name of a segment's hint.
func HintName(number uint64) string { return fmt.Sprintf("%s%012d", HintPrefix, number) }

// BlobName returns the file name of a blob.
func BlobName(id uuid.UUID) string { return BlobPrefix + id.String() }

// ParseSegmentName returns the number in a segment's file name.
func ParseSegmentName(name string) (number uint64, ok bool) {
	return parseNumbered(name, SegmentPrefix)
}

// ParseHintName returns the number in a hint's file name.
func ParseHintName(name string) (number uint64, ok bool) { return parseNumbered(name, HintPrefix) }

// IsHintName reports whether a file is a hint, either of a sealed segment or of the active one.
func IsHintName(name string) bool {
	_, numbered := ParseHintName(name)
	return numbered || name == ActiveHintName
}

func parseNumbered(name, prefix string) (uint64, bool) {
	digits, ok := strings.CutPrefix(name, prefix)
	if !ok {
		return 0, false
	}
	number, err := strconv.ParseUint(digits, 10, 64)
	return number, err == nil && name == fmt.Sprintf("%s%012d", prefix, number)
}

// ParseBlobName returns the id in a blob's file name.
func ParseBlobName(name string) (id uuid.UUID, ok bool) {
	digits, ok := strings.CutPrefix(name, BlobPrefix)
	if !ok {
		return uuid.UUID{}, false
	}
	id, err := uuid.Parse(digits)
	return id, err == nil && name == BlobName(id)
}
