package bubbletest

import (
	"bytes"
	"io"
	"math/rand/v2"
	"testing"
	"time"
)

func seededNoise(seed uint64) *noise { return &noise{random: rand.New(rand.NewPCG(seed, 1))} }

// TestNoiseDelaysReadsWithoutVirtualTime checks that noise draws every kind of delay, each within its limits, that
// the same seed gives the same delays, and that the delays neither change the bytes that are read nor take virtual
// time.
func TestNoiseDelaysReadsWithoutVirtualTime(t *testing.T) {
	n, same := seededNoise(7), seededNoise(7)
	yielded, spun, nothing := 0, 0, 0
	for range 1000 {
		yields, spin := n.next()
		if y, s := same.next(); y != yields || s != spin {
			t.Fatalf("one seed draws %d, %v and %d, %v", yields, spin, y, s)
		}
		switch {
		case yields < 0 || yields > noiseYieldsMax || spin < 0 || spin >= noiseSpinMax || yields > 0 && spin > 0:
			t.Fatalf("the delay is %d yields, and %v", yields, spin)
		case yields > 0:
			yielded++
		case spin > 0:
			spun++
		default:
			nothing++
		}
	}
	if yielded < 100 || spun < 100 || nothing < 100 {
		t.Errorf("%d delays yield, %d spin, %d are empty", yielded, spun, nothing)
	}
	Run(t, func(t *testing.T, _ *Net) {
		from, to := newConns()
		to.noise = seededNoise(7)
		sent := bytes.Repeat([]byte("noise"), 40)
		go func() {
			for _, b := range sent {
				if _, err := from.Write([]byte{b}); err != nil {
					t.Error(err)
				}
			}
			_ = from.Close()
		}()
		began := time.Now()
		got, err := io.ReadAll(to)
		if err != nil || !bytes.Equal(got, sent) || time.Since(began) != 0 {
			t.Errorf("%d of %d bytes after %v, %v", len(got), len(sent), time.Since(began), err)
		}
	})
}
