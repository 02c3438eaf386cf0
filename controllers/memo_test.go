package controllers

import (
	"bytes"
	"io"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
)

// wrote counts the writes by any client of these tests that the API server accepted.
var wrote atomic.Int64

// memo answers reads from its memory as long as no client has written an object of the same resource since the first
// answer. All clients write to the API server through memo, so such an answer is current. A round in which nothing
// happens then costs nothing; most rounds of these tests are such rounds.
type memo struct {
	mu      sync.Mutex
	version map[string]int64 // resource -> number of writes so far
	answers map[string]map[string]*answer
}

// answer is a recorded answer, whose body was read to its end.
type answer struct {
	version int64
	head    http.Response
	body    []byte
}

// answered is shared by all clients of these tests.
var answered = &memo{version: map[string]int64{}, answers: map[string]map[string]*answer{}}

// countWrites wraps the transport of every client.
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
		wrote.Add(1)
		return answer, err
	})
}

// remember wraps the transport of a client that reads what all clients have written.
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
			return known.again(r), nil
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
		return fresh.again(r), nil
	})
}

// again returns the answer for another request.
func (a *answer) again(r *http.Request) *http.Response {
	response := a.head
	response.Request, response.Header, response.Body = r, a.head.Header.Clone(), io.NopCloser(bytes.NewReader(a.body))
	return &response
}

// resourceKey returns the resource of a request; a subresource counts as its resource. It is empty if there is none.
func resourceKey(r *http.Request) string {
	group, resource, _, ok := resourceOf(r.URL)
	if !ok {
		return ""
	}
	resource, _, _ = strings.Cut(resource, "/")
	return group + "/" + resource
}
