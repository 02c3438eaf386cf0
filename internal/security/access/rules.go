// Package access decides who may make which call. A decision depends only on the caller, the call and the table of
// grants. The caller is identified by its connection or by a token. A list in this package says what each call
// requires, and the table says what is granted. A call that is not in the list is always refused. Package guard
// applies the decisions to each call of a server. See docs/adr/0041-grants-decide-at-gateways-and-shards.md.
package access

import (
	"google.golang.org/grpc/codes"
	healthv1 "google.golang.org/grpc/health/grpc_health_v1"
	reflectionv1 "google.golang.org/grpc/reflection/grpc_reflection_v1"
	reflectionv1alpha "google.golang.org/grpc/reflection/grpc_reflection_v1alpha"
	"google.golang.org/grpc/status"

	archivev1 "sheaf.dev/sheaf/api/sheaf/archive/v1"
	peerv1 "sheaf.dev/sheaf/api/sheaf/peer/v1"
	"sheaf.dev/sheaf/client/batchv1"
	"sheaf.dev/sheaf/client/call/reason"
	"sheaf.dev/sheaf/client/recordv1"
	"sheaf.dev/sheaf/internal/security/identity"
)

// Audience is the set of callers who may make a call. The zero value is the empty set.
type Audience uint8

// These are the audiences.
const (
	Nobody   Audience = iota
	Anyone            // everyone who can connect, whether identified or not
	Known             // every caller that is identified, except the archiver
	Granted           // callers with a grant for the verb in the rule, administrators, and the store's own processes
	Shards            // shards of the store
	Archiver          // the archiver of the store
	Gateways          // gateways of the store
)

// String describes the audience for error messages.
func (a Audience) String() string {
	return [...]string{"nobody", "anyone", "callers of the store", "those who are granted it", "shards of the store",
		"the archiver of the store", "gateways of the store"}[a]
}

// Where says in which groups the caller must be allowed to use the verb of a call.
type Where uint8

// These are the values of Where.
const (
	// InRequest means that the request determines the groups. The handler calls Call.May for each of them before it
	// looks anything up. A request may name many groups.
	InRequest Where = iota
	// InGroup means the group in the request's field "group", or all groups if that field is empty.
	InGroup
	// InAll means all groups.
	InAll
)

// Rule describes what one call requires.
type Rule struct {
	For   Audience
	Verb  Verb  // used only if For is Granted
	Where Where // used only if For is Granted
	// OrVerb is a second verb of which the request needs one. It is NoVerb if there is none.
	OrVerb Verb
	// Lasting means that the call may stay open for a long time, and that the guard makes the decision again whenever
	// the table changes.
	Lasting bool
	// Apart means that each message of the call is decided separately.
	Apart bool
	// ReturnsSigned means that the request or the response contains values that clients send back, such as a cursor.
	// These values are signed for the caller.
	ReturnsSigned bool
	// ArchiverToo means that the archiver may also make the call. Otherwise it may make only calls whose audience is
	// Archiver or Anyone.
	ArchiverToo bool
}

func granted(v Verb, w Where) Rule { return Rule{For: Granted, Verb: v, Where: w} }

func (r Rule) returnsSigned() Rule {
	r.ReturnsSigned = true
	return r
}

func lasting(v Verb, w Where) Rule { return Rule{For: Granted, Verb: v, Where: w, Lasting: true} }

// These are the methods of Arrow Flight that Sheaf serves.
const (
	flightGet    = reason.FlightService + "DoGet"
	flightInfo   = reason.FlightService + "GetFlightInfo"
	flightPut    = reason.FlightService + "DoPut"
	flightAction = reason.FlightService + "DoAction"
)

