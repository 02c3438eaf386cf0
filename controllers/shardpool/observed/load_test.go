package observed

import (
	"context"
	"testing"

	"sheaf.dev/sheaf/api/v1alpha1"
	"sheaf.dev/sheaf/controllers/fleet"
)

// The rate of a load is shown in percent of the device's rate: of the rate that a Job has measured, or else of the one
// that the shard has measured.
func TestDecideShardLoadRate(t *testing.T) {
	o := serveWell()
	load := fleet.LoadReport{BytesTotal: 1 << 30, BytesDone: 1 << 29, BytesPerSecond: 900 << 20}
	for _, test := range []struct {
		name    string
		state   v1alpha1.ShardState
		bytes   int64
		job     int64
		sampled float64
		rate    int64
		percent int32
		text    string
	}{
		{"nobody has measured", v1alpha1.ShardLoading, 1 << 30, 0, 0, 900 << 20, 0, "50% 900MiB/s"},
		{"the shard has", v1alpha1.ShardLoading, 1 << 30, 0, 1000 << 20, 900 << 20, 90, "50% 900MiB/s (90% of the device)"},
		{"a Job has", v1alpha1.ShardLoading, 1 << 30, 1800 << 20, 1000 << 20, 900 << 20, 50,
			"50% 900MiB/s (50% of the device)"},
		{"from the page cache", v1alpha1.ShardLoading, 1 << 30, 300 << 20, 0, 900 << 20, 300,
			"50% 900MiB/s (300% of the device)"},
		{"from nowhere", v1alpha1.ShardLoading, 1 << 30, 1, 0, 900 << 20, 9999, "50% 900MiB/s (9999% of the device)"},
		{"loaded", v1alpha1.ShardServing, 1 << 30, 1800 << 20, 0, 900 << 20, 50, ""},
		{"too little to say anything", v1alpha1.ShardServing, 1 << 20, 1800 << 20, 0, 0, 0, ""},
	} {
		o.Report.State, o.Report.Load, o.DeviceRate, o.Last.LoadBytesPerSecond = test.state, load, test.job, 0
		o.Report.Load.BytesTotal, o.Report.Load.BytesDone, o.Report.Load.DeviceBytesPerSecond = test.bytes, test.bytes/2,
			test.sampled
		got := Decide(o)
		if got.LoadBytesPerSecond != test.rate || got.LoadDevicePercent != test.percent || got.Load != test.text {
			t.Errorf("%s: %d bytes/s, %d%%, %q; want %d, %d, %q", test.name, got.LoadBytesPerSecond, got.LoadDevicePercent,
				got.Load, test.rate, test.percent, test.text)
		}
	}
	// The reported rate remains while the shard is silent, and changes in steps.
	o.Report.Load, o.DeviceRate = load, 1800<<20
	o.Last = Decide(o)
	o.Report.Load.BytesPerSecond = 880 << 20
	if got := Decide(o); got.LoadBytesPerSecond != 900<<20 || got.LoadDevicePercent != 50 {
		t.Errorf("2 %% slower: %d, %d%%", got.LoadBytesPerSecond, got.LoadDevicePercent)
	}
	o.Report, o.ReportErr = nil, context.DeadlineExceeded
	if got := Decide(o); got.LoadBytesPerSecond != 900<<20 || got.LoadDevicePercent != 50 {
		t.Errorf("silent: %d, %d%%", got.LoadBytesPerSecond, got.LoadDevicePercent)
	}
}
