package main

import (
	"encoding/json"
	"maps"
	"reflect"
	"slices"
	"strings"
	"testing"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"

	"sheaf.dev/sheaf/client/recordv1"
	"sheaf.dev/sheaf/internal/gateway"
	"sheaf.dev/sheaf/internal/local/dev"
)

// namesIn collects the names that the fields of a Go type have in JSON.
func namesIn(t reflect.Type, to map[string]bool, seen map[reflect.Type]bool) {
	for t.Kind() == reflect.Pointer || t.Kind() == reflect.Slice || t.Kind() == reflect.Map {
		t = t.Elem()
	}
	if t.Kind() != reflect.Struct || seen[t] {
		return
	}
	seen[t] = true
	if m, ok := reflect.New(t).Interface().(proto.Message); ok {
		namesOf(m.ProtoReflect().Descriptor(), to, map[protoreflect.FullName]bool{})
		return
	}
	for n := range t.NumField() {
		f := t.Field(n)
		if name, _, _ := strings.Cut(f.Tag.Get("json"), ","); name != "" && name != "-" {
			to[name] = true
			namesIn(f.Type, to, seen)
		}
	}
}

// namesOf collects the names that the fields of a message have in JSON.
func namesOf(of protoreflect.MessageDescriptor, to map[string]bool, seen map[protoreflect.FullName]bool) {
	if seen[of.FullName()] {
		return
	}
	seen[of.FullName()] = true
	for i := range of.Fields().Len() {
		f := of.Fields().Get(i)
		if to[f.JSONName()] = true; f.Message() != nil {
			namesOf(f.Message(), to, seen)
		}
	}
}

// TestOneSpellingOfNamesInJSON checks that sheaf status -o json, and /status of shards, of gateways and of sheaf dev,
// spell each name in the same way, in lowerCamelCase.
func TestOneSpellingOfNamesInJSON(t *testing.T) {
	spelled := map[string]string{} // maps a name, in lower case and without underscores, to its spelling
	for _, of := range []any{&recordv1.ShardStatus{}, gateway.Status{}, dev.Status{}, rows{}} {
		names := map[string]bool{}
		namesIn(reflect.TypeOf(of), names, map[reflect.Type]bool{})
		if len(names) < 10 {
			t.Errorf("%T has %d names", of, len(names))
		}
		for _, name := range slices.Sorted(maps.Keys(names)) {
			letters := strings.ToLower(strings.ReplaceAll(name, "_", ""))
			if before, known := spelled[letters]; known && before != name {
				t.Errorf("%T says %s, and another one %s", of, name, before)
			}
			if spelled[letters] = name; strings.Contains(name, "_") || strings.ToLower(name[:1]) != name[:1] {
				t.Errorf("%T says %s, which is not lowerCamelCase", of, name)
			}
		}
	}
}

