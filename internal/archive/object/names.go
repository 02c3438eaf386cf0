package object

import (
	"encoding/hex"
	"fmt"
	"strconv"
	"strings"

	"github.com/google/uuid"

	"sheaf.dev/sheaf/internal/storage/group/format"
)

// numberDigits is the number of digits of a number in a name. All numbers have leading zeros, so that names sort by
// number.
const numberDigits = 19

// ArchiveName is the name of the object that identifies an archive.
const ArchiveName = "archive.json"

// LogPrefix is the prefix of the names of all log objects. They are in lane 00, which is the only lane
// (docs/archive.md).
const LogPrefix = "log/00/"

// ParseSegmentID parses a segment id, which names and headers contain as 16 lower-case hexadecimal digits.
func ParseSegmentID(text string) (id format.SegmentID, err error) {
	b, err := hex.DecodeString(text)
	if err != nil || len(b) != len(id) || strings.ToLower(text) != text {
		return id, fmt.Errorf("%q is not a segment id", text)
	}
	return format.SegmentID(b), nil
}

// LogName returns the name of a log object.
func LogName(number uint64) string { return LogPrefix + digits(number) }

// ParseLogName returns the number in the name of a log object. It returns false for every other name.
func ParseLogName(name string) (number uint64, ok bool) {
	text, ok := strings.CutPrefix(name, LogPrefix)
	if !ok {
		return 0, false
	}
	return parseDigits(text)
}

// groupPrefix returns the path of a group's folder.
func groupPrefix(group uuid.UUID) string { return "g/" + group.String() + "/" }

// SegmentName returns the name of a segment object.
func SegmentName(group uuid.UUID, first, last uint64, id format.SegmentID) string {
	return groupPrefix(group) + "seg/" + digits(first) + "-" + digits(last) + "-" + hex.EncodeToString(id[:])
}

// BlobName returns the name of a blob object.
func BlobName(group, blob uuid.UUID) string { return groupPrefix(group) + "blob/" + blob.String() }

// CataloguePrefix returns the prefix of the names of a group's catalogues.
func CataloguePrefix(group uuid.UUID) string { return groupPrefix(group) + "cat/" }

// CatalogueName returns the name of a catalogue.
func CatalogueName(group uuid.UUID, number uint64) string {
	return CataloguePrefix(group) + digits(number)
}

// ParseCatalogueName returns the group and the number in the name of a catalogue. It returns false for every other
// name.
func ParseCatalogueName(name string) (group uuid.UUID, number uint64, ok bool) {
	parts := strings.Split(name, "/")
	if len(parts) != 4 || parts[0] != "g" || parts[2] != "cat" {
		return group, 0, false
	}
	group, err := uuid.Parse(parts[1])
	if err != nil || group.String() != parts[1] {
		return group, 0, false
	}
	number, ok = parseDigits(parts[3])
	return group, number, ok
}

// BasePrefix returns the prefix of the names of a group's bases.
func BasePrefix(group uuid.UUID) string { return groupPrefix(group) + "base/" }

// BaseName returns the name of a base.
func BaseName(group uuid.UUID, number uint64) string { return BasePrefix(group) + digits(number) }

// ParseBaseName returns the group and the number in the name of a base. It returns false for every other name.
func ParseBaseName(name string) (group uuid.UUID, number uint64, ok bool) {
	text, ok := strings.CutPrefix(name, "g/")
	if !ok {
		return group, 0, false
	}
	folder, _, _ := strings.Cut(text, "/")
	group, err := uuid.Parse(folder)
	if err != nil {
		return group, 0, false
	}
	text, ok = strings.CutPrefix(name, BasePrefix(group))
	if !ok {
		return group, 0, false
	}
	number, ok = parseDigits(text)
	return group, number, ok
}

// GroupPrefix returns the prefix of the names of all of a group's objects.
func GroupPrefix(group uuid.UUID) string { return groupPrefix(group) }

// These are the prefixes of the names of points, uses, drops and drills.
const (
	PointPrefix = "points/"
	UsePrefix   = "use/"
	DropPrefix  = "drop/"
	DrillPrefix = "drill/"
)

// pointNameMax is the maximum length of a point's name.
const pointNameMax = 63

// CheckPointName returns an error if the text is not a valid name for a point.
func CheckPointName(name string) error {
	valid := name != "" && len(name) <= pointNameMax && name[0] != '-' && name[0] != '.'
	for _, c := range []byte(name) {
		valid = valid && (c >= 'a' && c <= 'z' || c >= '0' && c <= '9' || c == '-' || c == '.')
	}
	if !valid {
		return fmt.Errorf("%q cannot be the name of a point: use 1 to %d of a-z, 0-9, - and ., beginning with a letter or "+
			"digit", name, pointNameMax)
	}
	return nil
}

// DropName returns the name of a drop.
func DropName(number uint64) string { return DropPrefix + digits(number) }

// ParseDropName returns the number in the name of a drop. It returns false for every other name.
func ParseDropName(name string) (number uint64, ok bool) {
	text, ok := strings.CutPrefix(name, DropPrefix)
	if !ok {
		return 0, false
	}
	return parseDigits(text)
}

// DrillName returns the name of a drill that began at a time, in Unix ns.
func DrillName(unixNanos int64) string { return DrillPrefix + digits(uint64(max(unixNanos, 0))) }

// ParseDrillName returns the time in the name of a drill, in Unix ns. It returns false for every other name.
func ParseDrillName(name string) (unixNanos int64, ok bool) {
	text, ok := strings.CutPrefix(name, DrillPrefix)
	if !ok {
		return 0, false
	}
	n, ok := parseDigits(text)
	return int64(n), ok && n <= format.NumberMax
}

func digits(n uint64) string { return fmt.Sprintf("%0*d", numberDigits, n) }

func parseDigits(text string) (uint64, bool) {
	n, err := strconv.ParseUint(text, 10, 64)
	return n, err == nil && digits(n) == text && len(text) == numberDigits
}
