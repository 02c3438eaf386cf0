package reader

import "context"

// While the entries of one object are read, the objects behind it are opened. A group of few writes has many small
// objects, and each request to a bucket takes many milliseconds, of which nearly all is waiting.

// aheadMax is the maximum number of objects of one group that are opened before they are needed. Each holds up to one
// chunk, which is 1 MiB, in memory.
const aheadMax = 4

// upcoming is a source whose object may be opened before its entries are needed.
type upcoming struct {
	source
	opening chan struct{} // closed when the attempt to open the object has ended; nil if there was none

	// These fields are the result of that attempt. They are set before opening is closed.
	opened    opened
	openedAs  source // the source, with the Range in the header of the object
	openedErr error
}

// openAhead opens the next few objects.
func (m *merger) openAhead() {
	for _, u := range m.waiting[:min(aheadMax, len(m.waiting))] {
		u.openAhead(m.ctx, m.folder)
	}
}

// openAhead begins to open a segment object. A piece of a log object has been opened already, and is mostly in memory.
func (u *upcoming) openAhead(ctx context.Context, f *folder) {
	if u.opening != nil || u.log != nil {
		return
	}
	u.opening, u.openedAs = make(chan struct{}), u.source
	go func() {
		defer close(u.opening)
		u.opened, u.openedErr = u.openedAs.open(ctx, f)
	}()
}

// wait returns the opened object. It must be called at most once, and not after discard.
func (u *upcoming) wait(ctx context.Context, f *folder) (opened, error) {
	if u.opening == nil {
		return u.open(ctx, f)
	}
	<-u.opening
	u.source = u.openedAs
	return u.opened, u.openedErr
}

// discard closes an object that is not needed. The context of openAhead must have ended.
func (u *upcoming) discard() {
	if u.opening == nil {
		return
	}
	if <-u.opening; u.openedErr == nil {
		u.opened.content.close()
	}
}
