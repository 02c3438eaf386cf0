package liveness

import (
	"context"
	"errors"
	"net"
	"testing"
	"time"
)

// attempts is a dial function that a test controls. Each attempt waits until the test ends it or its context is done.
type attempts struct {
	// began has one channel for each attempt. Sending an error on it makes the attempt fail, and sending nil makes it
	// connect.
	began   chan chan error
	conns   chan net.Conn // the other end of each connection
	stopped chan struct{} // receives one element for each attempt whose context was done
}

func newAttempts() *attempts {
	return &attempts{began: make(chan chan error), conns: make(chan net.Conn, 8), stopped: make(chan struct{}, 8)}
}

func (a *attempts) dial(ctx context.Context) (net.Conn, error) {
	answer := make(chan error)
	select {
	case a.began <- answer:
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	select {
	case err := <-answer:
		if err != nil {
			return nil, err
		}
		here, there := net.Pipe()
		a.conns <- there
		return here, nil
	case <-ctx.Done():
		a.stopped <- struct{}{}
		return nil, ctx.Err()
	}
}

type dialed struct {
	conn net.Conn
	err  error
}

func (a *attempts) start(ctx context.Context) (more chan time.Time, out chan dialed) {
	more, out = make(chan time.Time), make(chan dialed, 1)
	go func() {
		conn, err := hedge(ctx, more, a.dial)
		out <- dialed{conn, err}
	}()
	return more, out
}

func TestHangingAttemptIsHedged(t *testing.T) {
	a := newAttempts()
	more, out := a.start(t.Context())
	<-a.began // the first attempt hangs
	more <- time.Time{}
	second := <-a.began
	more <- time.Time{}
	third := <-a.began
	second <- errors.New("refused") // a refusal does not end the dial while other attempts are pending
	third <- nil
	d := <-out
	if d.err != nil || d.conn == nil {
		t.Fatalf("%v, %v", d.conn, d.err)
	}
	<-a.stopped // the first attempt ends when another one has connected
	_ = d.conn.Close()
}

func TestARefusalIsReportedAtOnce(t *testing.T) {
	a := newAttempts()
	_, out := a.start(t.Context())
	refused := errors.New("refused")
	(<-a.began) <- refused
	if d := <-out; !errors.Is(d.err, refused) || d.conn != nil {
		t.Fatalf("%v, %v", d.conn, d.err)
	}
}

func TestADialEndsWithItsContext(t *testing.T) {
	a := newAttempts()
	ctx, cancel := context.WithCancel(t.Context())
	more, out := a.start(ctx)
	<-a.began
	more <- time.Time{}
	<-a.began
	cancel()
	if d := <-out; !errors.Is(d.err, context.Canceled) {
		t.Fatal(d.err)
	}
	<-a.stopped
	<-a.stopped
}
