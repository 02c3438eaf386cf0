package dev

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/google/uuid"

	"sheaf.dev/sheaf/internal/placement"
	"sheaf.dev/sheaf/internal/storage/group/format"
	"sheaf.dev/sheaf/internal/storage/vfs"
)

// These are names in the folder of a dev store.
const (
	settingsName = "dev.json"
	lockName     = "lock"
	etcdName     = "etcd"
	shardsName   = "shards"
	shardPrefix  = "shard-"
)

// settingsFormat must be raised when older programs can no longer open the folder.
const settingsFormat = 1

// settings holds the fixed properties of a dev store, which are stored in dev.json.
type settings struct {
	Format    int               `json:"format"`
	StoreUUID uuid.UUID         `json:"storeUUID"`
	Routing   placement.Routing `json:"routing"`
	Shards    int               `json:"shards"` // the number of shards in the last run
	// Copies is the number of copies of each group. It is 0 in folders from versions without several copies, and then
	// means 1.
	Copies  int    `json:"copies,omitempty"`
	Created string `json:"created"`
	// Made is true once the store has been created in etcd. If etcd does not contain the store although Made is true,
	// etcd has lost its data, and the store must not be created again.
	Made bool `json:"made"`
}

// validate rejects settings that no program writes. Without this check, a start would create any number of shards that
// the file contains.
func (s *settings) validate() error {
	if s.Shards < 1 || s.Shards > shardsMax {
		return fmt.Errorf("it says %d shards", s.Shards)
	}
	return placement.Meta{StoreUUID: s.StoreUUID, Routing: s.Routing, Copies: s.copies()}.Validate()
}

func (s *settings) copies() int { return max(s.Copies, 1) }

// ShardOf returns the name of the shard whose volume is in a folder of a dev store. The result ok is false if dir is
// not such a folder.
func ShardOf(dir string) (shard string, ok bool) {
	dir, err := filepath.Abs(dir)
	if err != nil {
		return "", false
	}
	shards, shard := filepath.Split(dir)
	store, name := filepath.Split(filepath.Clean(shards))
	_, err = os.Lstat(filepath.Join(store, settingsName))
	return shard, name == shardsName && err == nil
}

// ErrUsage means that the request is invalid.
var ErrUsage = errors.New("wrong usage")

// usageError is an ErrUsage with a specific text.
type usageError string

func (e usageError) Error() string { return string(e) }

// Is implements errors.Is.
func (usageError) Is(target error) bool { return target == ErrUsage }

// enoughShards rejects more copies than shards, because two copies of a group never share a shard.
func (f *folder) enoughShards(shards int) error {
	if copies := f.settings.copies(); shards < copies {
		return usageError(fmt.Sprintf(
			"--copies %d needs as many shards, and --shards is %d: give --shards %d or more, or fewer copies", copies, shards,
			copies))
	}
	return nil
}

// folder is the folder of a dev store, which is locked while the store runs.
type folder struct {
	dir      string
	settings settings
	lock     io.Closer
}

// openFolder locks the folder and reads its settings, or creates them if the folder is empty. It rejects settings that
// do not match cfg, with an error that names the remedy.
func openFolder(cfg Config) (*folder, error) {
	f := &folder{dir: cfg.Dir}
	if err := f.checkOurs(); err != nil { // check before writing anything into the folder
		return nil, err
	}
	osfs := vfs.OS{}
	if err := osfs.MkdirAll(cfg.Dir); err != nil {
		return nil, fmt.Errorf("making the folder: %w", err)
	}
	lock, err := osfs.Lock(filepath.Join(cfg.Dir, lockName))
	if errors.Is(err, vfs.ErrLocked) {
		return nil, fmt.Errorf("another sheaf dev runs on %s: stop it, or give another --dir", cfg.Dir)
	}
	if err != nil {
		return nil, fmt.Errorf("locking %s: %w", cfg.Dir, err)
	}
	f.lock = lock
	if err := f.readSettings(cfg); err != nil {
		return nil, errors.Join(err, lock.Close())
	}
	return f, nil
}

// checkOurs rejects a folder with anything other than a dev store.
func (f *folder) checkOurs() error {
	entries, err := os.ReadDir(f.dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("looking into the folder: %w", err)
	}
	var foreign []string
	for _, e := range entries {
		switch e.Name() {
		case settingsName:
			return nil
		case lockName, settingsName + format.TmpSuffix, "lost+found": // left by an interrupted start, or by the file system
		case "superblock":
			return fmt.Errorf(
				"%s is the volume of a shard, not the folder of a sheaf dev: serve it by `sheaf shard --dir %s`, or give another "+
					"--dir", f.dir, f.dir)
		default:
			foreign = append(foreign, e.Name())
		}
	}
	if len(foreign) > 0 {
		return fmt.Errorf("%s holds something else (%s and %d more): give an empty folder, or one that sheaf dev made", f.dir,
			foreign[0], len(foreign)-1)
	}
	return nil
}

