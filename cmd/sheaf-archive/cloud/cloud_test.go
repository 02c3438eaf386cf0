package cloud

import (
	"errors"
	"fmt"
	"io/fs"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/s3"
	"gocloud.dev/blob/memblob"

	"sheaf.dev/sheaf/internal/archive/bucket"
	"sheaf.dev/sheaf/internal/test/buckettest"
)

// inMemory returns a bucket of gocloud.dev that is in memory. No URL can open such a bucket.
func inMemory() *Bucket {
	return &Bucket{blobs: memblob.OpenBucket(nil), place: "mem://test", prefix: "some/where/"}
}

func TestConformanceInMemory(t *testing.T) {
	buckettest.Run(t, func(*testing.T) bucket.Bucket { return inMemory() })
}

func TestConformanceOfFolders(t *testing.T) {
	buckettest.Run(t, func(t *testing.T) bucket.Bucket {
		b, err := Open(t.Context(), "file://"+filepath.Join(t.TempDir(), "archive"))
		if err != nil {
			t.Fatal(err)
		}
		return b
	})
}

func TestConformanceOfS3(t *testing.T) {
	r := newRig(t)
	buckettest.Run(t, func(t *testing.T) bucket.Bucket { return r.open(t) })
}

// An object that fences off another writer has to be created by a single request, because servers differ in how they
// treat the condition "only if it does not exist" for multipart uploads.
func TestObjectsBelow16MiBAreOneRequest(t *testing.T) {
	r := newRig(t)
	b := r.open(t)
	r.proxy.Requests()
	if err := create(t, b, "log", buckettest.Content(16<<20-1, 1)); err != nil {
		t.Fatal(err)
	}
	if sent := r.proxy.Requests(); len(sent) != 1 || sent[0].Method != http.MethodPut ||
		strings.Contains(sent[0].URI, "uploadId") {
		t.Errorf("requests: %v", sent)
	}
	if err := create(t, b, "segment", buckettest.Content(17<<20, 1)); err != nil {
		t.Fatal(err)
	}
	// One request begins the upload, three send parts of up to 8 MiB, and one completes it.
	if sent := r.proxy.Requests(); len(sent) != 5 {
		t.Errorf("requests: %v", sent)
	}
	if err := create(t, b, "segment", buckettest.Content(17<<20, 2)); !errors.Is(err, fs.ErrExist) {
		t.Errorf("a second large object: %v", err)
	}
}

func TestBucketsPassTheProbe(t *testing.T) {
	r := newRig(t)
	for _, b := range []*Bucket{inMemory(), r.open(t)} {
		probed, err := bucket.Probe(t.Context(), b)
		if err != nil || probed.Kept != nil {
			t.Errorf("%s: %+v, %v", b.place, probed, err)
		}
		if left := listNames(t, b, ""); len(left) > 0 {
			t.Errorf("left: %q", left)
		}
	}
}

// The parts of an upload that was never completed are removed once they are old.
func TestUnfinishedUploadsAreAborted(t *testing.T) {
	r := newRig(t)
	b := r.open(t)
	var client *s3.Client
	if !b.blobs.As(&client) {
		t.Fatal("no client")
	}
	for _, key := range []string{b.prefix + "g/1", b.prefix + "g/2", "others/g/1"} {
		if _, err := client.CreateMultipartUpload(t.Context(), &s3.CreateMultipartUploadInput{
			Bucket: aws.String(name), Key: aws.String(key),
		}); err != nil {
			t.Fatal(err)
		}
	}
	for _, c := range []struct {
		before time.Time
		want   int
	}{{time.Now().Add(-time.Hour), 0}, {time.Now().Add(time.Hour), 2}, {time.Now().Add(time.Hour), 0}} {
		removed, err := bucket.RemoveLeftovers(t.Context(), b, c.before)
		if err != nil || removed != c.want {
			t.Errorf("%d removed, want %d: %v", removed, c.want, err)
		}
	}
	all, err := client.ListMultipartUploads(t.Context(), &s3.ListMultipartUploadsInput{Bucket: aws.String(name)})
	if err != nil || len(all.Uploads) != 1 || aws.ToString(all.Uploads[0].Key) != "others/g/1" {
		t.Errorf("left: %+v, %v", all, err)
	}
	if removed, err := bucket.RemoveLeftovers(t.Context(), inMemory(), time.Now()); removed != 0 || err != nil {
		t.Errorf("%d, %v", removed, err)
	}
}

// A bucket that does not exist must not look like an empty bucket.
func TestABucketThatIsMissingIsAnError(t *testing.T) {
	r := newRig(t)
	b := r.open(t)
	if err := create(t, b, "x", []byte("x")); err != nil {
		t.Fatal(err)
	}
	bucketDir := filepath.Join(r.dir, name)
	if err := os.Rename(bucketDir, bucketDir+"-gone"); err != nil {
		t.Fatal(err)
	}
	for op, err := range calls(t, b) {
		if bucket.ReasonOf(err) != bucket.NoBucket || errors.Is(err, fs.ErrNotExist) ||
			!strings.Contains(err.Error(), "Sheaf creates no buckets") {
			t.Errorf("%s: %q: %v", op, bucket.ReasonOf(err), err)
		}
	}
	if _, err := bucket.Probe(t.Context(), b); bucket.ReasonOf(err) != bucket.NoBucket {
		t.Errorf("probe: %v", err)
	}
}

// calls makes one call of each kind for the object x, and returns the errors.
func calls(t *testing.T, b bucket.Bucket) map[string]error {
	t.Helper()
	ctx := t.Context()
	errs := map[string]error{"create": create(t, b, "x", []byte("x")), "delete": b.Delete(ctx, "x")}
	_, errs["stat"] = b.Stat(ctx, "x")
	_, errs["open"] = read(ctx, b, "x", 0, -1)
	_, errs["open nothing"] = read(ctx, b, "x", 0, 0)
	errs["list"] = nil
	for _, err := range b.List(ctx, "", "") {
		errs["list"] = err
	}
	return errs
}

// An archive does not see the objects of an archive at another path.
func TestPathsSeparateArchives(t *testing.T) {
	r := newRig(t)
	one, two := r.open(t), r.open(t)
	for i, b := range []*Bucket{one, two} {
		if err := create(t, b, "x", fmt.Append(nil, i)); err != nil {
			t.Fatal(err)
		}
	}
	for i, b := range []*Bucket{one, two} {
		if got, err := read(t.Context(), b, "x", 0, -1); err != nil || string(got) != fmt.Sprint(i) {
			t.Errorf("%q, %v", got, err)
		}
		if names := listNames(t, b, ""); len(names) != 1 || names[0] != "x" {
			t.Errorf("listed: %q", names)
		}
	}
}

// A range that begins beyond the end of an object is empty.
func TestRangesBehindTheEnd(t *testing.T) {
	r := newRig(t)
	b := r.open(t)
	for _, content := range []string{"", "abc"} {
		if err := create(t, b, "x"+content, []byte(content)); err != nil {
			t.Fatal(err)
		}
		for _, part := range [][2]int64{{3, -1}, {3, 1}, {4, 2}, {0, 0}, {3, 0}} {
			if got, err := read(t.Context(), b, "x"+content, part[0], part[1]); len(got) > 0 || err != nil {
				t.Errorf("%v of %q: %q, %v", part, content, got, err)
			}
		}
	}
	if got, err := read(t.Context(), b, "xabc", 1, 9); string(got) != "bc" || err != nil {
		t.Errorf("%q, %v", got, err)
	}
}
