package observed

import (
	"fmt"
	"time"

	"google.golang.org/protobuf/proto"

	"sheaf.dev/sheaf/api/v1alpha1"
	"sheaf.dev/sheaf/client/recordv1"
	"sheaf.dev/sheaf/controllers/fleet"
)

// loadRateBytesMin is the smallest load, in bytes, from which a rate is derived. Smaller loads spend their time
// opening files rather than reading.
const loadRateBytesMin = 64 << 20

// loadRateBytesMax is a rate in bytes per second that no device reaches.
const loadRateBytesMax = 1 << 50

// believable returns rate, or 0 if no device can be that fast or rate is NaN. Converting such a value to an integer
// would give different results on different processors.
func believable(rate float64) float64 {
	if rate >= 0 && rate <= loadRateBytesMax {
		return rate
	}
	return 0
}

// Load returns the progress that the shard reports, without rates that no device can have. If a Job has measured the
// device's rate, that rate replaces the reported one, because the Job was the only user of the disk.
func (o *Shard) Load() *recordv1.Load {
	l := &recordv1.Load{}
	proto.Merge(l, o.Report.GetShard().GetLoad())
	l.BytesPerSecond, l.DeviceBytesPerSecond = believable(l.BytesPerSecond), believable(l.DeviceBytesPerSecond)
	if o.DeviceRate > 0 {
		l.DeviceBytesPerSecond = float64(o.DeviceRate)
	}
	return l
}

// loadRate fills in the speed of the current or last load.
func (o *Shard) loadRate(s *v1alpha1.ShardStatus) {
	l := o.Load()
	if l.GetBytesTotal() < loadRateBytesMin {
		s.LoadBytesPerSecond, s.LoadDevicePercent = 0, 0
		return
	}
	now := int64(l.GetBytesPerSecond())
	s.LoadBytesPerSecond = fleet.Steady(o.Last.LoadBytesPerSecond, now, now)
	l.BytesPerSecond = float64(s.LoadBytesPerSecond)
	s.LoadDevicePercent = devicePercent(l)
}

// devicePercent returns a load's rate in percent of the device's rate. It is 0 if the device's rate is unknown or the
// load is too small for a reliable rate.
func devicePercent(l *recordv1.Load) int32 {
	if l.GetBytesTotal() < loadRateBytesMin {
		return 0
	}
	return int32(min(9999, l.PercentOfDevice()))
}

func loadPercent(l *recordv1.Load) int32 {
	if l.GetBytesTotal() <= 0 {
		return 0
	}
	return int32(min(100, max(0, 100*float64(l.GetBytesDone())/float64(l.GetBytesTotal()))))
}

// LoadText returns a text such as "62% 1.9GiB/s (87% of the device) ETA 2m".
func LoadText(l *recordv1.Load) string {
	text := fmt.Sprintf("%d%% %s/s", loadPercent(l), BytesText(int64(l.GetBytesPerSecond())))
	if percent := devicePercent(l); percent > 0 {
		text += fmt.Sprintf(" (%d%% of the device)", percent)
	}
	if eta := time.Duration(l.GetEtaSeconds() * float64(time.Second)); eta > 0 {
		text += " ETA " + roundTime(eta)
	}
	return text
}

func roundTime(d time.Duration) string {
	switch {
	case d < time.Minute:
		return fmt.Sprintf("%ds", int(d.Round(time.Second)/time.Second))
	case d < time.Hour:
		return fmt.Sprintf("%dm", int(d.Round(time.Minute)/time.Minute))
	}
	return fmt.Sprintf("%dh%dm", int(d/time.Hour), int(d%time.Hour/time.Minute))
}

// BytesText returns a text such as "1.9GiB".
func BytesText(n int64) string {
	value, unit := float64(n), "B"
	for _, next := range []string{"KiB", "MiB", "GiB", "TiB", "PiB"} {
		if value < 1024 {
			break
		}
		value, unit = value/1024, next
	}
	if unit == "B" || value >= 100 {
		return fmt.Sprintf("%.0f%s", value, unit)
	}
	return fmt.Sprintf("%.1f%s", value, unit)
}
