package v1alpha1_test

var recordBackupCases = []badCase{
	{field: "spec", value: nil, says: "Required value"},
	{field: "spec/archiveRef", value: nil, says: "Required value"},
	{field: "spec/archiveRef/name", value: nil, says: "Required value"},
	{field: "spec/archiveRef/name", value: "", says: "at least 1 chars long"},
	{field: "spec/archiveRef/name", value: "Quotes", says: "must be that of a RecordArchive of this namespace"},
	{field: "spec/archiveRef/name", value: letters(254), says: "may not be more than 253"},
	{field: "spec/archiveRef/name", value: "other", update: true,
		says: "archiveRef cannot be changed: make a new RecordBackup"},
	{field: "spec/ttl", value: "59m", says: "ttl must be a duration from 1h to 876000h"},
	{field: "spec/ttl", value: "90d", says: "such as 2160h"},
	{field: "spec/ttl", value: letters(33), says: "may not be more than 32"},
	{field: "spec/ttl", value: "2h", update: true, says: "ttl cannot be changed: make a new RecordBackup"},
}