func (f *folder) readSettings(cfg Config) error {
	data, err := os.ReadFile(f.path(settingsName))
	if errors.Is(err, fs.ErrNotExist) {
		f.settings = settings{
			Format: settingsFormat, StoreUUID: uuid.New(), Routing: cfg.routing(), Shards: cmp.Or(cfg.Shards, 3),
			Created: time.Now().UTC().Format(time.RFC3339),
		}
		if r := cfg.Restore; r != nil {
			f.settings.StoreUUID, f.settings.Routing = r.List.Store, r.List.Routing
		}
		if cfg.Copies > 1 {
			f.settings.Copies = cfg.Copies
		}
		if err := f.enoughShards(f.settings.Shards); err != nil {
			return err
		}
		return f.writeSettings()
	}
	if err != nil {
		return fmt.Errorf("reading the settings: %w", err)
	}
	if cfg.Restore != nil {
		return usageError(f.dir + " holds a store already, and a restore makes a new one: give an empty folder")
	}
	s := &f.settings
	damaged := func(err error) error {
		return fmt.Errorf("%s is damaged (%w): restore it from a copy", f.path(settingsName), err)
	}
	if err := json.Unmarshal(data, s); err != nil {
		return damaged(err)
	}
	if s.Format != settingsFormat {
		return fmt.Errorf(
			"%s was made by another version of sheaf (format %d, this one has %d): use that one, or give another --dir", f.dir,
			s.Format, settingsFormat)
	}
	if err := s.validate(); err != nil {
		return damaged(err)
	}
	return f.fit(cfg)
}

// fit rejects flags that contradict the folder's settings, and uses the settings for flags that are not set.
func (f *folder) fit(cfg Config) error {
	s := &f.settings
	made := func(flag string, value any, fixed string) error {
		return fmt.Errorf("%s was made with --%s %v, which %s: leave the flag out, or give another --dir (export and import "+
			"move the records)", f.dir, flag, value, fixed)
	}
	switch {
	case cfg.Mode != "" && cfg.Mode != s.Routing.Mode:
		return made("routing", strings.ToLower(string(s.Routing.Mode)), "cannot be changed")
	case cfg.Groups != 0 && s.Routing.Mode == placement.Hash && cfg.Groups != s.Routing.Groups:
		return made("groups", s.Routing.Groups, "cannot be changed")
	case cfg.Copies != 0 && cfg.Copies != s.copies():
		return made("copies", s.copies(), "this version cannot change")
	}
	need, err := f.shardsWithData()
	if err != nil {
		return err
	}
	shards := cmp.Or(cfg.Shards, s.Shards)
	if shards < need {
		return fmt.Errorf("%s holds data on %d shards: give --shards %d or more, or leave the flag out", f.dir, need, need)
	}
	if err := f.enoughShards(shards); err != nil {
		return err
	}
	if shards == s.Shards {
		return nil
	}
	s.Shards = shards
	return f.writeSettings()
}

// shardsWithData returns how many shards must run so that every group is served. Shards are numbered from 0, so this is
// one more than the number of the last shard with a group's folder.
func (f *folder) shardsWithData() (int, error) {
	entries, err := os.ReadDir(f.path(shardsName))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return 0, fmt.Errorf("looking for shards: %w", err)
	}
	need := 0
	for _, e := range entries {
		number, ok := strings.CutPrefix(e.Name(), shardPrefix)
		n, err := strconv.Atoi(number)
		if !ok || err != nil || n < need {
			continue
		}
		groups, err := os.ReadDir(filepath.Join(f.shardDir(n), "groups"))
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return 0, fmt.Errorf("looking for groups: %w", err)
		}
		if len(groups) > 0 {
			need = n + 1
		}
	}
	return need, nil
}

// writeSettings replaces dev.json durably.
func (f *folder) writeSettings() error {
	data, err := json.MarshalIndent(f.settings, "", "  ")
	if err != nil {
		return fmt.Errorf("encoding the settings: %w", err)
	}
	if err := format.WriteReplace(vfs.OS{}, f.dir, settingsName, append(data, '\n')); err != nil {
		return fmt.Errorf("writing the settings: %w", err)
	}
	return nil
}

func (f *folder) path(name string) string { return filepath.Join(f.dir, name) }

func (f *folder) shardDir(n int) string {
	return filepath.Join(f.dir, shardsName, shardName(n))
}

func shardName(n int) string { return shardPrefix + strconv.Itoa(n) }
