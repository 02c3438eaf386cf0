package access

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync/atomic"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// Compiled is a table of grants in a form that makes decisions fast. It is immutable, except that it records first
// uses and caches verified tokens. It is safe for concurrent use.
type Compiled struct {
	version  int64
	audience string
	grants   []string // names of the grants
	subjects map[Subject]*rights
	issuers  map[string]*issuer
	tokens   CallerCache
}

// rights holds the verbs and groups that the grants allow one subject to use.
type rights struct {
	all      scope
	names    map[string]*scope
	prefixes []*scope // sorted by prefix
	any      verbs    // all verbs that are allowed in at least one group
}

// scope is a set of groups, together with the verbs that are allowed in them.
type scope struct {
	prefix string
	parent *scope // scope of the longest proper prefix; nil if there is none
	own    verbs
	verbs  verbs // own verbs of this scope and of all its ancestors
	grants []int32
	used   atomic.Uint32 // own verbs whose first use was already recorded
}

func (s *scope) add(v verbs, grant int32) {
	s.own |= v
	s.grants = append(s.grants, grant)
}

// Compile checks a table and prepares it for decisions. Errors wrap ErrTable.
func Compile(t *Table) (*Compiled, error) {
	if t.Version < 1 {
		return nil, bad("version", "is %d: must be above 0", t.Version)
	}
	c := &Compiled{version: t.Version, audience: t.Audience, subjects: map[Subject]*rights{},
		issuers: map[string]*issuer{}}
	if err := c.takeIssuers(t); err != nil {
		return nil, err
	}
	seen := make(map[string]int, len(t.Grants))
	for i := range t.Grants {
		g, field := &t.Grants[i], fmt.Sprintf("grants[%d]", i)
		if err := text(field+".name", g.Name, nameBytesMax); err != nil {
			return nil, err
		}
		if before, double := seen[g.Name]; double {
			return nil, bad(field+".name", "%q is the name of grants[%d], too", g.Name, before)
		}
		seen[g.Name] = i
		if err := c.take(g, fmt.Sprintf("%s (%s)", field, g.Name)); err != nil {
			return nil, err
		}
	}
	for _, r := range c.subjects {
		r.finish()
	}
	if err := validateTenants(t.Tenants); err != nil {
		return nil, err
	}
	return c, nil
}

// take adds the rights of a grant to its subjects.
func (c *Compiled) take(g *Grant, field string) error {
	switch {
	case len(g.Subjects) == 0:
		return bad(field+".subjects", "is empty: say whom the grant is for")
	case len(g.Subjects) > subjectsMax:
		return bad(field+".subjects", "has %d: give at most %d, and the others in another grant", len(g.Subjects),
			subjectsMax)
	case len(g.Verbs) == 0:
		return bad(field+".verbs", "is empty: say what is allowed")
	}
	if err := g.Groups.validate(field + ".groups"); err != nil {
		return err
	}
	var allowed verbs
	for i, v := range g.Verbs {
		if v == NoVerb || v >= verbCount {
			return bad(fmt.Sprintf("%s.verbs[%d]", field, i), "%s is no verb", v)
		}
		allowed |= 1 << v
	}
	number := int32(len(c.grants))
	c.grants = append(c.grants, g.Name)
	for i, subject := range g.Subjects {
		if err := subject.validate(fmt.Sprintf("%s.subjects[%d]", field, i), c.issuers); err != nil {
			return err
		}
		r := c.subjects[subject]
		if r == nil {
			r = &rights{names: map[string]*scope{}}
			c.subjects[subject] = r
		}
		r.add(&g.Groups, allowed, number)
	}
	return nil
}

// add adds the verbs that a grant allows in the given groups. After the last grant, the caller has to call finish.
func (r *rights) add(g *Groups, allowed verbs, grant int32) {
	r.any |= allowed
	if g.All {
		r.all.add(allowed, grant)
	}
	for _, name := range g.Names {
		s := r.names[name]
		if s == nil {
			s = &scope{}
			r.names[name] = s
		}
		s.add(allowed, grant)
	}
	for _, prefix := range g.Prefixes {
		s := &scope{prefix: prefix}
		s.add(allowed, grant)
		r.prefixes = append(r.prefixes, s)
	}
}

// finish sorts the prefixes and merges equal ones. It then links each prefix to its parent, which is the longest of
// the other prefixes with which it begins.
func (r *rights) finish() {
	r.all.verbs = r.all.own
	for s := range maps.Values(r.names) {
		s.verbs = s.own
	}
	slices.SortStableFunc(r.prefixes, func(a, b *scope) int { return strings.Compare(a.prefix, b.prefix) })
	joined := r.prefixes[:0]
	for _, s := range r.prefixes {
		if n := len(joined); n > 0 && joined[n-1].prefix == s.prefix {
			joined[n-1].own |= s.own
			joined[n-1].grants = append(joined[n-1].grants, s.grants...)
			continue
		}
		joined = append(joined, s)
	}
	clear(r.prefixes[len(joined):])
	r.prefixes = joined
	var last *scope
	for _, s := range r.prefixes {
		for last != nil && !strings.HasPrefix(s.prefix, last.prefix) {
			last = last.parent
		}
		s.parent, s.verbs = last, s.own
		if last != nil {
			s.verbs |= last.verbs
		}
		last = s
	}
}

