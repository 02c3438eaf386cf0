// Package cloud opens the buckets in which archives are kept: S3, Google Cloud Storage, Azure, and folders.
package cloud

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"strings"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/s3"
	"github.com/aws/smithy-go/logging"
	"gocloud.dev/blob"
	_ "gocloud.dev/blob/azureblob" // azblob://
	_ "gocloud.dev/blob/gcsblob"   // gs://
	"gocloud.dev/blob/s3blob"

	"sheaf.dev/sheaf/internal/archive/bucket"
	"sheaf.dev/sheaf/internal/storage/vfs"
)

// prefixBytesMax is the maximum length of the path in a URL. An object's name adds up to 512 bytes to it, and S3
// allows 1,024 bytes in total.
const prefixBytesMax = 400

// Open opens the bucket at a URL: file:///FOLDER, s3://BUCKET/PATH, gs://BUCKET/PATH or azblob://CONTAINER/PATH. A
// URL may have the options of gocloud.dev, such as region, endpoint, use_path_style and request_checksum_calculation
// for S3. The credentials come from the same environment variables and files that the provider's own tools use. Open
// sends no request to the bucket; bucket.Probe does.
func Open(ctx context.Context, text string) (bucket.Bucket, error) { return open(ctx, text, nil) }

func open(ctx context.Context, text string, retryer aws.Retryer) (bucket.Bucket, error) {
	u, err := url.Parse(text)
	if err != nil {
		return nil, fmt.Errorf("URL of the archive: %w", err)
	}
	switch {
	case u.User != nil:
		return nil, fmt.Errorf("URL of the archive %s: it has a user or password; credentials come from the environment",
			u.Redacted())
	case u.Opaque != "" || u.Fragment != "":
		return nil, fmt.Errorf("URL of the archive %s: write SCHEME://BUCKET/PATH?OPTIONS", u.Redacted())
	}
	switch u.Scheme {
	case "file":
		return openFolder(u)
	case "s3", "gs", "azblob":
		return openCloud(ctx, u, retryer)
	}
	return nil, fmt.Errorf("URL of the archive %s: its scheme must be file, s3, gs or azblob", u.Redacted())
}

func openFolder(u *url.URL) (bucket.Bucket, error) {
	if u.Host != "" && u.Host != "localhost" || u.RawQuery != "" || !strings.HasPrefix(u.Path, "/") {
		return nil, fmt.Errorf("URL of the archive %s: a folder is written file:///FOLDER, without options", u)
	}
	b, err := bucket.OpenFolder(vfs.OS{}, u.Path)
	if err != nil {
		return nil, err // b is a nil *Folder, and an interface that contains it would not be nil
	}
	return b, nil
}

func openCloud(ctx context.Context, u *url.URL, retryer aws.Retryer) (bucket.Bucket, error) {
	place := u.Scheme + "://" + u.Host + strings.TrimRight(u.Path, "/")
	prefix := strings.Trim(u.Path, "/")
	if prefix != "" {
		if err := bucket.CheckName(prefix); err != nil {
			return nil, fmt.Errorf("path in the URL of the archive %s: %w", place, err)
		}
		prefix += "/"
	}
	if len(prefix) > prefixBytesMax {
		return nil, fmt.Errorf("path in the URL of the archive %s: %d bytes, at most %d are allowed", place, len(prefix),
			prefixBytesMax)
	}
	for _, option := range []string{"prefix", "key"} {
		if u.Query().Has(option) {
			return nil, fmt.Errorf("URL of the archive %s: write the folder as a path, not as the option %s", place, option)
		}
	}
	opener := blob.DefaultURLMux().OpenBucketURL
	if u.Scheme == "s3" {
		opener = func(ctx context.Context, u *url.URL) (*blob.Bucket, error) { return openS3(ctx, u, retryer) }
	}
	blobs, err := opener(ctx, &url.URL{Scheme: u.Scheme, Host: u.Host, RawQuery: u.RawQuery})
	if err != nil {
		return nil, &bucket.Error{Op: "open", Bucket: place, Reason: reasonOf(err), Err: err}
	}
	return &Bucket{blobs: blobs, place: place, container: u.Host, prefix: prefix}, nil
}

// openS3 opens a bucket with the options of gocloud.dev in a URL. The client retries requests as retryer specifies. If
// retryer is nil, the client uses the library's default, which is three attempts.
func openS3(ctx context.Context, u *url.URL, retryer aws.Retryer) (*blob.Bucket, error) {
	var opener s3blob.URLOpener
	plain, err := opener.OpenBucketURL(ctx, u) // also stores the options from the URL in the opener
	if err != nil {
		return nil, err
	}
	var client *s3.Client
	if !plain.As(&client) {
		return nil, errors.New("the library of S3 has no client")
	}
	options := client.Options()
	// The library would warn, for each object uploaded in parts, that S3 has no checksum of the whole object.
	options.Logger = logging.Nop{}
	if retryer != nil {
		options.Retryer = retryer
	}
	return s3blob.OpenBucket(ctx, s3.New(options), u.Host, &opener.Options)
}
