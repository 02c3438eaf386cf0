package parquetcli

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"path"
	"slices"
	"strings"

	"sheaf.dev/sheaf/internal/storage/vfs"
)

// These are the names in the folder of an export, beside the Parquet files. Readers of Parquet pass over names that
// begin with a dot.
const (
	manifestName = "manifest.json"
	journalName  = ".manifest.journal"
	lockName     = ".manifest.lock"
)

// manifestFormat and manifestVersion say what a manifest is. A program refuses a manifest of a later version.
const (
	manifestFormat  = "sheaf-parquet-export"
	manifestVersion = 1
)

// jsonBytesMax is the size of the largest manifest or journal that is read.
const jsonBytesMax = 1 << 30

// manifest describes an export. It is written twice: with the plan before the first file, and with the results after
// the last one.
type manifest struct {
	Format  string `json:"format"`
	Version int    `json:"version"`
	Store   string `json:"store"` // UUID
	View    string `json:"view"`
	// Opened says when the view was opened: RFC 3339, UTC.
	Opened   string     `json:"opened"`
	Group    string     `json:"group,omitempty"` // of --group; empty: all groups
	Complete bool       `json:"complete"`
	Records  int64      `json:"records"` // of all files, as all other numbers; 0 until the export is complete
	Bytes    int64      `json:"bytes"`
	NoData   int64      `json:"noData"`
	Files    []fileInfo `json:"files"`
}

// fileInfo describes a file.
type fileInfo struct {
	Name  string `json:"name"`
	Group string `json:"group"`
	// Split is the token of the split, until the export is complete.
	Split  []byte `json:"split,omitempty"`
	result        // zero until the file is complete
}

// result describes the content of a complete file. In the journal it has the name of the file.
type result struct {
	Records   int64  `json:"records"`
	Bytes     int64  `json:"bytes"`            // of the data
	NoData    int64  `json:"noData,omitempty"` // rows with a status
	Damaged   string `json:"damaged,omitempty"`
	FileBytes int64  `json:"fileBytes"`
	SHA256    string `json:"sha256"`
}

// journalLine is a line of the journal, which names the files that are complete.
type journalLine struct {
	Name string `json:"name"`
	result
}

func fileName(n int) string { return fmt.Sprintf("part-%05d.parquet", n) }

// tempName returns the name of a file while it is written.
func tempName(name string) string { return "." + name + vfs.TempSuffix }

// target is the folder of an export.
type target struct {
	fsys vfs.FS
	dir  string
}

func (t target) at(name string) string { return path.Join(t.dir, name) }

// read reads a file that an export has written.
func (t target) read(name string) ([]byte, error) {
	f, err := t.fsys.Open(t.at(name))
	if err != nil {
		return nil, err
	}
	defer f.Close() //nolint:errcheck // only read from
	size, err := f.Size()
	if err == nil && size > jsonBytesMax {
		err = fmt.Errorf("%s has %d bytes, which no export writes", t.at(name), size)
	}
	if err != nil {
		return nil, err
	}
	content := make([]byte, size)
	if n, err := f.ReadAt(content, 0); err != nil && !errors.Is(err, io.EOF) {
		return nil, err
	} else if int64(n) < size {
		return nil, io.ErrUnexpectedEOF
	}
	return content, nil
}

// errNoManifest means that the folder has no export yet.
var errNoManifest = errors.New("there is no manifest")

// readManifest reads the manifest of the export in the folder. It returns errNoManifest if the folder is empty, except
// for what a killed export leaves behind before its manifest is durable.
func (t target) readManifest() (*manifest, error) {
	content, err := t.read(manifestName)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, t.checkEmpty()
	}
	if err != nil {
		return nil, fmt.Errorf("the manifest of the export: %w", err)
	}
	m := &manifest{}
	if err := json.Unmarshal(content, m); err != nil || m.Format != manifestFormat {
		return nil, fmt.Errorf("%s was not written by `sheaf export --format parquet`: give an empty folder",
			t.at(manifestName))
	}
	if m.Version != manifestVersion {
		return nil, fmt.Errorf("%s has version %d, and this program knows version %d: take the version of sheaf that began "+
			"the export, or another folder", t.at(manifestName), m.Version, manifestVersion)
	}
	for i, f := range m.Files {
		if f.Name != fileName(i) {
			return nil, fmt.Errorf("%s is damaged: file %d has the name %q. Give an empty folder", t.at(manifestName), i, f.Name)
		}
	}
	return m, nil
}

