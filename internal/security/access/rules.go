// Package access decides who may make which call. Decisions use no input other than a caller, a call and a Table. The
// connection or a token identifies the caller, one list says what each call needs, and the Table says what is granted.
// Nobody may make a call that is not in the list. Package guard applies the decision to each call of a server. See
// docs/adr/0041-grants-decide-at-gateways-and-shards.md.
package access

import (
	"google.golang.org/grpc/codes"
	healthv1 "google.golang.org/grpc/health/grpc_health_v1"
	reflectionv1 "google.golang.org/grpc/reflection/grpc_reflection_v1"
	reflectionv1alpha "google.golang.org/grpc/reflection/grpc_reflection_v1alpha"
	"google.golang.org/grpc/status"

	archivev1 "sheaf.dev/sheaf/api/sheaf/archive/v1"
	peerv1 "sheaf.dev/sheaf/api/sheaf/peer/v1"
	"sheaf.dev/sheaf/client/recordv1"
	"sheaf.dev/sheaf/internal/security/identity"
)

// Audience says who may make a call. The zero value allows nobody.
type Audience uint8

// These are the audiences.
const (
	Nobody   Audience = iota
	Anyone            // everyone who can connect, identified or not
	Known             // every identified caller except the archiver
	Granted           // callers with a grant for the rule's verb, administrators, and the store's own processes
	Shards            // shards of the store
	Archiver          // the archiver of the store
)

// String describes the audience for error messages.
func (a Audience) String() string {
	return [...]string{"nobody", "anyone", "callers of the store", "those who are granted it", "shards of the store",
		"the archiver of the store"}[a]
}

// Where says in which groups a call needs its verb.
type Where uint8

// These are the values of Where.
const (
	// InRequest means that the handler knows the groups from the request, and calls Call.May before it looks anything up.
	// The request may contain keys of many groups.
	InRequest Where = iota
	// InGroup means the group in the field group of the request, or all groups if that field is empty.
	InGroup
	// InAll means all groups.
	InAll
)

// Rule says what one call requires.
type Rule struct {
	For   Audience
	Verb  Verb  // only with Granted
	Where Where // only with Granted
	// Lasting means that the guard repeats the decision while the call is open.
	Lasting bool
	// Apart means that the guard decides about each message of the call individually.
	Apart bool
	// ReturnsSigned means that the request or the response contains values that callers send back, such as a cursor.
	// These values are signed for the caller.
	ReturnsSigned bool
	// ArchiverToo means that the archiver may make the call, too. Without ArchiverToo, the archiver may make only calls
	// for Archiver and Anyone.
	ArchiverToo bool
}

func granted(v Verb, w Where) Rule { return Rule{For: Granted, Verb: v, Where: w} }

func (r Rule) returnsSigned() Rule {
	r.ReturnsSigned = true
	return r
}

func lasting(v Verb, w Where) Rule { return Rule{For: Granted, Verb: v, Where: w, Lasting: true} }

