package observed

import (
	"context"
	"testing"

	"sheaf.dev/sheaf/client/recordv1"
)

// The rate of a load is shown in percent of the device's rate, which is the rate that a Job has measured or, without
// such a Job, the rate that the shard has measured.
func TestDecideShardLoadRate(t *testing.T) {
	const loading, serving = recordv1.ShardState_SHARD_STATE_LOADING, recordv1.ShardState_SHARD_STATE_SERVING
	o := serveWell()
	loadOf := func() *recordv1.Load {
		return &recordv1.Load{BytesTotal: 1 << 30, BytesDone: 1 << 29, BytesPerSecond: 900 << 20}
	}
	for _, test := range []struct {
		name    string
		state   recordv1.ShardState
		bytes   int64
		job     int64
		sampled float64
		rate    int64
		percent int32
		text    string
	}{
		{"nobody has measured", loading, 1 << 30, 0, 0, 900 << 20, 0, "50% 900MiB/s"},
		{"the shard has", loading, 1 << 30, 0, 1000 << 20, 900 << 20, 90, "50% 900MiB/s (90% of the device)"},
		{"a Job has", loading, 1 << 30, 1800 << 20, 1000 << 20, 900 << 20, 50,
			"50% 900MiB/s (50% of the device)"},
		{"from the page cache", loading, 1 << 30, 300 << 20, 0, 900 << 20, 300,
			"50% 900MiB/s (300% of the device)"},
		{"from nowhere", loading, 1 << 30, 1, 0, 900 << 20, 9999, "50% 900MiB/s (9999% of the device)"},
		{"loaded", serving, 1 << 30, 1800 << 20, 0, 900 << 20, 50, ""},
		{"too little to say anything", serving, 1 << 20, 1800 << 20, 0, 0, 0, ""},
	} {
		load := loadOf()
		o.Report.Shard.State, o.Report.Shard.Load, o.DeviceRate, o.Last.LoadBytesPerSecond = test.state, load, test.job, 0
		load.BytesTotal, load.BytesDone, load.DeviceBytesPerSecond = test.bytes, test.bytes/2, test.sampled
		got := Decide(o)
		if got.LoadBytesPerSecond != test.rate || got.LoadDevicePercent != test.percent || got.Load != test.text {
			t.Errorf("%s: %d bytes/s, %d%%, %q; want %d, %d, %q", test.name, got.LoadBytesPerSecond, got.LoadDevicePercent,
				got.Load, test.rate, test.percent, test.text)
		}
	}
	// While the shard does not answer, the rate that it last reported is kept. Small changes of the rate are not
	// written.
	o.Report.Shard.Load, o.DeviceRate = loadOf(), 1800<<20
	o.Last = Decide(o)
	o.Report.Shard.Load.BytesPerSecond = 880 << 20
	if got := Decide(o); got.LoadBytesPerSecond != 900<<20 || got.LoadDevicePercent != 50 {
		t.Errorf("2 %% slower: %d, %d%%", got.LoadBytesPerSecond, got.LoadDevicePercent)
	}
	o.Report, o.ReportErr = nil, context.DeadlineExceeded
	if got := Decide(o); got.LoadBytesPerSecond != 900<<20 || got.LoadDevicePercent != 50 {
		t.Errorf("silent: %d, %d%%", got.LoadBytesPerSecond, got.LoadDevicePercent)
	}
}