// checkEmpty returns errNoManifest if the folder has nothing but leftovers of an export that was killed at its
// beginning.
func (t target) checkEmpty() error {
	names, err := t.fsys.List(t.dir)
	if err != nil {
		return fmt.Errorf("the folder to export to: %w", err)
	}
	for _, name := range names {
		if name != lockName && name != manifestName+vfs.TempSuffix {
			return fmt.Errorf("%s is not empty (it has %q) and has no %s of an export that could be continued: give an "+
				"empty folder", t.dir, name, manifestName)
		}
	}
	return errNoManifest
}

func (t target) writeManifest(m *manifest) error {
	content, err := json.MarshalIndent(m, "", "  ")
	if err != nil {
		return err
	}
	return t.writeAside(manifestName, append(content, '\n'))
}

func (t target) writeAside(name string, content []byte) error {
	if err := vfs.WriteAside(t.fsys, t.at(name), content); err != nil {
		return err
	}
	return t.fsys.SyncDir(t.dir)
}

// readJournal returns the results of the files that are complete, by name. A last line that is not complete was never
// synced, and does not count. Nor does a file that is missing or has another size.
func (t target) readJournal() (map[string]result, error) {
	done := map[string]result{}
	content, err := t.read(journalName)
	if errors.Is(err, fs.ErrNotExist) {
		return done, nil
	}
	if err != nil {
		return nil, fmt.Errorf("the journal of the export: %w", err)
	}
	for line := range bytes.Lines(content) {
		var one journalLine
		if !bytes.HasSuffix(line, []byte("\n")) || json.Unmarshal(line, &one) != nil {
			break
		}
		if t.hasFile(one.Name, one.FileBytes) == nil {
			done[one.Name] = one.result
		}
	}
	return done, nil
}

// hasFile returns an error unless the folder has a file of this name and size.
func (t target) hasFile(name string, size int64) error {
	info, err := t.fsys.Stat(t.at(name))
	if err != nil {
		return err
	}
	if info.Size() != size {
		return fmt.Errorf("%s has %d bytes instead of %d", t.at(name), info.Size(), size)
	}
	return nil
}

// journal appends the results of files. It is not safe for concurrent use.
type journal struct {
	file vfs.File
	end  int64
}

// openJournal writes the journal anew, with what is known, so that no torn line is in it.
func (t target) openJournal(done map[string]result) (*journal, error) {
	var content []byte
	names := make([]string, 0, len(done))
	for name := range done {
		names = append(names, name)
	}
	slices.Sort(names)
	for _, name := range names {
		line, err := json.Marshal(journalLine{Name: name, result: done[name]})
		if err != nil {
			return nil, err
		}
		content = append(append(content, line...), '\n')
	}
	if err := t.writeAside(journalName, content); err != nil {
		return nil, fmt.Errorf("the journal of the export: %w", err)
	}
	f, err := t.fsys.OpenWrite(t.at(journalName))
	if err != nil {
		return nil, fmt.Errorf("the journal of the export: %w", err)
	}
	return &journal{file: f, end: int64(len(content))}, nil
}

// add makes the result of a file durable.
func (j *journal) add(name string, r result) error {
	line, err := json.Marshal(journalLine{Name: name, result: r})
	if err != nil {
		return err
	}
	line = append(line, '\n')
	if _, err = j.file.WriteAt(line, j.end); err == nil {
		err = j.file.Sync()
	}
	if err != nil {
		return fmt.Errorf("the journal of the export: %w", err)
	}
	j.end += int64(len(line))
	return nil
}

// clean removes what the export needed only while it ran. Errors do not matter: the next run tries again.
func (t target) clean() {
	names, err := t.fsys.List(t.dir)
	if err != nil {
		return
	}
	for _, name := range names {
		temp := strings.HasPrefix(name, ".part-") && strings.HasSuffix(name, ".parquet"+vfs.TempSuffix)
		if temp || name == journalName || name == journalName+vfs.TempSuffix || name == manifestName+vfs.TempSuffix {
			_ = t.fsys.Remove(t.at(name))
		}
	}
	_ = t.fsys.SyncDir(t.dir)
}
