package vfstest

import "fmt"

// OpKind is the kind of an operation on a file system.
type OpKind uint8

// These are the kinds of operations. Those from OpCreate to OpSyncDir change the disk, so a Mem can crash at each of
// them.
const (
	OpCreate OpKind = iota + 1
	OpWrite
	OpSync
	OpTruncate
	OpAllocate
	OpRemove
	OpRename
	OpLink
	OpMkdir
	OpSyncAll
	OpSyncDir
	OpOpen
	OpRead
	OpList
	OpStat
	OpSize
	OpLock
	OpSpace
)

var opKindNames = [...]string{
	OpCreate: "create", OpWrite: "write", OpSync: "sync", OpTruncate: "truncate", OpAllocate: "allocate",
	OpRemove: "remove", OpRename: "rename", OpLink: "link",
	OpMkdir: "mkdir", OpSyncAll: "syncall", OpSyncDir: "syncdir", OpOpen: "open",
	OpRead: "read",
	OpList: "list", OpStat: "stat", OpSize: "size", OpLock: "lock", OpSpace: "space",
}

// String returns the kind as one word.
func (k OpKind) String() string {
	if int(k) < len(opKindNames) && opKindNames[k] != "" {
		return opKindNames[k]
	}
	return fmt.Sprintf("op(%d)", uint8(k))
}

// Mutates reports whether operations of this kind change the disk.
func (k OpKind) Mutates() bool { return k >= OpCreate && k <= OpSyncDir }

// Op is one operation on a file system.
type Op struct {
	// Number is the number of this operation, counted from 1. A Mem counts all operations that change the disk. A Faulty
	// counts the operations of each kind separately.
	Number  int64
	Kind    OpKind
	Name    string // name of the file or folder
	NewName string // new name, only for OpRename and OpLink
	Offset  int64  // offset in bytes, for OpWrite, OpRead and OpAllocate
	Length  int64  // length in bytes, for OpWrite, OpRead and OpAllocate; the new size for OpTruncate
}

// String returns the operation in one line, without its number.
func (o Op) String() string {
	switch o.Kind {
	case OpRename, OpLink:
		return fmt.Sprintf("%s %s to %s", o.Kind, o.Name, o.NewName)
	case OpWrite, OpRead, OpAllocate:
		return fmt.Sprintf("%s %s offset %d length %d", o.Kind, o.Name, o.Offset, o.Length)
	case OpTruncate:
		return fmt.Sprintf("truncate %s to %d", o.Name, o.Length)
	default:
		return o.Kind.String() + " " + o.Name
	}
}
