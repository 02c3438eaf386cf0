package layouts

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"slices"

	"golang.org/x/sys/unix"
)

// deviceRateKind distinguishes a DeviceRate from other output. The operator looks for it in the output of a Job's pod.
const deviceRateKind = "sheaf.dev/device-rate"

// DeviceRate is the rate of sequential reads from the device below a folder, without the page cache.
type DeviceRate struct {
	Kind               string `json:"kind"`               // always deviceRateKind
	ReadBytesPerSecond int64  `json:"readBytesPerSecond"` // median rate over all reads of the sample file
	SampleBytes        int64  `json:"sampleBytes"`        // size of the sample file
	FileSystem         string `json:"fileSystem"`
}

const (
	rateReadings   = 3
	sampleBytesMin = 8 << 20
	samplePart     = 4 // the sample is at most 1/samplePart of the free space
)

// MeasureDevice writes a file of random bytes into a folder, reads the file several times without the page cache, and
// removes it. It treats an unknown scale as "quick".
func MeasureDevice(ctx context.Context, dir, scale string) (_ *DeviceRate, err error) {
	s := scales[scale]
	if s == nil {
		s = scales["quick"]
	}
	var free unix.Statfs_t
	if err := unix.Statfs(dir, &free); err != nil {
		return nil, fmt.Errorf("%s: %w", dir, err)
	}
	out := &DeviceRate{Kind: deviceRateKind, FileSystem: typeOf(dir)}
	out.SampleBytes = min(s.sample, int64(free.Bavail)*free.Bsize/samplePart) &^ (rawReadBytes - 1)
	if out.SampleBytes < sampleBytesMin {
		return nil, fmt.Errorf(
			"%s: the rate of the device is read from a quarter of the free room, and %d MiB of that are too little: make room "+
				"for %d MiB",
			dir, out.SampleBytes>>20, samplePart*sampleBytesMin>>20)
	}
	f, err := os.CreateTemp(dir, "sheaf-bench-rate-")
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, os.Remove(f.Name())) }()
	if err := errors.Join(writeSample(ctx, f, out.SampleBytes), f.Close()); err != nil {
		return nil, err
	}
	var rates []float64
	for range rateReadings {
		if err := context.Cause(ctx); err != nil {
			return nil, err
		}
		rate, ok, err := RawRate([]string{f.Name()})
		if err != nil {
			return nil, err
		}
		if !ok {
			return nil, fmt.Errorf(
				"%s: %s cannot be read past the page cache, so the rate of the device is not known: give the folder of another "+
					"file system", dir, out.FileSystem)
		}
		rates = append(rates, rate)
	}
	slices.Sort(rates)
	out.ReadBytesPerSecond = int64(rates[len(rates)/2])
	return out, nil
}

// writeSample writes bytes that no device or file system can compress, and syncs them.
func writeSample(ctx context.Context, f *os.File, bytes int64) error {
	random := rand.NewChaCha8([32]byte{1})
	buffer := make([]byte, rawReadBytes)
	for at := int64(0); at < bytes; at += rawReadBytes {
		if err := context.Cause(ctx); err != nil {
			return err
		}
		_, _ = random.Read(buffer) // Read never returns an error
		if _, err := f.Write(buffer); err != nil {
			return err
		}
	}
	return f.Sync()
}
