package reader_test

import (
	"bytes"
	"encoding/json"
	"io"
	"testing"

	"sheaf.dev/sheaf/internal/archive/object"
	"sheaf.dev/sheaf/internal/archive/reader"
	"sheaf.dev/sheaf/internal/test/archivetest"
)

// FuzzArchive replaces the headers of the sample's last log object and of alpha's catalogue, and the body of the log
// object. All checksums remain correct. The reader must either refuse or read these objects, but must never panic or
// hang.
func FuzzArchive(f *testing.F) {
	b, w := sample(f, object.Key{}, 50)
	logName, catalogueName := w.Name(object.LogName(6)), w.Name(object.CatalogueName(w.Groups[0].UUID, 2))
	logHeader, body := decoded(f, b.Get(w.Name(object.LogName(5))), object.KindLog)
	catalogue, _ := decoded(f, b.Get(catalogueName), object.KindCatalogue)
	f.Add(logHeader, body, catalogue)
	f.Add([]byte(`{"pieces":[]}`), []byte{}, []byte(`{"segments":[{"first":1,"last":9,"id":"0000000000000000"}],"log":4}`))
	f.Fuzz(func(t *testing.T, logHeader, body, catalogue []byte) {
		b, w := sample(t, object.Key{}, 50)
		var l object.Log
		var c object.Catalogue
		if json.Unmarshal(logHeader, &l) != nil || json.Unmarshal(catalogue, &c) != nil {
			return
		}
		e, err := object.DecodeEnvelope(b.Get(w.Name(object.LogName(5))))
		if err != nil {
			t.Fatal(err)
		}
		l.Previous, c.Group = e.CRC(), w.Groups[0].UUID
		replace(t, b, w, logName, &l, body)
		replace(t, b, w, catalogueName, &c, nil)
		if _, err := reader.Verify(t.Context(), b, w.Store, nil, reader.VerifyOptions{}); err != nil {
			t.Fatal(err)
		}
		a := open(t, b, w)
		groups, err := a.Groups(t.Context())
		if err != nil {
			return
		}
		for _, g := range groups {
			for v, err := range g.State(t.Context(), g.Through) {
				if err != nil {
					break
				}
				if _, err := record(t.Context(), v); err != nil {
					break
				}
			}
			_, _ = g.At(t.Context(), w.Now())
			_, _ = g.Versions(t.Context(), 1)
		}
	})
}

// decoded returns an object's header and body.
func decoded(f *testing.F, b []byte, kind object.Kind) (header, body []byte) {
	f.Helper()
	d, err := object.NewDecoder(bytes.NewReader(b), archivetest.SampleStore, kind, nil)
	if err != nil {
		f.Fatal(err)
	}
	content, err := io.ReadAll(d)
	if err != nil {
		f.Fatal(err)
	}
	e := d.Envelope()
	return content[:e.HeaderBytes], content[e.HeaderBytes:]
}

// replace writes an object whose header an encoder accepts.
func replace(t *testing.T, b *archivetest.Memory, w *archivetest.Writer, name string, h object.Header, body []byte) {
	t.Helper()
	e, err := object.NewEncoder(object.Spec{
		Store: w.Store, Header: h, Body: bytes.NewReader(body), BodyBytes: int64(len(body)),
	})
	if err != nil {
		t.Skip("no encoder makes such an object")
	}
	content, err := io.ReadAll(e)
	if err != nil {
		t.Fatal(err)
	}
	b.Set(name, content)
}
