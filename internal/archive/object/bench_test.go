package object

import (
	"bytes"
	"io"
	"syscall"
	"testing"
	"time"
)

// These benchmarks measure what the checks and the encryption of objects cost. cpu-s/GB is the processor time for each
// GB, which says more than the speed if the machine does other things as well.

func BenchmarkEncode(b *testing.B) {
	eachCipher(b, 16*ChunkBytes, func(body []byte, k Key) error {
		e, err := newEncoder(blob(body, k), fixed)
		if err != nil {
			return err
		}
		_, err = io.Copy(io.Discard, e)
		return err
	})
}

// BenchmarkEncodeSmall makes one object with 1 KiB, which shows what a key of its own costs each object.
func BenchmarkEncodeSmall(b *testing.B) {
	eachCipher(b, 1<<10, func(body []byte, k Key) error {
		e, err := newEncoder(blob(body, k), fixed)
		if err != nil {
			return err
		}
		_, err = io.Copy(io.Discard, e)
		return err
	})
}

func BenchmarkDecode(b *testing.B) {
	eachCipher(b, 16*ChunkBytes, encodedOnce(b, func(whole []byte, k Key) error {
		d, err := NewDecoder(bytes.NewReader(whole), store, KindBlob, Keys{k})
		if err != nil {
			return err
		}
		_, err = io.Copy(io.Discard, d)
		return err
	}))
}

// BenchmarkVerify reads the same bytes without the key.
func BenchmarkVerify(b *testing.B) {
	eachCipher(b, 16*ChunkBytes, encodedOnce(b, func(whole []byte, _ Key) error {
		_, err := Verify(bytes.NewReader(whole), store, KindBlob)
		return err
	}))
}

// encodedOnce returns a function that reads the object with a body. The object of each key is encoded once.
func encodedOnce(b *testing.B, read func(whole []byte, k Key) error) func(body []byte, k Key) error {
	objects := map[KeyID][]byte{}
	return func(body []byte, k Key) error {
		if objects[k.ID()] == nil {
			objects[k.ID()] = encode(b, blob(body, k))
		}
		return read(objects[k.ID()], k)
	}
}

func eachCipher(b *testing.B, bodyBytes int, run func(body []byte, k Key) error) {
	for name, k := range map[string]Key{"plain": {}, "aes-256-gcm": key(b, 7)} {
		b.Run(name, func(b *testing.B) {
			body := random(bodyBytes)
			if err := run(body, k); err != nil { // encodes the object that the benchmark reads
				b.Fatal(err)
			}
			b.SetBytes(int64(bodyBytes))
			before := processorTime(b)
			for b.Loop() {
				if err := run(body, k); err != nil {
					b.Fatal(err)
				}
			}
			gigabytes := float64(b.N) * float64(bodyBytes) / 1e9
			b.ReportMetric((processorTime(b)-before).Seconds()/gigabytes, "cpu-s/GB")
		})
	}
}

// processorTime returns the processor time that the process has used in user mode.
func processorTime(b *testing.B) time.Duration {
	b.Helper()
	var used syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &used); err != nil {
		b.Fatal(err)
	}
	return time.Duration(used.Utime.Nano())
}
