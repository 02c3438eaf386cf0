package bucketproxy

import (
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
)

// pieceBytes is the number of bytes that Slow lets pass at each tick.
const pieceBytes = 10

// newFault returns a Fault whose requests are handled by the function serve, which must call fire() when the fault has
// taken effect.
func newFault(serve func(p *Proxy, w http.ResponseWriter, r *http.Request, fire func()) bool) *Fault {
	f := &Fault{}
	f.serve = func(p *Proxy, w http.ResponseWriter, r *http.Request) bool {
		return serve(p, w, r, func() { f.fired.Add(1) })
	}
	return f
}

// Away resets each connection before the request is forwarded.
func Away() *Fault {
	return newFault(func(_ *Proxy, w http.ResponseWriter, _ *http.Request, fire func()) bool {
		fire()
		drop(w)
		return true
	})
}

// Refused responds with an HTTP status and an S3 code, such as 503 and SlowDown. The request is not forwarded.
func Refused(status int, code string) *Fault {
	return newFault(func(_ *Proxy, w http.ResponseWriter, r *http.Request, fire func()) bool {
		fire()
		_, _ = io.Copy(io.Discard, r.Body) // otherwise the client might not read the response
		w.Header().Set("Content-Type", "application/xml")
		w.WriteHeader(status)
		_, _ = fmt.Fprintf(w, "<?xml version=\"1.0\"?><Error><Code>%s</Code><Message>injected</Message></Error>", code)
		return true
	})
}

// AnswerLost forwards the request, and then closes the connection without a response.
func AnswerLost() *Fault {
	return newFault(func(p *Proxy, w http.ResponseWriter, r *http.Request, fire func()) bool {
		if _, err := p.forward(r, r.Body); err == nil {
			fire()
		}
		drop(w)
		return true
	})
}

// RequestCut forwards the first n bytes of a request's body, and closes both connections. RequestCut fires only for
// bodies that are longer than n bytes.
func RequestCut(n int64) *Fault {
	return newFault(func(p *Proxy, w http.ResponseWriter, r *http.Request, fire func()) bool {
		if r.ContentLength <= n {
			return false
		}
		fire()
		_, _ = p.forward(r, io.MultiReader(io.LimitReader(r.Body, n), brokenBody{})) // no complete request to respond to
		drop(w)
		return true
	})
}

// brokenBody is a body that cannot be read.
type brokenBody struct{}

func (brokenBody) Read([]byte) (int, error) { return 0, io.ErrUnexpectedEOF }

// changeFault forwards a request, and passes the server's response to change(), which returns the body to send to the
// client. The fault counts as fired if change() returns true.
func changeFault(change func(a *answer) ([]byte, bool)) *Fault {
	return newFault(func(p *Proxy, w http.ResponseWriter, r *http.Request, fire func()) bool {
		a, err := p.forward(r, r.Body)
		if err != nil {
			drop(w)
			return true
		}
		body, differs := change(&a)
		if differs {
			fire()
		}
		a.write(w, body)
		return true
	})
}

// AnswerCut closes the connection after n bytes of a response's body.
func AnswerCut(n int) *Fault {
	return changeFault(func(a *answer) ([]byte, bool) { return a.body[:min(n, len(a.body))], n < len(a.body) })
}

// AnswerShort responds with the first n bytes of a body, and with n as its length, so that the response seems complete.
func AnswerShort(n int) *Fault {
	return changeFault(func(a *answer) ([]byte, bool) {
		if n >= len(a.body) {
			return a.body, false
		}
		a.header = a.header.Clone()
		a.header.Set("Content-Length", fmt.Sprint(n))
		return a.body[:n], true
	})
}

// AnswerLong responds with one byte more than the server sent, and with a matching length.
func AnswerLong() *Fault {
	return changeFault(func(a *answer) ([]byte, bool) {
		a.header = a.header.Clone()
		a.header.Set("Content-Length", fmt.Sprint(len(a.body)+1))
		return append(slices.Clone(a.body), 0), true
	})
}

// Flipped flips one bit of the byte at the given offset in a response's body.
func Flipped(at int) *Fault {
	return changeFault(func(a *answer) ([]byte, bool) {
		if at >= len(a.body) {
			return a.body, false
		}
		body := slices.Clone(a.body)
		body[at] ^= 1
		return body, true
	})
}

// replayFault returns a Fault that responds to a request with an earlier response, which find() chooses. If find()
// finds none, the request is forwarded.
func replayFault(find func(p *Proxy, r *http.Request) (answer, bool)) *Fault {
	return newFault(func(p *Proxy, w http.ResponseWriter, r *http.Request, fire func()) bool {
		a, ok := find(p, r)
		if !ok {
			return false
		}
		fire()
		a.write(w, a.body)
		return true
	})
}

// Whole responds with the whole object if a range was requested. Remember must have been called before the whole object
// was read.
func Whole() *Fault {
	return replayFault(func(p *Proxy, r *http.Request) (answer, bool) {
		a, ok := p.remembered()[requestKey{uri: r.URL.RequestURI()}]
		return a, ok && r.Header.Get("Range") != ""
	})
}

// Shifted responds with a range of the object other than the requested one. Remember must have been called before that
// other range was read.
func Shifted() *Fault {
	return replayFault(func(p *Proxy, r *http.Request) (answer, bool) {
		for what, a := range p.remembered() {
			if what.uri == r.URL.RequestURI() && what.ranged != "" && what.ranged != r.Header.Get("Range") {
				return a, true
			}
		}
		return answer{}, false
	})
}

// Other responds with a different object, in full, as the server sent it earlier. Remember must have been called
// before that object was read.
func (p *Proxy) Other(path string) *Fault {
	kept := p.remembered()
	return replayFault(func(*Proxy, *http.Request) (answer, bool) {
		for what, a := range kept {
			if at, _, _ := strings.Cut(what.uri, "?"); at == path && what.ranged == "" {
				return a, true
			}
		}
		return answer{}, false
	})
}

// Stale responds to each GET with the response that the server sent before Stale was called. Remember must have been
// called before that response was sent.
func (p *Proxy) Stale() *Fault {
	kept := p.remembered()
	return replayFault(func(_ *Proxy, r *http.Request) (answer, bool) {
		a, ok := kept[askedBy(r)]
		return a, ok && r.Method == http.MethodGet
	})
}

// Slow lets 10 bytes of a request's or response's body pass at each tick. The fault ends when the client disconnects.
func Slow[T any](ticks <-chan T) *Fault {
	return newFault(func(p *Proxy, w http.ResponseWriter, r *http.Request, fire func()) bool {
		fire()
		a, err := p.forward(r, &slowBody[T]{r.Body, r.Context().Done(), ticks})
		if err != nil {
			drop(w)
			return true
		}
		a.write(w, nil)
		for rest := a.body; len(rest) > 0; {
			select {
			case <-ticks:
			case <-r.Context().Done():
				return true
			}
			n, err := w.Write(rest[:min(pieceBytes, len(rest))])
			if err != nil || http.NewResponseController(w).Flush() != nil {
				return true
			}
			rest = rest[n:]
		}
		return true
	})
}

// slowBody is the body of a request, which Slow passes on in small pieces.
type slowBody[T any] struct {
	io.Reader
	gone  <-chan struct{}
	ticks <-chan T
}

func (s *slowBody[T]) Read(p []byte) (int, error) {
	select {
	case <-s.ticks:
	case <-s.gone:
		return 0, io.ErrUnexpectedEOF
	}
	return s.Reader.Read(p[:min(pieceBytes, len(p))])
}
