package telemetry

import (
	"net/http"
	"time"
)

// Bounds of an HTTP server, whose callers nobody knows.
const (
	headerBytesMax = 16 << 10 // net/http reads 4 KiB more
	headerTime     = 10 * time.Second
	requestTime    = 30 * time.Second // no page reads a body
	answerTime     = 5 * time.Minute  // a profile may take as long
	idleTime       = 2 * time.Minute
)

// Server returns a server of HTTP pages, which holds little for a connection and nothing for ever: by default net/http
// takes 1 MiB of headers, and keeps connections on which nothing comes or nobody reads.
func Server(pages http.Handler) *http.Server {
	return &http.Server{
		Handler: pages, MaxHeaderBytes: headerBytesMax, ReadHeaderTimeout: headerTime, ReadTimeout: requestTime,
		WriteTimeout: answerTime, IdleTimeout: idleTime,
	}
}
