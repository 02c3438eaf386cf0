package access

import (
	"slices"
	"strings"
	"testing"

	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/reflect/protoregistry"
)

// These lists contain the scalar fields of requests, named by message and field. There is one list for each source of
// the values.
var (
	// signedFields are opaque values from earlier responses. Each value is signed for the caller who received it.
	signedFields = []string{"ListVersionsRequest.page_token", "ScanRequest.cursor", "ScanRequest.split",
		"WatchRequest.cursor"}
	// plainFields are plain values from earlier responses. A version names a state of a record in the group about which
	// access is decided, and is looked up after the decision. An epoch says which routing a client knows, and is only a
	// hint.
	plainFields = []string{
		"DeleteRequest.routing_epoch", "DownloadRequest.routing_epoch", "DownloadRequest.version", "GetRequest.routing_epoch",
		"GetRequest.version",
		"ListVersionsRequest.routing_epoch", "PutRequest.routing_epoch", "ScanRequest.routing_epoch",
		"UploadHeader.routing_epoch",
		"WatchRoutingRequest.known_epoch", "WriteCondition.if_version",
		// The UUID only prevents a call from deleting another group with the same name, which the caller may also
		// delete.
		"DeleteGroupRequest.group_uuid",
		// A list's page token holds the name after which the list continues. Callers of these lists may see all names.
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

// TestWhatClientsReturnIsSigned checks that each field of a request is either signed, or listed above as a field that
// needs no signature. A new field has to be added to one of the lists.
func TestWhatClientsReturnIsSigned(t *testing.T) {
	known := slices.Concat(signedFields, plainFields, chosenFields)
	seen := map[string]bool{}
	protoregistry.GlobalFiles.RangeFiles(func(f protoreflect.FileDescriptor) bool {
		if f.Package() != "sheaf.record.v1" {
			return true // only shards call PeerService
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
				// The signed values of PlanScan are the splits in its response, so its request has none.
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

// leaves returns the fields of a message that are not messages, including those of nested messages.
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
