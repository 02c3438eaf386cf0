package controllers

import (
	"bytes"
	"io"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
)

// wrote counts the writes that the API server took, from anybody here.
var wrote atomic.Int64

// memo answers reads that were answered before, while nobody has written an object of the resource since. As nobody
// writes to the API server but through it, such an answer is what the API server would say. A round in which nothing
// happens then costs nothing; most rounds of these tests are such.
type memo struct {
	mu      sync.Mutex
	version map[string]int64 // of a resource: writes so far
	answers map[string]map[string]*answer
}

// answer is one that was read to its end.
type answer struct {
	version int64
	head    http.Response
	body    []byte
}

// answered is of all clients here.
var answered = &memo{version: map[string]int64{}, answers: map[string]map[string]*answer{}}

// countWrites goes into every client's transport.
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

// remember goes into the transport of who reads what everybody has written.
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

// again gives the answer to another request.
func (a *answer) again(r *http.Request) *http.Response {
	response := a.head
	response.Request, response.Header, response.Body = r, a.head.Header.Clone(), io.NopCloser(bytes.NewReader(a.body))
	return &response
}

// resourceKey is the resource that a request is about, a subresource counting as its resource; empty: none.
func resourceKey(r *http.Request) string {
	group, resource, _, ok := resourceOf(r.URL)
	if !ok {
		return ""
	}
	resource, _, _ = strings.Cut(resource, "/")
	return group + "/" + resource
}
