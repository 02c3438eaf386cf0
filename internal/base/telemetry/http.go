package telemetry

import (
	"net/http"
	"time"
)

// These are the limits of an HTTP server whose clients are not trusted.
const (
	headerBytesMax = 16 << 10 // net/http reads 4 KiB more
	headerTime     = 10 * time.Second
	requestTime    = 30 * time.Second // pages do not read request bodies
	answerTime     = 5 * time.Minute  // a profile may take that long
	idleTime       = 2 * time.Minute
)

// Server returns an HTTP server for pages. It limits the memory and the lifetime of a connection. By default, net/http
// accepts 1 MiB of headers, and keeps connections on which nothing arrives or whose client does not read.
func Server(pages http.Handler) *http.Server {
	return &http.Server{
		Handler: pages, MaxHeaderBytes: headerBytesMax, ReadHeaderTimeout: headerTime, ReadTimeout: requestTime,
		WriteTimeout: answerTime, IdleTimeout: idleTime,
	}
}