// TestJSONOfStatus pins the output of `sheaf status -o json`, because scripts read it. The output contains no numbers
// that only a silent shard could report.
func TestJSONOfStatus(t *testing.T) {
	lag := uint64(3)
	text, err := json.MarshalIndent(rows{[]*recordv1.Shard{
		{
			Name: "a", Address: "h:1", Alive: true, VolumeUuid: "v", Generation: 2, Path: "/d", FileSystem: "xfs",
			CapacityBytes: 4, FreeBytes: 3, ReserveBytes: 1, MemoryNeedBytes: 5, MemoryUsedBytes: 6, MemoryLimitBytes: 7,
			Residency: "Index", Groups: 1, Leaders: 1, Version: "v1", Load: &recordv1.Load{Done: true, BytesTotal: 8},
			PlacementState: recordv1.PlacementState_PLACEMENT_STATE_ACTIVE.Enum(), PlacedGroups: new(int32(0)),
		},
		{Name: "b", FreeBytes: 9},
	}, []*recordv1.Group{{
		Group: "0", Uuid: "u", Shard: "a", State: recordv1.GroupState_GROUP_STATE_SERVING, Leader: true, Records: 10,
		LagEntries: &lag, StoredBytes: 11,
	}, {
		Group: "0", Shard: "b", State: recordv1.GroupState_GROUP_STATE_UNAVAILABLE, Records: 10, StoredBytes: 11,
	}, {
		Group: "1", Uuid: "w", Shard: "a", State: recordv1.GroupState_GROUP_STATE_DAMAGED,
		Outcome: recordv1.LoadOutcome_LOAD_OUTCOME_DAMAGED, Message: "m", Role: recordv1.MemberRole_MEMBER_ROLE_VOTER,
		RaftId: 12, MatchIndex: &lag, Damages: []*recordv1.Damage{{Group: "1", File: "f", OffsetBytes: 13, LengthBytes: 14,
			What: "bad", Ids: []int64{15, 1 << 60}}}, DamagesTotal: 1,
	}}}, "", " ")
	must(t, err)
	const want = `{
 "shards": [
  {
   "name": "a",
   "address": "h:1",
   "alive": true,
   "volumeUuid": "v",
   "generation": 2,
   "path": "/d",
   "fileSystem": "xfs",
   "mountOptions": [],
   "source": "",
   "capacityBytes": 4,
   "freeBytes": 3,
   "reserveBytes": 1,
   "memoryNeedBytes": 5,
   "memoryLimitBytes": 7,
   "residency": "Index",
   "groups": 1,
   "leaders": 1,
   "load": {
    "groupsTotal": 0,
    "groupsLoaded": 0,
    "groupsDamaged": 0,
    "bytesTotal": 8,
    "bytesDone": 0,
    "bytesPerSecond": 0,
    "deviceBytesPerSecond": 0,
    "etaSeconds": 0,
    "elapsedSeconds": 0,
    "done": true,
    "groupsFailed": 0,
    "devicePercent": 0
   },
   "version": "v1",
   "state": "",
   "message": "",
   "wantedFileSystem": "",
   "wantedMountOptions": [],
   "storeUuid": "",
   "wantedStoreUuid": "",
   "wantedVolumeUuid": "",
   "volumeShard": "",
   "node": "",
   "zone": "",
   "domain": "",
   "medium": "",
   "memoryUsedBytes": 6,
   "problems": [],
   "volumeSilent": false,
   "placementState": "Active",
   "placedGroups": 0,
   "routingEpoch": 0,
   "stopping": false
  },
  {
   "name": "b",
   "address": "",
   "alive": false,
   "volumeUuid": "",
   "path": "",
   "fileSystem": "",
   "mountOptions": [],
   "source": "",
   "freeBytes": 9,
   "residency": "",
   "version": "",
   "state": "",
   "message": "",
   "wantedFileSystem": "",
   "wantedMountOptions": [],
   "storeUuid": "",
   "wantedStoreUuid": "",
   "wantedVolumeUuid": "",
   "volumeShard": "",
   "node": "",
   "zone": "",
   "domain": "",
   "medium": "",
   "problems": [],
   "volumeSilent": false,
   "stopping": false
  }
 ],
 "groups": [
  {
   "group": "0",
   "uuid": "u",
   "shard": "a",
   "state": "Serving",
   "outcome": "",
   "message": "",
   "leader": true,
   "records": 10,
   "storedBytes": 11,
   "supersededBytes": 0,
   "segments": 0,
   "appliedIndex": 0,
   "memoryBytes": 0,
   "damages": [],
   "lost": false,
   "role": "",
   "lagEntries": 3,
   "raftId": 0,
   "members": [],
   "damagesTotal": 0,
   "truncatedBytes": 0,
   "restoring": false
  },
  {
   "group": "0",
   "uuid": "",
   "shard": "b",
   "state": "Unavailable",
   "outcome": "",
   "message": "",
   "leader": false,
   "records": 10,
   "storedBytes": 11,
   "damages": [],
   "lost": false,
   "role": "",
   "members": [],
   "restoring": false
  },
  {
   "group": "1",
   "uuid": "w",
   "shard": "a",
   "state": "Damaged",
   "outcome": "Damaged",
   "message": "m",
   "leader": false,
   "records": 0,
   "storedBytes": 0,
   "supersededBytes": 0,
   "segments": 0,
   "appliedIndex": 0,
   "memoryBytes": 0,
   "damages": [
    {
     "group": "1",
     "file": "f",
     "offsetBytes": 13,
     "lengthBytes": 14,
     "what": "bad",
     "ids": [
      "15",
      "1152921504606846976"
     ],
     "idsUnknown": false,
     "shard": ""
    }
   ],
   "lost": false,
   "role": "Voter",
   "matchIndex": 3,
   "raftId": 12,
   "members": [],
   "damagesTotal": 1,
   "truncatedBytes": 0,
   "restoring": false
  }
 ]
}`
	if string(text) != want {
		t.Errorf("%s", text)
	}
}
