package leaktest

import (
	"testing"
	"time"

	"go.uber.org/goleak"
)

func TestWhatEndsLateIsWaitedForAndWhatStaysIsFound(t *testing.T) {
	options := []goleak.Option{goleak.IgnoreCurrent()}
	end := make(chan struct{})
	go func() { <-end }()
	if err := find(0, options); err == nil {
		t.Error("a goroutine that stays is not found")
	}
	time.AfterFunc(time.Second, func() { close(end) }) // later than goleak alone waits
	if err := find(patience, options); err != nil {
		t.Errorf("a goroutine that ends late: %v", err)
	}
}
