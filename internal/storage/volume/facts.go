package volume

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"math"
	"path"
	"strconv"

	"github.com/google/uuid"

	"sheaf.dev/sheaf/internal/base/crc32c"
	"sheaf.dev/sheaf/internal/storage/vfs"
)

const (
	factsName     = "store.json"
	factsBytesMax = 64 << 10
	// FactsVersion is the version of the facts file that this program writes.
	FactsVersion = 1
)

// Facts holds what a volume knows about its store, so that placement can be rebuilt without etcd. The facts file
// consists of one line of JSON, and a line with the CRC32C of the first line. docs/format-volume.md also describes
// it.
type Facts struct {
	Format    int       `json:"format"`
	Store     uuid.UUID `json:"store"`
	Routing   string    `json:"routing"` // how keys are mapped to groups: "Hash" or "Named"
	Groups    int       `json:"groups"`
	Copies    int       `json:"copies"`
	GroupsMax int       `json:"groupsMax"`
	Created   string    `json:"created"`
	Epoch     uint64    `json:"epoch"` // the highest routing epoch that was known when the facts were written
	// The fields whose names begin with Etcd form a placement.Mark: the newest state of etcd that the shard has seen. If
	// etcd is behind this mark, it was restored to an older state.
	EtcdBase       uint64 `json:"etcdBase,omitempty"`
	EtcdRevision   int64  `json:"etcdRevision,omitempty"`
	EtcdContent    int64  `json:"etcdContent,omitempty"`
	EtcdContentKey string `json:"etcdContentKey,omitempty"`
	EtcdCluster    uint64 `json:"etcdCluster,omitempty,string"`
}

// ErrNoFacts means that no version of Sheaf that writes facts has ever opened the volume.
var ErrNoFacts = errors.New("the volume does not say what its store is like")

// ReadFacts reads the facts of the volume in a folder. It returns ErrNoFacts, ErrDamaged, ErrFormatVersion, or an error
// from reading the file.
func ReadFacts(fsys vfs.FS, dir string) (Facts, error) {
	name := path.Join(dir, factsName)
	content, err := readSmall(fsys, name)
	if errors.Is(err, fs.ErrNotExist) {
		return Facts{}, fmt.Errorf("%w: there is no file %s", ErrNoFacts, name)
	}
	if err != nil {
		return Facts{}, fmt.Errorf("read %s: %w", name, err)
	}
	line, crc, ok := bytes.Cut(content, []byte("\n"))
	if stored, err := strconv.ParseUint(string(bytes.TrimSpace(crc)), 16, 32); !ok || err != nil ||
		uint32(stored) != crc32c.Of(line) {
		return Facts{}, fmt.Errorf("%w: %s does not have the CRC32C that it says", ErrDamaged, name)
	}
	var facts Facts
	if err := json.Unmarshal(line, &facts); err != nil {
		return Facts{}, fmt.Errorf("%w: %s: %w", ErrDamaged, name, err)
	}
	if facts.Format > FactsVersion {
		return Facts{}, fmt.Errorf("%w: %s has format version %d, known is %d", ErrFormatVersion, name, facts.Format,
			FactsVersion)
	}
	if what := facts.absurd(); what != "" {
		return Facts{}, fmt.Errorf("%w: %s says %s, which no store reaches", ErrDamaged, name, what)
	}
	return facts, nil
}

// absurd looks for a number that no store ever reaches, and returns its name and value, or an empty string if there
// is none. Such numbers would do harm. With a huge revision or base, an intact etcd would always look as if it had
// been restored to an older state. With the largest epoch, the next epoch would overflow to 0.
func (f *Facts) absurd() string {
	for what, n := range map[string]int{"groups": f.Groups, "copies": f.Copies, "groupsMax": f.GroupsMax} {
		if n < 0 || n > math.MaxInt32 {
			return fmt.Sprintf("%s %d", what, n)
		}
	}
	// A negative number becomes a huge one when it is converted to uint64, so the same comparison finds it.
	for what, n := range map[string]uint64{"epoch": f.Epoch, "etcdBase": f.EtcdBase,
		"etcdRevision": uint64(f.EtcdRevision), "etcdContent": uint64(f.EtcdContent)} {
		if n > numberMax {
			// The file holds a signed number, so the message shows a signed one.
			return fmt.Sprintf("%s %d", what, int64(n))
		}
	}
	return ""
}

// readSmall reads a whole file, which is expected to be small.
func readSmall(fsys vfs.FS, name string) (content []byte, err error) {
	f, err := fsys.Open(name)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	size, err := f.Size()
	if err == nil && size > factsBytesMax {
		err = fmt.Errorf("%w: it has %d bytes", ErrDamaged, size)
	}
	if err != nil {
		return nil, err
	}
	return io.ReadAll(io.NewSectionReader(f, 0, size))
}

// WriteFacts durably stores the facts. It sets the fields Format and Store itself.
func (v *Volume) WriteFacts(facts Facts) error {
	facts.Format, facts.Store = FactsVersion, v.superblock.Store
	line, err := json.Marshal(facts)
	if err != nil {
		return fmt.Errorf("encode what volume %s remembers: %w", v.dir, err)
	}
	content := fmt.Appendf(line, "\n%08x\n", crc32c.Of(line))
	name := path.Join(v.dir, factsName)
	err = vfs.WriteAside(v.fs, name, content)
	if err == nil {
		err = v.fs.SyncDir(v.dir)
	}
	if err != nil {
		return fmt.Errorf("write %s: %w", name, err)
	}
	return nil
}
