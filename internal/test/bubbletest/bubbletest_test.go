package bubbletest

import (
	"errors"
	"io"
	"net"
	"testing"
	"time"
)

func TestANetworkCarriesBytesInVirtualTime(t *testing.T) {
	Run(t, func(t *testing.T, network *Net) {
		listener, err := network.Listen(t.Context(), "10.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		at := listener.Addr().String()
		if _, err := network.Listen(t.Context(), at); err == nil {
			t.Fatal("two listeners have one address")
		}
		go func() {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			time.Sleep(time.Hour) // of the bubble: it takes no time
			_, _ = io.WriteString(conn, "late")
			_ = conn.Close()
		}()
		conn, err := network.Dial(t.Context(), at)
		if err != nil {
			t.Fatal(err)
		}
		began := time.Now()
		got, err := io.ReadAll(conn)
		if err != nil || string(got) != "late" || time.Since(began) != time.Hour {
			t.Fatalf("%q after %v, %v", got, time.Since(began), err)
		}
		if err := conn.Close(); err != nil {
			t.Fatal(err)
		}
		if _, err := conn.Read(make([]byte, 1)); !errors.Is(err, net.ErrClosed) {
			t.Fatalf("read of a connection that was closed here: %v", err)
		}
		if err := listener.Close(); err != nil {
			t.Fatal(err)
		}
		if _, err := network.Dial(t.Context(), at); err == nil {
			t.Fatal("a closed listener takes connections")
		}
		again, err := network.Listen(t.Context(), at)
		if err != nil {
			t.Fatalf("the address of a closed listener is not free: %v", err)
		}
		if err := again.Close(); err != nil {
			t.Fatal(err)
		}
	})
}
