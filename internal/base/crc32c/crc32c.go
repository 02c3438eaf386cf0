// Package crc32c computes CRC-32C, the checksum that protects records, messages between shards, and every file on a
// volume.
package crc32c

import "hash/crc32"

// Table is the table of the Castagnoli polynomial.
var Table = crc32.MakeTable(crc32.Castagnoli)

// Of returns the CRC-32C of b.
func Of(b []byte) uint32 { return crc32.Update(0, Table, b) }
