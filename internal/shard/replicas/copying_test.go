package replicas

import (
	"testing"
	"time"

	"sheaf.dev/sheaf/client/recordv1"
)

func TestTheRateOfACopyIsThatOfItsLastSeconds(t *testing.T) {
	now := time.Unix(0, 0)
	c := &Copying{now: func() time.Time { return now }}
	describe := func() *recordv1.Copy {
		p := &recordv1.Copy{}
		c.Describe(p)
		return p
	}
	if p := describe(); p.GetPhase() != recordv1.CopyPhase_COPY_PHASE_WAITING || p.EtaSeconds != nil {
		t.Errorf("before it begins: %v", p)
	}
	c.Begin("a", 1000_000)
	c.Have(400_000) // bytes from an earlier attempt, which are ignored in the rate
	for range 40 {
		now = now.Add(time.Second)
		c.Add(1000)
	}
	if p := describe(); p.GetPhase() != recordv1.CopyPhase_COPY_PHASE_FILES || p.GetBytesDone() != 440_000 ||
		p.GetBytesTotal() != 1000_000 ||
		p.GetBytesPerSecond() != 1000 || p.GetEtaSeconds() != 560 || p.GetFrom() != "a" {
		t.Errorf("at 1,000 a second: %v", p)
	}
	for range 20 {
		now = now.Add(time.Second)
		c.Add(10_000)
	}
	if p := describe(); p.GetBytesPerSecond() != 10_000 || p.GetEtaSeconds() != 36 {
		t.Errorf("at 10,000 a second: %v", p)
	}
	c.Have(700_000) // one of the files was already present
	if p := describe(); p.GetBytesPerSecond() != 10_000 || p.GetBytesDone() != 700_000 {
		t.Errorf("with what was here: %v", p)
	}
	now = now.Add(time.Hour)
	if p := describe(); p.GetBytesPerSecond() > 100 {
		t.Errorf("after an hour without a byte: %v", p)
	}
	c.Waits()
	if p := describe(); p.GetPhase() != recordv1.CopyPhase_COPY_PHASE_WAITING || p.GetBytesDone() != 700_000 ||
		p.GetBytesPerSecond() != 0 {
		t.Errorf("while it waits: %v", p)
	}
}