// allows returns the scope that allows a verb in a group, or nil if there is none. An empty group stands for all
// groups.
func (r *rights) allows(verb Verb, group string) *scope {
	if r.all.verbs.has(verb) {
		return &r.all
	}
	if group == "" || !r.any.has(verb) {
		return nil
	}
	if s := r.names[group]; s != nil && s.verbs.has(verb) {
		return s
	}
	for s := r.longest(group); s != nil; s = s.parent {
		if !s.verbs.has(verb) {
			return nil
		}
		if s.own.has(verb) {
			return s
		}
	}
	return nil
}

// longest returns the scope with the longest prefix that matches the name of a group, or nil if no prefix matches. In
// the sorted list, it finds the last prefix that does not come after the name. If that prefix does not match, longest
// returns its nearest ancestor that does.
func (r *rights) longest(group string) *scope {
	at, found := slices.BinarySearchFunc(r.prefixes, group, func(s *scope, group string) int {
		return strings.Compare(s.prefix, group)
	})
	if !found {
		at--
	}
	if at < 0 {
		return nil
	}
	s := r.prefixes[at]
	for s != nil && !strings.HasPrefix(group, s.prefix) {
		s = s.parent
	}
	return s
}

// Version returns the version of the table, or 0 if there is no table.
func (c *Compiled) Version() int64 {
	if c == nil {
		return 0
	}
	return c.version
}

// HasIssuers reports whether tokens can identify callers.
func (c *Compiled) HasIssuers() bool { return c != nil && len(c.issuers) > 0 }

// use describes a permitted operation: the verb, and the scope whose grants permit it. If the operation needs no
// grant, scope is nil.
type use struct {
	scope *scope
	verb  Verb
}

// first reports whether this is the first use of the verb in the scope since the table was installed.
func (u use) first() bool {
	if u.scope == nil {
		return false
	}
	bit := uint32(1) << u.verb
	return u.scope.used.Load()&bit == 0 && u.scope.used.Or(bit)&bit == 0
}

// find looks for grants that allow a caller to use a verb in a group. It returns false if there are none.
func (c *Compiled) find(caller *Caller, verb Verb, group string) (use, bool) {
	if caller.process || caller.admin {
		return use{}, true
	}
	if c == nil {
		return use{}, caller.isKnown() && openToCallers.has(verb)
	}
	for i := range caller.subjects {
		if r := c.subjects[caller.subjects[i]]; r != nil {
			if s := r.allows(verb, group); s != nil {
				return use{s, verb}, true
			}
		}
	}
	return use{}, false
}

// Decide returns an error unless a caller may use a verb in a group. An empty group stands for all groups. Decide
// does not check whether the group exists. If c is nil, the store has no table. The errors have the code
// UNAUTHENTICATED or PERMISSION_DENIED, and name the caller, the verb and the group.
func (c *Compiled) Decide(caller *Caller, verb Verb, group string) error {
	if _, ok := c.find(caller, verb, group); ok {
		return nil
	}
	return c.denied(caller, verb, group)
}

func (c *Compiled) denied(caller *Caller, verb Verb, group string) error {
	if !caller.isKnown() {
		return status.Errorf(codes.Unauthenticated, "%s in %s: nobody is known to call: %s", verb, where(group), c.how())
	}
	if c == nil {
		return status.Errorf(codes.PermissionDenied,
			"%s may not %s in %s: that is for administrators and the store's own processes", caller, verb, where(group))
	}
	return status.Errorf(codes.PermissionDenied, "%s may not %s in %s: no grant of table %d allows it", caller, verb,
		where(group), c.version)
}

// how returns the part of an error message that says how callers can identify themselves.
func (c *Compiled) how() string {
	if c.HasIssuers() {
		return "show a certificate of the store's authority, or a token for the audience " + c.audience
	}
	return "show a certificate of the store's authority"
}

// where returns the words of an error message that name the group, or all groups, to which a decision applies.
func where(group string) string {
	if group == "" {
		return "all groups"
	}
	return fmt.Sprintf("group %.253q", group)
}

// Sees reports whether a caller has any right at all in a group.
func (c *Compiled) Sees(caller *Caller, group string) bool {
	if caller.MayAll() || caller.isArchiver() || c == nil {
		return caller.isKnown()
	}
	for i := range caller.subjects {
		if r := c.subjects[caller.subjects[i]]; r != nil && (r.all.verbs != 0 || r.names[group] != nil ||
			r.longest(group) != nil) {
			return true
		}
	}
	return false
}

// maySomewhere reports whether a caller may use a verb in at least one group.
func (c *Compiled) maySomewhere(caller *Caller, verb Verb) bool {
	if caller.MayAll() {
		return true
	}
	for i := range caller.subjects {
		if r := c.subjects[caller.subjects[i]]; r != nil && r.any.has(verb) {
			return true
		}
	}
	return false
}

// grantsOf returns the names of the grants that allow a use.
func (c *Compiled) grantsOf(u use) []string {
	names := make([]string, 0, len(u.scope.grants))
	for _, n := range u.scope.grants {
		names = append(names, c.grants[n])
	}
	return names
}

// Use is like Decide, but if the grants that allow the operation are used for the first time since the table was
// installed, it also returns their names.
func (c *Compiled) Use(caller *Caller, verb Verb, group string) (first []string, err error) {
	used, ok := c.find(caller, verb, group)
	if !ok {
		return nil, c.denied(caller, verb, group)
	}
	if used.first() {
		first = c.grantsOf(used)
	}
	return first, nil
}
