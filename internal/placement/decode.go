package placement

import (
	"encoding/json"
	"errors"
	"fmt"
	"net"

	"github.com/google/uuid"
)

// These are the decoders of etcd's values. Each decoder receives the name in the key, and accepts only values that
// Sheaf itself writes. Therefore all values in a view follow the rules that the decoders check.

// otherName returns the error for a value that belongs to a shard or group other than the one in its key.
func otherName(what, named string) error {
	return fmt.Errorf("it names another %s, %.40q", what, named)
}

func decodeMeta(value []byte) (Meta, error) {
	var meta Meta
	if err := json.Unmarshal(value, &meta); err != nil {
		return Meta{}, fmt.Errorf("decode meta in etcd: %w", err)
	}
	return meta, meta.Validate()
}

func decodeShard(name string, value []byte) (Shard, error) {
	var s Shard
	if err := json.Unmarshal(value, &s); err != nil {
		return Shard{}, fmt.Errorf("decode shard: %w", err)
	}
	if s.Name != name {
		return Shard{}, otherName("shard", s.Name)
	}
	if err := s.validate(); err != nil {
		return Shard{}, err
	}
	if s.CapacityBytes < 0 {
		return Shard{}, fmt.Errorf("capacityBytes is %d", s.CapacityBytes)
	}
	s.Alive = true
	return s, nil
}

// validate says what is missing in a registration.
func (s Shard) validate() error {
	if err := ValidateShardName(s.Name); err != nil {
		return err
	}
	if s.VolumeUUID == uuid.Nil {
		return errors.New("the volume UUID is zero")
	}
	if _, _, err := net.SplitHostPort(s.Address); err != nil {
		return fmt.Errorf("address %q: give host:port: %w", s.Address, err)
	}
	return s.State.validate()
}

func decodeGroup(name string, value []byte, revision int64) (Group, error) {
	var g Group
	if err := json.Unmarshal(value, &g); err != nil {
		return Group{}, fmt.Errorf("decode group: %w", err)
	}
	if g.Name != name {
		return Group{}, otherName("group", g.Name)
	}
	if err := ValidateGroupName(g.Name); err != nil {
		return Group{}, err
	}
	switch {
	case g.UUID == uuid.Nil:
		return Group{}, errors.New("its UUID is zero")
	case g.KeyFirst > g.KeyLast:
		return Group{}, fmt.Errorf("its keys begin at %d and end at %d", g.KeyFirst, g.KeyLast)
	case g.Bytes < 0 || g.Records < 0:
		return Group{}, fmt.Errorf("it has %d bytes and %d records", g.Bytes, g.Records)
	}
	g.Revision = revision
	return g, nil
}

func decodeTarget(name string, value []byte, revision int64) (Target, error) {
	var t Target
	if err := json.Unmarshal(value, &t); err != nil {
		return Target{}, fmt.Errorf("decode target: %w", err)
	}
	if t.Group != name {
		return Target{}, otherName("group", t.Group)
	}
	for _, shard := range t.Shards {
		if err := ValidateShardName(shard); err != nil {
			return Target{}, err
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
	if err := ValidateShardName(w.Shard); err != nil {
		return wish{}, err
	}
	return w, w.State.validate()
}