// rules contains the rule for each method. The key is the full name of the method, as in /package.Service/Method.
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
	// The response to PlanScan contains splits, which clients send back in Scan requests.
	recordv1.RecordService_PlanScan_FullMethodName: granted(Scan, InRequest).returnsSigned(),
	recordv1.RecordService_Scan_FullMethodName:     lasting(Scan, InRequest).returnsSigned(),
	recordv1.RecordService_Watch_FullMethodName:    lasting(Watch, InRequest).returnsSigned(),

	// A caller who may read the status of all groups gets the routing of all groups. Any other caller gets only the
	// routing of those groups in which it has some right. The archiver may read all groups, and needs the routing to
	// find their shards.
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

	flightGet:  {For: Granted, Verb: Get, OrVerb: Scan, Lasting: true, ReturnsSigned: true},
	flightInfo: granted(Scan, InRequest).returnsSigned(),
	flightPut:  {For: Granted, Verb: Put, Lasting: true, Apart: true},
	// The action "routing" returns what WatchRouting returns.
	flightAction: {For: Known},
	// These calls are answered UNIMPLEMENTED.
	reason.FlightService + "Handshake":      {For: Known},
	reason.FlightService + "ListFlights":    {For: Known},
	reason.FlightService + "PollFlightInfo": {For: Known},
	reason.FlightService + "GetSchema":      {For: Known},
	reason.FlightService + "DoExchange":     {For: Known},
	reason.FlightService + "ListActions":    {For: Known},

	recordv1.AccessService_WhoAmI_FullMethodName: {For: Known},
	recordv1.AccessService_CanI_FullMethodName:   {For: Known},

	peerv1.PeerService_Exchange_FullMethodName:     {For: Shards},
	peerv1.PeerService_FetchGroup_FullMethodName:   {For: Shards},
	peerv1.PeerService_FetchEntries_FullMethodName: {For: Shards},
	peerv1.PeerService_FetchBlob_FullMethodName:    {For: Shards},

	// Gateways decide which groups a view may have before they ask shards to hold them.
	peerv1.ViewCopyService_HoldView_FullMethodName: {For: Gateways},
	// A view is closed and renewed by whoever may scan all its groups.
	batchv1.ViewService_OpenView_FullMethodName:  granted(Scan, InRequest),
	batchv1.ViewService_RenewView_FullMethodName: granted(Scan, InRequest),
	batchv1.ViewService_ListViews_FullMethodName: granted(Scan, InRequest),
	batchv1.ViewService_CloseView_FullMethodName: granted(Scan, InRequest),

	// These calls return every record of the store, and only the archiver needs them. They are refused even to
	// administrators, who can read all records through other calls.
	archivev1.ArchiveService_Follow_FullMethodName:     {For: Archiver},
	archivev1.ArchiveService_FetchGroup_FullMethodName: {For: Archiver},
	archivev1.ArchiveService_FetchBlob_FullMethodName:  {For: Archiver},
	// This call reads nothing. When an archive ends, the certificate of its archiver may be gone already.
	archivev1.ArchiveService_EndHistory_FullMethodName: {For: Granted, Verb: AdminWrite, Where: InAll, ArchiverToo: true},

	// The source of a restore lists the groups of the new store, whose gateways write the list into etcd.
	archivev1.RestoreService_ListGroups_FullMethodName: {For: Gateways},
}

// openToCallers are the verbs that every caller with a certificate of the store may use if the store has no table.
const openToCallers verbs = 1<<Get | 1<<Put | 1<<Delete | 1<<Scan | 1<<Watch

// RuleOf returns the rule for a call with the given full name. For an unknown name it returns the zero Rule, with
// which the call is always refused.
func RuleOf(method string) Rule { return rules[method] }

// Admit makes the part of the decision that depends only on the name of the call. Later, Call.May decides about
// grants in individual groups. If c is nil, the store has no table. The errors have the code UNAUTHENTICATED or
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
	case rule.For == Shards && caller.isShard(), rule.For == Gateways && caller.isGateway():
		return nil
	case rule.For == Granted && c == nil && !caller.MayAll() && !openToCallers.has(rule.Verb):
		return status.Errorf(codes.PermissionDenied,
			"%s may not call %s, which is for administrators of the store and its own processes", caller, method)
	case rule.For == Granted && (c == nil || c.maySomewhere(caller, rule.Verb)),
		rule.OrVerb != NoVerb && c.maySomewhere(caller, rule.OrVerb):
		return nil
	case rule.For == Granted:
		return status.Errorf(codes.PermissionDenied, "%s may not call %s: no grant of table %d allows it to %s anywhere",
			caller, method, c.version, rule.Verb)
	}
	return status.Errorf(codes.PermissionDenied, "%s may not call %s, which is for %s", caller, method, rule.For)
}

// OfStore returns the caller for an identity from a certificate. It returns PERMISSION_DENIED if the certificate
// belongs to a different store.
func OfStore(store identity.Store, id identity.Identity, method string) (Caller, error) {
	if id.Store != store {
		return Caller{}, status.Errorf(codes.PermissionDenied, "%s may not call %s of the store %s: it is of another store",
			id, method, store.UID)
	}
	return Certified(id), nil
}
