package v1alpha1_test

// certificateOf replaces the minimal grant's subject with a caller who has a certificate.
var certificateOf = fields{"spec/subjects/0": fields{"kind": "Certificate", "name": "a"}}

// userOf replaces the minimal grant's subject with a user who has an issuer's token.
var userOf = fields{"spec/subjects/0": fields{"kind": "OIDC", "issuer": "https://id.example.org", "name": "ada"}}

var recordGrantCases = []badCase{
	{field: "spec", value: nil, says: "Required value"},
	{field: "spec/storeRef", value: nil, says: "Required value"},
	{field: "spec/storeRef/name", value: nil, says: "Required value"},
	{field: "spec/storeRef/name", value: "Quotes", says: "must be that of a RecordStore of this namespace"},
	{field: "spec/storeRef/name", value: "other", update: true,
		says: "storeRef cannot be changed: make a new RecordGrant"},

	{field: "spec/subjects", value: nil, says: "Required value"},
	{field: "spec/subjects", value: []fields{}, says: "at least 1 items"},
	{field: "spec/subjects", value: subjects(65), says: "must have at most 64 items"},
	{field: "spec/subjects/0/kind", value: nil, says: "Required value"},
	{field: "spec/subjects/0/kind", value: "User", says: "Unsupported value"},
	{field: "spec/subjects/0/kind", value: "Certificate", at: "spec.subjects[0].name",
		says: "need a name, and other kinds have none"},
	{field: "spec/subjects/0/name", value: "a", says: "need a name, and other kinds have none"},
	{field: "spec/subjects/0/name", value: nil, with: certificateOf, says: "need a name, and other kinds have none"},
	{field: "spec/subjects/0/name", value: "", with: certificateOf, says: "at least 1 chars long"},
	{field: "spec/subjects/0/name", value: "a/b", with: certificateOf, says: "must be letters, digits"},
	{field: "spec/subjects/0/name", value: letters(254), with: certificateOf, says: "may not be more than 253"},
	{field: "spec/subjects/0/name", value: nil, with: userOf, says: "need a name, and other kinds have none"},
	{field: "spec/subjects/0/name", value: "a\nb", with: userOf, says: "without control characters"},
	{field: "spec/subjects/0/issuer", value: nil, with: userOf, says: "need an issuer, and other kinds have none"},
	{field: "spec/subjects/0/issuer", value: "https://a", with: certificateOf,
		says: "need an issuer, and other kinds have none"},
	{field: "spec/subjects/0/issuer", value: "http://id.example.org", with: userOf, says: "begins with https://"},
	{field: "spec/subjects/0/issuer", value: "https://" + letters(505), with: userOf, says: "may not be more than 512"},
	{field: "spec/subjects/0/namespace", value: nil, says: "need a namespace, and other kinds have none"},
	{field: "spec/subjects/0/namespace", value: "prod", with: certificateOf,
		says: "need a namespace, and other kinds have none"},
	{field: "spec/subjects/0/namespace", value: "", says: "at least 1 chars long"},
	{field: "spec/subjects/0/namespace", value: "Prod", says: "a namespace's name holds"},
	{field: "spec/subjects/0/namespace", value: letters(64), says: "may not be more than 63"},

	{field: "spec/verbs", value: nil, says: "Required value"},
	{field: "spec/verbs", value: []string{}, says: "at least 1 items"},
	{field: "spec/verbs/0", value: "read", says: "Unsupported value"},
	{field: "spec/verbs", value: []string{"get", "get"}, at: "spec.verbs[1]", says: "Duplicate value"},

	{field: "spec/groups", value: nil, says: "Required value"},
	{field: "spec/groups", value: fields{}, says: "give either all: true, or names, prefixes or both"},
	{field: "spec/groups", value: fields{"all": false}, says: "give either all: true, or names, prefixes or both"},
	{field: "spec/groups/all", value: true, at: "spec.groups", says: "give either all: true, or names, prefixes or both"},
	{field: "spec/groups/names", value: []string{}, says: "at least 1 items"},
	{field: "spec/groups/names", value: numbered("g%d", 257), says: "must have at most 256 items"},
	{field: "spec/groups/names", value: []string{"a", "a"}, at: "spec.groups.names[1]", says: "Duplicate value"},
	{field: "spec/groups/names/0", value: "", says: "at least 1 chars long"},
	{field: "spec/groups/names/0", value: ".a", says: "do not begin with a dot"},
	{field: "spec/groups/names/0", value: letters(254), says: "may not be more than 253"},
	{field: "spec/groups/prefixes", value: []string{}, says: "at least 1 items"},
	{field: "spec/groups/prefixes", value: numbered("g%d", 257), says: "must have at most 256 items"},
	{field: "spec/groups/prefixes/0", value: "a*", says: "do not begin with a dot"},
}

// subjects returns n subjects.
func subjects(n int) (all []fields) {
	for _, name := range numbered("c%d", n) {
		all = append(all, fields{"kind": "Certificate", "name": name})
	}
	return all
}
