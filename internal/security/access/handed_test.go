package access

import (
	"slices"
	"strings"
	"testing"

	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/reflect/protoregistry"
)

// These lists classify all scalar fields of requests by the origin of their values. A field is named by its message
// and its own name.
var (
	// signedFields are opaque values that the client got in earlier responses. Each value is signed for the caller who
	// got it.
	signedFields = []string{"ListVersionsRequest.page_token", "ScanRequest.cursor", "ScanRequest.split",
		"WatchRequest.cursor"}
	// plainFields are values that the client got in earlier responses and that need no signature. A version identifies a
	// state of a record. It is harmless, because access to the record's group is decided before the version is looked
	// up. An epoch says which routing the client knows, and is only a hint.
	plainFields = []string{
		"DeleteRequest.routing_epoch", "DownloadRequest.routing_epoch", "DownloadRequest.version", "GetRequest.routing_epoch",
		"GetRequest.version",
		// The id of a view is no secret: access to its groups is decided at each use.
		"GetRequest.view", "PlanScanRequest.view", "ScanRequest.view",
		"ListVersionsRequest.routing_epoch", "PutRequest.routing_epoch", "ScanRequest.routing_epoch",
		"UploadHeader.routing_epoch",
		"WatchRoutingRequest.known_epoch", "WriteCondition.if_version",
		// A client sends this UUID so that no other group with the same name is deleted by mistake. It grants nothing,
		// because the client may delete that other group as well.
		"DeleteGroupRequest.group_uuid",
		// The page token of such a list is the name after which the list continues. Whoever may make these calls may see
		// all names.
		"ListGroupsRequest.page_token", "ListShardsRequest.page_token", "PlanMovesRequest.page_token",
	}
	// chosenFields are values that clients choose.
	chosenFields = []string{
		"AcceptLossRequest.group", "CanIRequest.group", "CanIRequest.verb", "CompactRequest.all", "CompactRequest.explain",
		"CompactRequest.group",
		"CompactRequest.rate_bytes_per_second", "CreateGroupRequest.group", "DeleteGroupRequest.group",
		"DeleteGroupRequest.resolve_only", "DeleteRequest.request_id",
		"DeleteRequest.timestamp_unix_ns",
		"DownloadRequest.length_bytes", "DownloadRequest.offset_bytes", "FindRequest.id", "GetRequest.metadata_only",
		"ListGroupsRequest.group", "ListGroupsRequest.page_size", "ListShardsRequest.page_size",
		"PlanMovesRequest.page_size",
		"ListVersionsRequest.page_size", "PlanScanRequest.groups", "PlanScanRequest.split_bytes",
		"PlanScanRequest.shared",
		"PutRequest.AttributesEntry.key",
		"PutRequest.AttributesEntry.value", "PutRequest.data", "PutRequest.data_crc32c", "PutRequest.request_id",
		"PutRequest.timestamp_unix_ns",
		"RecordKey.group", "RecordKey.id", "RemoveShardRequest.shard", "SetShardStateRequest.shard",
		"SetShardStateRequest.state",
		"ScanRequest.group", "ScanRequest.metadata_only",
		"UploadHeader.AttributesEntry.key",
		"UploadHeader.AttributesEntry.value", "UploadHeader.data_crc32c", "UploadHeader.request_id",
		"UploadHeader.size_bytes",
		"UploadHeader.timestamp_unix_ns", "UploadRequest.chunk", "VerifyRequest.group", "VerifyRequest.rate_bytes_per_second",
		"WatchRequest.group", "WatchRoutingRequest.in_parts",
		"WriteCondition.if_absent",
	}
)

// TestReturnedValuesAreSigned checks that each field of a request is either signed or listed above as one that needs no
// signature. A new field must be added to one of the lists.
func TestReturnedValuesAreSigned(t *testing.T) {
	known := slices.Concat(signedFields, plainFields, chosenFields)
	seen := map[string]bool{}
	protoregistry.GlobalFiles.RangeFiles(func(f protoreflect.FileDescriptor) bool {
		if f.Package() != "sheaf.record.v1" {
			return true // only shards call this service
		}
		for i := range f.Services().Len() {
			service := f.Services().Get(i)
			for j := range service.Methods().Len() {
				method := service.Methods().Get(j)
				rule := RuleOf("/" + string(service.FullName()) + "/" + string(method.Name()))
				fields := leaves(method.Input(), nil)
				hands := false
				for _, field := range fields {
					seen[field] = true
					hands = hands || slices.Contains(signedFields, field)
					if !slices.Contains(known, field) {
						t.Errorf("%s: say in this test where clients have it from, and sign it where they hand it back", field)
					}
				}
				// PlanScan signs the splits in its response, so its request contains no signed value.
				if hands != rule.ReturnsSigned && method.Name() != "PlanScan" {
					t.Errorf("%s: its request has signed values: %v, and its rule says %v", method.FullName(), hands,
						rule.ReturnsSigned)
				}
			}
		}
		return true
	})
	for _, field := range known {
		if !seen[field] {
			t.Errorf("there is no field %s", field)
		}
	}
	if !RuleOf("/sheaf.record.v1.RecordService/PlanScan").ReturnsSigned {
		t.Error("the splits of PlanScan are not signed")
	}
}

// leaves returns all fields that are not messages themselves, in a message and in the messages nested in it.
func leaves(m protoreflect.MessageDescriptor, above []string) (all []string) {
	name := strings.TrimPrefix(string(m.FullName()), "sheaf.record.v1.")
	if slices.Contains(above, name) {
		return nil
	}
	for i := range m.Fields().Len() {
		field := m.Fields().Get(i)
		if field.Message() != nil {
			all = append(all, leaves(field.Message(), append(above, name))...)
		} else {
			all = append(all, name+"."+string(field.Name()))
		}
	}
	return all
}
