package v1alpha1_test

var recordTenantCases = []badCase{
	{field: "spec", value: nil, says: "Required value"},
	{field: "spec/storeRef", value: nil, says: "Required value"},
	{field: "spec/storeRef/name", value: "Quotes", says: "must be that of a RecordStore of this namespace"},
	{field: "spec/storeRef/name", value: "other", update: true,
		says: "storeRef cannot be changed: make a new RecordTenant"},

	{field: "spec/prefix", value: nil, says: "Required value"},
	{field: "spec/prefix", value: "", says: "at least 1 chars long"},
	{field: "spec/prefix", value: ".a", says: "do not begin with a dot"},
	{field: "spec/prefix", value: "a/*", says: "names of groups hold letters"},
	{field: "spec/prefix", value: letters(254), says: "may not be more than 253"},
	{field: "spec/prefix", value: "team-b-", update: true, says: "prefix cannot be changed: make a new RecordTenant"},

	{field: "spec/quotas", value: nil, says: "Required value"},
	{field: "spec/quotas", value: fields{}, says: "give one quota at least"},
	{field: "spec/quotas/storedBytes", value: "-5Gi", says: "storedBytes must be a number with a unit, from 1Mi to 1Ei"},
	{field: "spec/quotas/storedBytes", value: "0", says: "storedBytes must be a number with a unit, from 1Mi to 1Ei"},
	{field: "spec/quotas/storedBytes", value: "much", says: "storedBytes must be"},
	{field: "spec/quotas/records", value: 0, says: "should be greater than or equal to 1"},
	{field: "spec/quotas/records", value: -1, says: "should be greater than or equal to 1"},
	{field: "spec/quotas/callsPerSecond", value: -1, says: "should be greater than or equal to 1"},
	{field: "spec/quotas/bytesPerSecond", value: "10",
		says: "bytesPerSecond must be a number with a unit, from 1Ki to 1Ti"},
	{field: "spec/quotas/bytesPerSecond", value: "2Ti",
		says: "bytesPerSecond must be a number with a unit, from 1Ki to 1Ti"},
	{field: "spec/quotas/groups", value: 0, says: "should be greater than or equal to 1"},
	{field: "spec/quotas/callsAtOnce", value: 0, says: "should be greater than or equal to 1"},
}
