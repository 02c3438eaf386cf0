package gateway_test

import (
	"testing"
	"testing/synctest"

	"google.golang.org/grpc/codes"

	"sheaf.dev/sheaf/client/recordv1"
	"sheaf.dev/sheaf/internal/gateway"
)

func TestVerifyReadsEveryCopy(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t, hash(1), gateway.Config{}, "a", "b", "c")
		verify := func() (*recordv1.VerifyResponse, error) {
			return c.admin.Verify(c.ctx, &recordv1.VerifyRequest{Group: "0"})
		}
		out, err := verify()
		if err != nil || out.GetBytes() != 100 || len(out.GetDamages()) != 0 {
			t.Fatalf("one copy: %v, %v", out, err)
		}
		shareGroups(c, "a", 1, "a", "b", "c")
		if out, err = verify(); err != nil || out.GetBytes() != 300 || out.GetEntries() != 30 || len(out.GetCopies()) != 3 ||
			len(out.GetDamages()) != 0 {
			t.Fatalf("three copies: %v, %v", out, err)
		}
		c.shards["c"].mu.Lock()
		c.shards["c"].bad = []*recordv1.Damage{{Group: "0", File: "segment-000000000001", OffsetBytes: 7,
			What: "entry content is bad"}}
		c.shards["c"].mu.Unlock()
		out, err = verify()
		if err != nil || len(out.GetDamages()) != 1 || out.GetDamages()[0].GetShard() != "c" ||
			out.GetDamages()[0].GetOffsetBytes() != 7 {
			t.Fatalf("a copy that does not lead is bad: %v, %v", out, err)
		}
		for i, want := range []int32{0, 0, 1} {
			if got := out.GetCopies()[i]; got.GetDamages() != want || got.GetShard() != string("abc"[i]) ||
				got.GetError() != "" {
				t.Errorf("copy %d: %v", i, got)
			}
		}
		fired := c.shards["b"].failFirst(1, "Verify", refuse(codes.Unavailable, "GROUP_LOADING"))
		out, err = verify()
		if err != nil || *fired != 1 || out.GetCopies()[1].GetError() == "" || len(out.GetDamages()) != 1 ||
			out.GetBytes() != 200 {
			t.Fatalf("a copy that cannot be checked: %v, %v", out, err)
		}
		for _, s := range c.shards {
			s.refuseAll(refuse(codes.Unavailable, "GROUP_LOADING"))
		}
		_, err = verify()
		wantError(t, err, codes.Unavailable, "GROUP_LOADING")
	})
}
