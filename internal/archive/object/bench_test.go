package object

import (
	"bytes"
	"io"
	"testing"
)

// These benchmarks measure what the checks and the encryption of objects cost: bytes per second and processor.
func BenchmarkEncode(b *testing.B) { eachCipher(b, benchmarkEncode) }
func BenchmarkDecode(b *testing.B) { eachCipher(b, benchmarkDecode) }

// BenchmarkVerify reads the same bytes without the key.
func BenchmarkVerify(b *testing.B) { eachCipher(b, benchmarkVerify) }

// BenchmarkSmall makes one object with a body of 1 KiB, which shows what a key of its own costs each object.
func BenchmarkSmall(b *testing.B) {
	eachCipher(b, func(b *testing.B, k Key) { encodeN(b, k, random(1<<10)) })
}

func eachCipher(b *testing.B, run func(b *testing.B, k Key)) {
	for name, k := range map[string]Key{"plain": {}, "aes-256-gcm": key(b, 7)} {
		b.Run(name, func(b *testing.B) { run(b, k) })
	}
}

func benchmarkEncode(b *testing.B, k Key) { encodeN(b, k, random(16*ChunkBytes)) }

func encodeN(b *testing.B, k Key, body []byte) {
	b.SetBytes(int64(len(body)))
	for b.Loop() {
		e, err := newEncoder(blob(body, k), fixed)
		if err != nil {
			b.Fatal(err)
		}
		if _, err := io.Copy(io.Discard, e); err != nil {
			b.Fatal(err)
		}
	}
}

func benchmarkDecode(b *testing.B, k Key) {
	whole := encode(b, blob(random(16*ChunkBytes), k))
	b.SetBytes(int64(len(whole)))
	for b.Loop() {
		d, err := NewDecoder(bytes.NewReader(whole), store, KindBlob, Keys{k})
		if err != nil {
			b.Fatal(err)
		}
		if _, err := io.Copy(io.Discard, d); err != nil {
			b.Fatal(err)
		}
	}
}

func benchmarkVerify(b *testing.B, k Key) {
	whole := encode(b, blob(random(16*ChunkBytes), k))
	b.SetBytes(int64(len(whole)))
	for b.Loop() {
		if _, err := Verify(bytes.NewReader(whole), store, KindBlob); err != nil {
			b.Fatal(err)
		}
	}
}
