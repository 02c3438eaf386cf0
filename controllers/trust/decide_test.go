package trust

import (
	"strings"
	"testing"
	"time"

	"sheaf.dev/sheaf/api/v1alpha1"
)

const (
	plaintext = v1alpha1.TransportPlaintext
	both      = v1alpha1.TransportBoth
	required  = v1alpha1.TransportRequired
)

func TestDecide(t *testing.T) {
	now := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	long := now.Add(-callersPause)
	all, some := Reports{Processes: 3, UpToDate: 3, Renewed: 3}, Reports{Processes: 3, UpToDate: 2, Renewed: 2,
		Missing: "main-0-0: why"}
	state := func(transport v1alpha1.TLSTransport, phase v1alpha1.TLSPhase, since time.Time) State {
		return State{Transport: transport, Phase: phase, Since: since, Rotated: "a"}
	}
	rotating := func(phase v1alpha1.TLSPhase, since time.Time) State {
		s := state(required, phase, since)
		s.Rotating = "b"
		return s
	}
	ready, switching := v1alpha1.TLSReady, v1alpha1.TLSSwitching
	for name, c := range map[string]struct {
		in    Input
		want  State
		next  bool
		merge bool
		done  bool
		words string // a substring of Words; if empty, Words must be empty
	}{
		"a new store begins as it is asked to": {
			in: Input{Wanted: required, Rotate: "x"}, want: State{Transport: required, Phase: ready, Since: now, Rotated: "x"},
		},
		"a store whose status was lost goes on from where its processes are": {
			in:   Input{Wanted: required, Found: plaintext, Reports: all},
			want: State{Transport: plaintext, Phase: ready, Since: now},
		},
		"all is as asked for": {in: Input{Wanted: required, State: state(required, ready, long), Rotate: "a",
			Reports: all}, want: state(required, ready, long)},
		"a process that is new changes none": {in: Input{Wanted: required, State: state(required, ready, long),
			Reports: some}, want: state(required, ready, long)},
		"an absent rotate asks for nothing": {in: Input{Wanted: required, State: state(required, ready, long), Reports: all},
			want: state(required, ready, long)},

		"on: not before all have certificates": {
			in:   Input{Wanted: required, State: state(plaintext, ready, long), Reports: some},
			want: state(plaintext, ready, long), words: "2 of 3 processes use transport plaintext",
		},
		"on: first both": {in: Input{Wanted: required, State: state(plaintext, ready, long), Reports: all},
			want: state(both, switching, now), words: "both"},
		"on: not before all": {in: Input{Wanted: required, State: state(both, switching, long), Reports: some},
			want: state(both, switching, long), words: "main-0-0: why"},
		"on: then required": {in: Input{Wanted: required, State: state(both, switching, long), Reports: all},
			want: state(required, switching, now), words: "required"},
		"on: until all say so": {in: Input{Wanted: required, State: state(required, switching, long), Reports: some},
			want: state(required, switching, long), words: "2 of 3"},
		"on: done": {in: Input{Wanted: required, State: state(required, switching, long), Reports: all},
			want: state(required, ready, now)},
		"optional stays both": {in: Input{Wanted: both, State: state(both, switching, long), Reports: all},
			want: state(both, ready, now)},
		"off: first both": {in: Input{Wanted: plaintext, State: state(required, ready, long), Reports: all},
			want: state(both, switching, now), words: "both"},
		"off: not before all": {in: Input{Wanted: plaintext, State: state(both, switching, long), Reports: some},
			want: state(both, switching, long), words: "2 of 3"},
		"off: then plaintext": {in: Input{Wanted: plaintext, State: state(both, switching, long), Reports: all},
			want: state(plaintext, switching, now), words: "plaintext"},
		"off comes before the authorities": {
			in:   Input{Wanted: plaintext, Rotate: "b", State: state(required, ready, long), Reports: all},
			want: state(both, switching, now), words: "both",
		},

		"rotate: not while a process is behind": {
			in:   Input{Wanted: required, Rotate: "b", State: state(required, ready, long), Reports: some},
			want: state(required, ready, long), words: "2 of 3",
		},
		"rotate: the next are made and trusted": {
			in:   Input{Wanted: required, Rotate: "b", State: state(required, ready, long), Reports: all},
			want: rotating(v1alpha1.TLSTrusting, now), next: true, words: "next",
		},
		"rotate: those that are there already are taken": {
			in:   Input{Wanted: required, Rotate: "b", State: state(required, ready, long), Reports: all, HasNext: true},
			want: rotating(v1alpha1.TLSTrusting, now), words: "next",
		},
		"trusting: until all do": {
			in: Input{Wanted: required, Rotate: "b", State: rotating(v1alpha1.TLSTrusting, long), Reports: some,
				HasNext: true},
			want: rotating(v1alpha1.TLSTrusting, long), words: "2 of 3",
		},
		"trusting: callers have their time": {
			in: Input{Wanted: required, Rotate: "b", State: rotating(v1alpha1.TLSTrusting, long.Add(time.Second)),
				Reports: all, HasNext: true},
			want: rotating(v1alpha1.TLSTrusting, long.Add(time.Second)), words: "callers",
		},
		"trusting: then issuing": {
			in:   Input{Wanted: required, Rotate: "b", State: rotating(v1alpha1.TLSTrusting, long), Reports: all, HasNext: true},
			want: rotating(v1alpha1.TLSIssuing, now), words: "Issuing",
		},
		"a change of authorities goes to its end before the transport changes": {
			in: Input{Wanted: plaintext, Rotate: "c", State: rotating(v1alpha1.TLSTrusting, long), Reports: all,
				HasNext: true},
			want: rotating(v1alpha1.TLSIssuing, now), words: "Issuing",
		},
		"issuing: until all use theirs": {
			in: Input{Wanted: required, Rotate: "b", State: rotating(v1alpha1.TLSIssuing, long),
				Reports: Reports{Processes: 3, UpToDate: 3, Renewed: 1, Missing: "x"}, HasNext: true},
			want: rotating(v1alpha1.TLSIssuing, long), words: "1 of 3",
		},
		"issuing: callers have their time": {
			in:   Input{Wanted: required, State: rotating(v1alpha1.TLSIssuing, now), Reports: all, HasNext: true},
			want: rotating(v1alpha1.TLSIssuing, now), words: "callers",
		},
		"issuing: then dropping": {
			in:   Input{Wanted: required, State: rotating(v1alpha1.TLSIssuing, long), Reports: all, HasNext: true},
			want: rotating(v1alpha1.TLSDropping, now), words: "Dropping",
		},
		"dropping: until all do": {
			in:   Input{Wanted: required, State: rotating(v1alpha1.TLSDropping, long), Reports: some, HasNext: true},
			want: rotating(v1alpha1.TLSDropping, long), words: "2 of 3",
		},
		"dropping: done": {
			in:   Input{Wanted: required, Rotate: "b", State: rotating(v1alpha1.TLSDropping, now), Reports: all, HasNext: true},
			want: State{Transport: required, Phase: ready, Since: now, Rotated: "b"}, done: true,
		},
		"dropping: settled before, and not recorded": {
			in:   Input{Wanted: required, State: rotating(v1alpha1.TLSDropping, now), Reports: all},
			want: State{Transport: required, Phase: ready, Since: now, Rotated: "b"},
		},

		"source: other authorities are trusted first": {
			in:   Input{Wanted: required, Other: true, State: state(required, ready, long), Reports: all},
			want: State{Transport: required, Phase: v1alpha1.TLSTrusting, Since: now, Rotated: "a"}, next: true, words: "next",
		},
		"source: next ones that are left of an earlier change are not taken": {
			in:   Input{Wanted: required, Other: true, HasNext: true, State: state(required, ready, long), Reports: all},
			want: State{Transport: required, Phase: v1alpha1.TLSTrusting, Since: now, Rotated: "a"}, next: true, words: "next",
		},
		"source: not while a process is behind": {
			in:   Input{Wanted: required, Other: true, State: state(required, ready, long), Reports: some},
			want: state(required, ready, long), words: "2 of 3",
		},
		"source: others than the next ones while these are trusted": {
			in: Input{Wanted: required, Other: true, Superseded: true, HasNext: true,
				State: rotating(v1alpha1.TLSTrusting, long), Reports: all},
			want: State{Transport: required, Phase: v1alpha1.TLSTrusting, Since: now, Rotated: "a"}, next: true, merge: true,
			words: "learn to trust them too",
		},
		"source: others than the next ones while these issue": {
			in: Input{Wanted: required, Superseded: true, HasNext: true, State: rotating(v1alpha1.TLSIssuing, long),
				Reports: some},
			want: State{Transport: required, Phase: v1alpha1.TLSTrusting, Since: now, Rotated: "a"}, next: true, merge: true,
			words: "learn to trust them too",
		},
		"source: others than the next ones come after those that are dropped": {
			in: Input{Wanted: required, Other: true, Superseded: true, HasNext: true,
				State: rotating(v1alpha1.TLSDropping, long), Reports: all},
			want: State{Transport: required, Phase: ready, Since: now, Rotated: "b"}, done: true,
		},
	} {
		t.Run(name, func(t *testing.T) {
			c.in.Now = now
			got := Decide(c.in)
			if got.State != c.want || got.MakeNext != c.next || got.Merge != c.merge || got.Promote != c.done {
				t.Errorf("%+v\nwant %+v, next %v, merge %v, settle %v", got, c.want, c.next, c.merge, c.done)
			}
			if !strings.Contains(got.Words, c.words) || (got.Words == "") != (c.words == "") {
				t.Errorf("words %q, want %q", got.Words, c.words)
			}
		})
	}
}

