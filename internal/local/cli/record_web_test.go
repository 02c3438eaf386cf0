package cli

import (
	"bytes"
	"testing"
	"time"

	"sheaf.dev/sheaf/client"
	"sheaf.dev/sheaf/client/recordv1"
	"sheaf.dev/sheaf/internal/base/crc32c"
	"sheaf.dev/sheaf/internal/call/web"
)

// The JSON of a record in an archive over HTTP is the JSON that the commands print.
func TestRecordsHaveOneJSON(t *testing.T) {
	data, sum := []byte("hello"), crc32c.Of([]byte("hello"))
	at := time.Date(2026, 11, 30, 18, 11, 40, 457210709, time.UTC)
	for _, attributes := range []map[string][]byte{nil, {"b": []byte("<&é\""), "a": []byte("x"), "c": {0xff}}} {
		var printed bytes.Buffer
		r := client.Record{Key: client.Key{ID: -7, Group: "a.b"}, Version: "27", Timestamp: at, CommitTime: at, Size: 5,
			Attributes: attributes, Data: data, HasData: true}
		if err := WriteJSONLine(&printed, r, nil); err != nil {
			t.Fatal(err)
		}
		got := web.AppendJSON(nil, &recordv1.Record{Key: &recordv1.RecordKey{Id: -7, Group: "a.b"}, Version: "27",
			TimestampUnixNs: at.UnixNano(), CommitTimeUnixNs: at.UnixNano(), SizeBytes: 5, Attributes: attributes,
			DataCrc32C: &sum})
		if string(got) != printed.String() {
			t.Errorf("got  %swant %s", got, printed.String())
		}
	}
}
