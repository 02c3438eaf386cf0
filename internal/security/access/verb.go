package access

import (
	"fmt"
	"strings"
)

// Verb is a kind of operation that a grant allows.
type Verb uint8

// These are the verbs. The variable rules says which verb each call requires.
const (
	NoVerb Verb = iota
	Get
	Put
	Delete
	Scan
	Watch
	AdminRead  // reading the status, lists and the routing
	AdminWrite // changes to the store, and expensive operations
	verbCount
)

var verbNames = [verbCount]string{"", "get", "put", "delete", "scan", "watch", "admin-read", "admin-write"}

// String returns the name that the verb has in tables.
func (v Verb) String() string {
	if v < verbCount {
		return verbNames[v]
	}
	return fmt.Sprintf("verb(%d)", uint8(v))
}

// ParseVerb returns the verb with the given name. It is the inverse of String.
func ParseVerb(text string) (Verb, error) {
	for v := Get; v < verbCount; v++ {
		if verbNames[v] == text {
			return v, nil
		}
	}
	return NoVerb, fmt.Errorf("%.40q is no verb: must be one of %s", text, strings.Join(verbNames[Get:], ", "))
}

// MarshalText implements encoding.TextMarshaler.
func (v Verb) MarshalText() ([]byte, error) {
	if v == NoVerb || v >= verbCount {
		return nil, fmt.Errorf("%s is no verb", v)
	}
	return []byte(verbNames[v]), nil
}

// UnmarshalText implements encoding.TextUnmarshaler.
func (v *Verb) UnmarshalText(text []byte) (err error) {
	*v, err = ParseVerb(string(text))
	return err
}

// verbs is a set of verbs.
type verbs uint16

func (s verbs) has(v Verb) bool { return s&(1<<v) != 0 }