// No matter how the spec changes, no process may use plaintext while another process requires TLS. Otherwise, the
// first process would dial the second one in plaintext and be refused.
func TestConcurrentTransportsAreCompatible(t *testing.T) {
	now := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	modes := []v1alpha1.TLSTransport{plaintext, both, required}
	type store struct {
		state State
		told  [2]v1alpha1.TLSTransport // the transport that each of the two processes has last read
	}
	seen, queue := map[store]bool{}, []store{}
	for _, m := range modes {
		queue = append(queue, store{State{Transport: m, Phase: v1alpha1.TLSReady}, [2]v1alpha1.TLSTransport{m, m}})
	}
	for len(queue) > 0 {
		s := queue[0]
		queue = queue[1:]
		s.state.Since = time.Time{}
		if seen[s] {
			continue
		}
		seen[s] = true
		if a, b := s.told[0], s.told[1]; a == plaintext && b == required || a == required && b == plaintext {
			t.Fatalf("%v", s)
		}
		for i := range s.told { // one of the processes reads its transport
			next := s
			next.told[i] = s.state.Transport
			queue = append(queue, next)
		}
		r := Reports{Processes: 2}
		for _, m := range s.told {
			if m == s.state.Transport {
				r.UpToDate++
			}
		}
		for _, wanted := range modes {
			queue = append(queue, store{Decide(Input{Wanted: wanted, State: s.state, Reports: r, Now: now}).State, s.told})
		}
	}
	if len(seen) < 12 {
		t.Errorf("%d states were reached", len(seen))
	}
}

