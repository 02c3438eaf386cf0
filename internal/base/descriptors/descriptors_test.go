package descriptors_test

import (
	"errors"
	"io"
	"log/slog"
	"net"
	"os"
	"strings"
	"syscall"
	"testing"
	"time"

	"sheaf.dev/sheaf/internal/base/descriptors"
	"sheaf.dev/sheaf/internal/test/must"
)

// TestConnectionsLeaveDescriptorsForFiles checks that a process can still open files while clients hold many idle
// connections. It uses sockets and the descriptor limit of this process, which only the operating system provides. It
// takes 20 ms.
func TestConnectionsLeaveDescriptorsForFiles(t *testing.T) {
	const limit, reserve = 400, 100
	var before syscall.Rlimit
	must.OK(t, syscall.Getrlimit(syscall.RLIMIT_NOFILE, &before))
	server, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
	must.OK(t, err)
	listener := descriptors.Listen(server, slog.New(slog.DiscardHandler))
	ended := make(chan int)
	go func() {
		var taken []net.Conn
		for {
			conn, err := listener.Accept()
			if err != nil {
				break
			}
			taken = append(taken, conn)
		}
		for _, conn := range taken {
			_ = conn.Close()
		}
		ended <- len(taken)
	}()
	now := before
	now.Cur = limit
	must.OK(t, syscall.Setrlimit(syscall.RLIMIT_NOFILE, &now))
	defer func() { _ = syscall.Setrlimit(syscall.RLIMIT_NOFILE, &before) }()

	// Both ends of each connection are in this process, so a connection occupies two descriptors until it is refused.
	refused := 0
	for range 300 {
		conn, err := net.Dial("tcp", server.Addr().String())
		if err != nil {
			t.Fatalf("connecting: %v", err)
		}
		_ = conn.SetReadDeadline(time.Now().Add(5 * time.Millisecond))
		if _, err := conn.Read(make([]byte, 1)); errors.Is(err, io.EOF) || errors.Is(err, syscall.ECONNRESET) {
			refused++
			_ = conn.Close()
			continue
		}
		defer func() { _ = conn.Close() }()
	}
	if refused == 0 || listener.Refused() == nil ||
		!strings.Contains(listener.Refused().Error(), "of 400 file descriptors") {
		t.Errorf("%d connections were refused: %v", refused, listener.Refused())
	}
	for n := range reserve / 2 {
		f, err := os.Open(os.DevNull)
		if err != nil {
			t.Fatalf("file %d: %v", n, err)
		}
		defer func() { _ = f.Close() }()
	}
	_ = listener.Close()
	if taken := <-ended; taken < 16 {
		t.Errorf("%d connections were taken", taken)
	}
}
