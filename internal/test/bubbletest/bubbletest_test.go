package bubbletest

import (
	"bytes"
	"errors"
	"io"
	"net"
	"os"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"sheaf.dev/sheaf/internal/test/must"
)

func TestANetworkCarriesBytesInVirtualTime(t *testing.T) {
	Run(t, func(t *testing.T, network *Net) {
		listener, err := network.Listen(t.Context(), "10.0.0.1:0")
		must.OK(t, err)
		at := listener.Addr().String()
		if _, err := network.Listen(t.Context(), at); err == nil {
			t.Fatal("two listeners have one address")
		}
		go func() {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			time.Sleep(time.Hour) // the time is virtual, so this takes no real time
			_, _ = io.WriteString(conn, "late")
			_ = conn.Close()
		}()
		conn, err := network.Dial(t.Context(), at)
		must.OK(t, err)
		began := time.Now()
		got, err := io.ReadAll(conn)
		if err != nil || string(got) != "late" || time.Since(began) != time.Hour {
			t.Fatalf("%q after %v, %v", got, time.Since(began), err)
		}
		must.OK(t, conn.Close())
		if _, err := conn.Read(make([]byte, 1)); !errors.Is(err, net.ErrClosed) {
			t.Fatalf("read of a connection that was closed here: %v", err)
		}
		must.OK(t, listener.Close())
		if _, err := network.Dial(t.Context(), at); err == nil {
			t.Fatal("a closed listener takes connections")
		}
		again, err := network.Listen(t.Context(), at)
		if err != nil {
			t.Fatalf("the address of a closed listener is not free: %v", err)
		}
		must.OK(t, again.Close())
	})
}

// pair returns the two ends of a connection.
func pair(t *testing.T, network *Net) (client, server net.Conn) {
	listener, err := network.Listen(t.Context(), "10.0.0.1:0")
	if err != nil {
		t.Error(err)
	}
	defer func() { _ = listener.Close() }()
	accepted := make(chan net.Conn, 1)
	go func() {
		conn, _ := listener.Accept()
		accepted <- conn
	}()
	if client, err = network.Dial(t.Context(), listener.Addr().String()); err != nil {
		t.Error(err)
	}
	return client, <-accepted
}

func TestDeadlinesPassInVirtualTime(t *testing.T) {
	Run(t, func(t *testing.T, network *Net) {
		client, server := pair(t, network)
		late := func(do func([]byte) (int, error), b []byte, after time.Duration) {
			t.Helper()
			began := time.Now()
			if _, err := do(b); !errors.Is(err, os.ErrDeadlineExceeded) || time.Since(began) != after {
				t.Errorf("%v after %v, a deadline after %v is expected", err, time.Since(began), after)
			}
		}
		_ = client.SetReadDeadline(time.Now().Add(time.Hour))
		_ = client.SetReadDeadline(time.Now().Add(time.Minute))
		late(client.Read, make([]byte, 1), time.Minute)
		_ = client.SetDeadline(time.Now().Add(-time.Second))
		late(client.Read, make([]byte, 1), 0)
		late(client.Write, make([]byte, bufferBytes+1), 0)
		_ = client.SetDeadline(time.Time{})
		if n, err := server.Read(make([]byte, bufferBytes+1)); n != bufferBytes || err != nil {
			t.Errorf("the other end reads %d bytes, %v", n, err)
		}
		go func() {
			time.Sleep(time.Hour)
			_, _ = server.Write([]byte("late"))
		}()
		if n, err := client.Read(make([]byte, 9)); n != 4 || err != nil {
			t.Errorf("a read without a deadline: %d bytes, %v", n, err)
		}
	})
}

func TestAWriteWaitsWhileTheBufferIsFull(t *testing.T) {
	Run(t, func(t *testing.T, network *Net) {
		client, server := pair(t, network)
		sent := make([]byte, 3*bufferBytes+7)
		for i := range sent {
			sent[i] = byte(i * 31 >> 3)
		}
		var wrote atomic.Bool
		go func() {
			_, _ = client.Write(sent)
			wrote.Store(true)
			_ = client.Close()
		}()
		synctest.Wait()
		if wrote.Load() {
			t.Error("a write of more than the buffer does not wait")
		}
		if got, err := io.ReadAll(server); err != nil || !bytes.Equal(got, sent) {
			t.Errorf("%d of %d bytes, %v", len(got), len(sent), err)
		}
		if _, err := server.Write([]byte("x")); !errors.Is(err, io.ErrClosedPipe) || errors.Is(err, net.ErrClosed) {
			t.Errorf("a write to an end that has closed: %v", err)
		}
	})
}