func TestAbsentSpec(t *testing.T) {
	old, image := &v1alpha1.RecordStore{}, "sheaf:1"
	old.Status.StoreUID = "6ba7b810-9dad-11d1-80b4-00c04fd430c8"
	asks := func(mode v1alpha1.TLSMode) func(*v1alpha1.RecordStore) {
		return func(s *v1alpha1.RecordStore) { s.Spec.TLS = &v1alpha1.TLS{Mode: mode} }
	}
	for name, c := range map[string]struct {
		store     *v1alpha1.RecordStore
		change    func(*v1alpha1.RecordStore)
		mode      v1alpha1.TLSMode
		transport v1alpha1.TLSTransport // transport that is recorded when the operator first handles the store
		mounts    bool                  // whether pods may be recreated with certificates although the image has not changed
	}{
		"new":                        {&v1alpha1.RecordStore{}, nil, v1alpha1.TLSRequired, "", true},
		"new, asks for none":         {&v1alpha1.RecordStore{}, asks(v1alpha1.TLSDisabled), v1alpha1.TLSDisabled, "", true},
		"new, asks":                  {&v1alpha1.RecordStore{}, asks(v1alpha1.TLSOptional), v1alpha1.TLSOptional, "", true},
		"served before":              {old, nil, v1alpha1.TLSDisabled, plaintext, false},
		"served before, asks":        {old, asks(v1alpha1.TLSRequired), v1alpha1.TLSRequired, plaintext, true},
		"served before, spec.tls {}": {old, asks(""), v1alpha1.TLSRequired, plaintext, true},
	} {
		t.Run(name, func(t *testing.T) {
			store := c.store.DeepCopy()
			if c.change != nil {
				c.change(store)
			}
			first := First(store, image)
			store.Status.TLS = &first
			store.Status.StoreUID = "6ba7b810-9dad-11d1-80b4-00c04fd430c8" // these values must not affect the calls below
			if got := ModeOf(store); got != c.mode || first.Transport != c.transport {
				t.Errorf("mode %s, transport %q", got, first.Transport)
			}
			if got := first.WithoutImage == "" || MayMount(store, image); got != c.mounts {
				t.Errorf("mounts %v", got)
			}
			if !MayMount(store, "sheaf:2") {
				t.Error("pods that are created again for another image get no certificates")
			}
		})
	}
}
