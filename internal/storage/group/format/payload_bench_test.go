package format

import (
	"fmt"
	"testing"
)

func BenchmarkEncodePayload(b *testing.B) {
	for _, size := range []int{0, 1 << 10, 10 << 10, 100 << 10} {
		b.Run(fmt.Sprintf("%d bytes", size), func(b *testing.B) {
			e := Entry{Kind: KindPut, ID: 1, Data: make([]byte, size), Attributes: []byte("some attributes")}
			b.ReportAllocs()
			for b.Loop() {
				EncodePayload(&e)
			}
		})
	}
}
