package faultdisk

// PageBytes is the size of the pages in which a disk's content is stored. Several images may share a page.
const PageBytes = 4096

// Image is a disk's content at one moment. It is immutable, and shares equal pages with other images.
type Image struct{ pages pages }

// pages are a disk's content. A nil page holds zeros. A page is never changed in place, only replaced by another one.
// So a copy of the slice is a copy of the whole disk.
type pages []*[PageBytes]byte

func (p pages) size() int64 { return int64(len(p)) * PageBytes }

func (p pages) read(to []byte, offset int64) {
	for len(to) > 0 {
		at := int(offset % PageBytes)
		n := min(len(to), PageBytes-at)
		if page := p[offset/PageBytes]; page != nil {
			copy(to[:n], page[at:])
		} else {
			clear(to[:n])
		}
		to, offset = to[n:], offset+int64(n)
	}
}

func (p pages) write(from []byte, offset int64) {
	for len(from) > 0 {
		at := int(offset % PageBytes)
		n := min(len(from), PageBytes-at)
		p.page(offset/PageBytes).set(from[:n], at)
		from, offset = from[n:], offset+int64(n)
	}
}

func (p pages) zero(offset, bytes int64) {
	for bytes > 0 {
		at := offset % PageBytes
		n := min(bytes, PageBytes-at)
		if n == PageBytes {
			p[offset/PageBytes] = nil
		} else {
			p.page(offset/PageBytes).set(make([]byte, n), int(at))
		}
		offset, bytes = offset+n, bytes-n
	}
}

// page replaces a page with a copy, which the caller may change.
func (p pages) page(number int64) *page {
	fresh := new(page)
	if old := p[number]; old != nil {
		*fresh = page(*old)
	}
	p[number] = (*[PageBytes]byte)(fresh)
	return fresh
}

type page [PageBytes]byte

func (p *page) set(from []byte, at int) { copy(p[at:], from) }
