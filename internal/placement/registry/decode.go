package registry

import (
	"encoding/json"
	"errors"
	"fmt"

	"github.com/google/uuid"

	"sheaf.dev/sheaf/internal/placement"
)

// The functions in this file decode the values of keys in etcd. Each of them also gets the name from the key, and
// accepts only values that Sheaf itself could have written. Therefore all values in a view follow the rules that are
// checked here.

// otherName returns the error for a value that belongs to a different shard or group than its key.
func otherName(what, named string) error {
	return fmt.Errorf("it names another %s, %.40q", what, named)
}

func decodeMeta(value []byte) (placement.Meta, error) {
	var meta placement.Meta
	if err := json.Unmarshal(value, &meta); err != nil {
		return placement.Meta{}, fmt.Errorf("decode meta in etcd: %w", err)
	}
	return meta, meta.Validate()
}

func decodeShard(name string, value []byte) (placement.Shard, error) {
	var s placement.Shard
	if err := json.Unmarshal(value, &s); err != nil {
		return placement.Shard{}, fmt.Errorf("decode shard: %w", err)
	}
	if s.Name != name {
		return placement.Shard{}, otherName("shard", s.Name)
	}
	if err := s.Validate(); err != nil {
		return placement.Shard{}, err
	}
	if s.CapacityBytes < 0 {
		return placement.Shard{}, fmt.Errorf("capacityBytes is %d", s.CapacityBytes)
	}
	s.Alive = true
	return s, nil
}

func decodeGroup(name string, value []byte, revision int64) (placement.Group, error) {
	var g placement.Group
	if err := json.Unmarshal(value, &g); err != nil {
		return placement.Group{}, fmt.Errorf("decode group: %w", err)
	}
	if g.Name != name {
		return placement.Group{}, otherName("group", g.Name)
	}
	if err := placement.ValidateGroupName(g.Name); err != nil {
		return placement.Group{}, err
	}
	switch {
	case g.UUID == uuid.Nil:
		return placement.Group{}, errors.New("its UUID is zero")
	case g.KeyFirst > g.KeyLast:
		return placement.Group{}, fmt.Errorf("its keys begin at %d and end at %d", g.KeyFirst, g.KeyLast)
	case g.Bytes < 0 || g.Records < 0:
		return placement.Group{}, fmt.Errorf("it has %d bytes and %d records", g.Bytes, g.Records)
	case g.Restoring && len(g.Members) > 0:
		return placement.Group{}, fmt.Errorf("it waits for its restore, and has %d members", len(g.Members))
	case g.WritesFrom < 0 || g.WritesFrom > placement.CopiesMax:
		return placement.Group{}, fmt.Errorf("it accepts writes from %d voters on", g.WritesFrom)
	case g.Restoring && g.Deleted != "":
		return placement.Group{}, errors.New("it waits for its restore, and was deleted")
	}
	g.Revision = revision
	return g, nil
}

func decodeTarget(name string, value []byte, revision int64) (placement.Target, error) {
	var t placement.Target
	if err := json.Unmarshal(value, &t); err != nil {
		return placement.Target{}, fmt.Errorf("decode target: %w", err)
	}
	if t.Group != name {
		return placement.Target{}, otherName("group", t.Group)
	}
	for _, shard := range t.Shards {
		if err := placement.ValidateShardName(shard); err != nil {
			return placement.Target{}, err
		}
	}
	t.Revision = revision
	return t, nil
}

func decodeWish(name string, value []byte) (wish, error) {
	var w wish
	if err := json.Unmarshal(value, &w); err != nil {
		return wish{}, fmt.Errorf("decode state: %w", err)
	}
	if w.Shard != name {
		return wish{}, otherName("shard", w.Shard)
	}
	if err := placement.ValidateShardName(w.Shard); err != nil {
		return wish{}, err
	}
	return w, w.State.Validate()
}
