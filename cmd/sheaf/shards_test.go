package main

import (
	"fmt"
	"strings"
	"testing"
)

// A shard is drained, appears as such in the list, and later accepts groups again. The records remain readable
// throughout. A command that cannot be carried out exits with code 1 and prints the reason.
func TestShards(t *testing.T) {
	t.Parallel()
	p := startDev(t, t.TempDir(), "--groups", "4", "--shards", "2")
	for id := range 8 {
		p.do(t, "text", "put", fmt.Sprint(id)).Want(t, 0)
	}
	listed := func(shard string) (row placedRow) {
		t.Helper()
		var rows []placedRow
		p.do(t, "", "shards", "list", "-o", "json").Want(t, 0).JSON(t, &rows)
		for _, row = range rows {
			if row.Name == shard {
				return row
			}
		}
		t.Fatalf("no shard %s: %+v", shard, rows)
		return row
	}
	if row := listed("shard-1"); !row.Alive || row.Placement != "Active" || row.Groups != 2 {
		t.Errorf("%+v", row)
	}
	p.do(t, "", "shards", "remove", "shard-1").Want(t, 1).Has(t, "stop it first")
	p.do(t, "", "shards", "drain", "shard-1").Want(t, 0).Has(t, "2 groups left").Has(t, "sheaf shards remove shard-1")
	if row := listed("shard-1"); row.Placement != "Draining" || row.Groups != 0 {
		t.Errorf("%+v", row)
	}
	for id := range 8 {
		if o := p.do(t, "", "get", fmt.Sprint(id)).Want(t, 0); o.Stdout != "text" {
			t.Errorf("record %d: %q", id, o.Stdout)
		}
	}
	if o := p.do(t, "", "doctor").Want(t, 0); !strings.Contains(o.Stdout, "sheaf shards remove shard-1") {
		t.Errorf("%s", o.Stdout)
	}
	p.do(t, "", "shards", "drain", "shard-0").Want(t, 1).Has(t, "2 draining").Has(t, "sheaf shards activate shard-0")
	for _, shard := range []string{"shard-0", "shard-1"} {
		p.do(t, "", "shards", "activate", shard).Want(t, 0)
	}
	p.do(t, "", "shards", "cordon", "shard-1").Want(t, 0)
	if o := p.do(t, "", "shards", "list").Want(t, 0); !strings.Contains(o.Stdout, "Cordoned") {
		t.Errorf("%s", o.Stdout)
	}
	p.do(t, "", "shards", "cordon", "shard-7").Want(t, 3).Has(t, "sheaf shards list")
	p.do(t, "", "shards").Want(t, 2).Has(t, "drain")
}
