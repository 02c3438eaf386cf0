package controllers

import (
	"bytes"
	"io"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
)

// writeCount counts the writes that the API server accepted from all clients of these tests.
var writeCount atomic.Int64

// memo remembers the answers to reads. An answer is valid until a client writes an object of the same resource. All
// clients write to the API server through memo, so it knows about every write. Most rounds of these tests write
// nothing, and are therefore cheap.
type memo struct {
	mu      sync.Mutex
	version map[string]int64 // maps a resource to the number of writes so far
	answers map[string]map[string]*answer
}

// answer is a remembered answer with its complete body.
type answer struct {
	version int64
	head    http.Response
	body    []byte
}

// sharedMemo remembers the answers to all clients of these tests.
var sharedMemo = &memo{version: map[string]int64{}, answers: map[string]map[string]*answer{}}

// countWrites wraps the transport of every client, to count the writes.
func (m *memo) countWrites(next http.RoundTripper) http.RoundTripper {
	return roundTripper(func(r *http.Request) (*http.Response, error) {
		answer, err := next.RoundTrip(r)
		refused := err == nil && answer.StatusCode >= http.StatusBadRequest &&
			answer.StatusCode < http.StatusInternalServerError
		if r.Method == http.MethodGet || refused {
			return answer, err
		}
		m.mu.Lock()
		defer m.mu.Unlock()
		m.version[resourceKey(r)]++
		writeCount.Add(1)
		return answer, err
	})
}

// remember wraps the transport of a client that must read the writes of all clients.
func (m *memo) remember(next http.RoundTripper) http.RoundTripper {
	return roundTripper(func(r *http.Request) (*http.Response, error) {
		resource := resourceKey(r)
		if r.Method != http.MethodGet || resource == "" || r.URL.Query().Get("watch") != "" {
			return next.RoundTrip(r)
		}
		key := r.URL.String() + " " + r.Header.Get("Accept")
		m.mu.Lock()
		version, known := m.version[resource], m.answers[resource][key]
		m.mu.Unlock()
		if known != nil && known.version == version {
			return known.replay(r), nil
		}
		response, err := next.RoundTrip(r)
		if err != nil || response.StatusCode != http.StatusOK && response.StatusCode != http.StatusNotFound {
			return response, err
		}
		fresh := &answer{version: version, head: *response}
		if fresh.body, err = io.ReadAll(response.Body); err != nil {
			return nil, err
		}
		if err := response.Body.Close(); err != nil {
			return nil, err
		}
		m.mu.Lock()
		defer m.mu.Unlock()
		if m.answers[resource] == nil {
			m.answers[resource] = map[string]*answer{}
		}
		m.answers[resource][key] = fresh
		return fresh.replay(r), nil
	})
}

// replay returns the remembered answer as the response to another request.
func (a *answer) replay(r *http.Request) *http.Response {
	response := a.head
	response.Request, response.Header, response.Body = r, a.head.Header.Clone(), io.NopCloser(bytes.NewReader(a.body))
	return &response
}

// resourceKey returns the resource that a request concerns, or "" if there is none. The request for a subresource
// counts as one for its resource.
func resourceKey(r *http.Request) string {
	_, group, resource, _, ok := resourceOf(r.URL)
	if !ok {
		return ""
	}
	resource, _, _ = strings.Cut(resource, "/")
	return group + "/" + resource
}