// rules maps the full name of each method, as in /package.Service/Method, to its rule.
var rules = map[string]Rule{
	healthv1.Health_Check_FullMethodName: {For: Anyone},
	healthv1.Health_List_FullMethodName:  {For: Anyone},
	healthv1.Health_Watch_FullMethodName: {For: Anyone},

	reflectionv1.ServerReflection_ServerReflectionInfo_FullMethodName:      {For: Known},
	reflectionv1alpha.ServerReflection_ServerReflectionInfo_FullMethodName: {For: Known},

	recordv1.RecordService_Get_FullMethodName:          granted(Get, InRequest),
	recordv1.RecordService_BatchGet_FullMethodName:     granted(Get, InRequest),
	recordv1.RecordService_Download_FullMethodName:     lasting(Get, InRequest),
	recordv1.RecordService_ListVersions_FullMethodName: granted(Get, InRequest).returnsSigned(),
	recordv1.RecordService_Find_FullMethodName:         granted(Get, InRequest),
	recordv1.RecordService_Put_FullMethodName:          granted(Put, InRequest),
	recordv1.RecordService_BatchPut_FullMethodName:     {For: Granted, Verb: Put, Lasting: true, Apart: true},
	recordv1.RecordService_Upload_FullMethodName:       lasting(Put, InRequest),
	recordv1.RecordService_Delete_FullMethodName:       granted(Delete, InRequest),
	// The response to PlanScan has splits, which callers send back in Scan requests.
	recordv1.RecordService_PlanScan_FullMethodName: granted(Scan, InRequest).returnsSigned(),
	recordv1.RecordService_Scan_FullMethodName:     lasting(Scan, InRequest).returnsSigned(),
	recordv1.RecordService_Watch_FullMethodName:    lasting(Watch, InRequest).returnsSigned(),

	// A caller who may read the status of all groups sees the routing of all groups. Other callers see the routing of
	// the groups in which they may do anything at all. The archiver may read all groups, and needs the routing to find
	// their shards.
	recordv1.RoutingService_WatchRouting_FullMethodName: {For: Known, Lasting: true, ArchiverToo: true},

	recordv1.AdminService_ListGroups_FullMethodName:     granted(AdminRead, InGroup),
	recordv1.AdminService_ListShards_FullMethodName:     granted(AdminRead, InAll),
	recordv1.AdminService_WatchLoad_FullMethodName:      lasting(AdminRead, InAll),
	recordv1.AdminService_PlanMoves_FullMethodName:      granted(AdminRead, InAll),
	recordv1.AdminService_DescribeVolume_FullMethodName: granted(AdminRead, InAll),
	recordv1.AdminService_CreateGroup_FullMethodName:    granted(AdminWrite, InGroup),
	recordv1.AdminService_DeleteGroup_FullMethodName:    granted(AdminWrite, InGroup),
	recordv1.AdminService_Verify_FullMethodName:         granted(AdminWrite, InGroup),
	recordv1.AdminService_Compact_FullMethodName:        granted(AdminWrite, InGroup),
	recordv1.AdminService_AcceptLoss_FullMethodName:     granted(AdminWrite, InGroup),
	recordv1.AdminService_SetShardState_FullMethodName:  granted(AdminWrite, InAll),
	recordv1.AdminService_RemoveShard_FullMethodName:    granted(AdminWrite, InAll),

	recordv1.AccessService_WhoAmI_FullMethodName: {For: Known},
	recordv1.AccessService_CanI_FullMethodName:   {For: Known},

	peerv1.PeerService_Exchange_FullMethodName:     {For: Shards},
	peerv1.PeerService_FetchGroup_FullMethodName:   {For: Shards},
	peerv1.PeerService_FetchEntries_FullMethodName: {For: Shards},
	peerv1.PeerService_FetchBlob_FullMethodName:    {For: Shards},

	// These calls return every record of the store. Nobody but the archiver needs them. Even an administrator is
	// refused, but can read all records with other calls.
	archivev1.ArchiveService_Follow_FullMethodName:     {For: Archiver},
	archivev1.ArchiveService_FetchGroup_FullMethodName: {For: Archiver},
	archivev1.ArchiveService_FetchBlob_FullMethodName:  {For: Archiver},
}

// openToCallers are the verbs that every caller with a certificate of the store may use in a store without a table.
const openToCallers verbs = 1<<Get | 1<<Put | 1<<Delete | 1<<Scan | 1<<Watch

// RuleOf returns the rule of a call by its full name. For an unknown name it returns the zero Rule, which allows
// nobody.
func RuleOf(method string) Rule { return rules[method] }

// Admit decides what can be decided about a call by its name alone. Call.May later decides about the grants in single
// groups. A nil Compiled means that the store has no table. Its errors have the code UNAUTHENTICATED or
// PERMISSION_DENIED, and name the caller, the call, and who may make it.
func (c *Compiled) Admit(caller *Caller, method string) error {
	rule := RuleOf(method)
	switch {
	case rule.For == Anyone:
		return nil
	case !caller.isKnown():
		return status.Errorf(codes.Unauthenticated, "%s is for %s: %s", method, rule.For, c.how())
	case caller.isEtcd():
		return status.Errorf(codes.PermissionDenied, "%s may not call %s: members of etcd call nobody but each other", caller,
			method)
	case rule.For == Archiver && caller.isArchiver(), rule.ArchiverToo && caller.isArchiver():
		return nil
	case caller.isArchiver():
		return status.Errorf(codes.PermissionDenied,
			"%s may not call %s, which is for %s: the archiver of a store calls nothing but ArchiveService and the routing",
			caller, method, rule.For)
	case rule.For == Known:
		return nil
	case rule.For == Shards && caller.isShard():
		return nil
	case rule.For == Granted && c == nil && !caller.MayAll() && !openToCallers.has(rule.Verb):
		return status.Errorf(codes.PermissionDenied,
			"%s may not call %s, which is for administrators of the store and its own processes", caller, method)
	case rule.For == Granted && (c == nil || c.maySomewhere(caller, rule.Verb)):
		return nil
	case rule.For == Granted:
		return status.Errorf(codes.PermissionDenied, "%s may not call %s: no grant of table %d allows it to %s anywhere",
			caller, method, c.version, rule.Verb)
	}
	return status.Errorf(codes.PermissionDenied, "%s may not call %s, which is for %s", caller, method, rule.For)
}

// OfStore returns the caller that a certificate identifies. It returns PERMISSION_DENIED if the certificate belongs to
// another store.
func OfStore(store identity.Store, id identity.Identity, method string) (Caller, error) {
	if id.Store != store {
		return Caller{}, status.Errorf(codes.PermissionDenied, "%s may not call %s of the store %s: it is of another store",
			id, method, store.UID)
	}
	return Certified(id), nil
}
