package cloud

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"net/http"
	"net/url"
	"strings"
	"syscall"
	"testing"

	"github.com/Azure/azure-sdk-for-go/sdk/azcore"
	"google.golang.org/api/googleapi"

	"sheaf.dev/sheaf/internal/archive/bucket"
)

// These are the errors of providers that no test can reach, in the form in which the providers' libraries return
// them.
func TestReasonsOfProviders(t *testing.T) {
	azure := func(status int, code string) error {
		return &azcore.ResponseError{StatusCode: status, ErrorCode: code, RawResponse: &http.Response{}}
	}
	google := func(status int, reason string) error {
		return &googleapi.Error{Code: status, Errors: []googleapi.ErrorItem{{Reason: reason}}}
	}
	for _, c := range []struct {
		err  error
		want bucket.Reason
	}{
		{azure(404, "BlobNotFound"), bucket.Other}, // callers get fs.ErrNotExist for this error
		{azure(404, "ContainerNotFound"), bucket.NoBucket},
		{azure(403, "AuthenticationFailed"), bucket.Credentials},
		{azure(403, "AuthorizationPermissionMismatch"), bucket.Forbidden},
		{azure(503, "ServerBusy"), bucket.Busy},
		{google(403, "forbidden"), bucket.Forbidden}, // gocloud.dev reports this error as a missing object
		{google(403, "rateLimitExceeded"), bucket.Busy},
		{google(401, "authError"), bucket.Credentials},
		{google(429, ""), bucket.Busy},
		{google(404, "notFound"), bucket.Other},
		{&url.Error{Op: "Get", Err: errors.New("no such host")}, bucket.Away},
		{&net.OpError{Op: "dial", Err: &net.DNSError{Err: "no such host"}}, bucket.Away},
		{&url.Error{Op: "Get", Err: context.DeadlineExceeded}, bucket.Late},
		{&url.Error{Op: "Get", Err: syscall.ECONNREFUSED}, bucket.Away},
		{errors.New("failed to refresh cached credentials"), bucket.Credentials},
		{errors.New("?"), bucket.Other},
	} {
		if got := reasonOf(fmt.Errorf("open: %w", c.err)); got != c.want {
			t.Errorf("%v: %q, want %q", c.err, got, c.want)
		}
	}
}

func TestURLs(t *testing.T) {
	t.Setenv("AWS_CONFIG_FILE", "/dev/null")
	dir := t.TempDir()
	for text, says := range map[string]string{
		"file://" + dir + "/archive":    "",
		"file://localhost" + dir + "/a": "",
		"s3://b?region=eu":              "",
		"s3://b/a/b/?region=eu&endpoint=http://x&request_checksum_calculation=when_required": "",
		"file://host" + dir:                     "file:///FOLDER",
		"file://" + dir + "?metadata=skip":      "file:///FOLDER",
		"file://" + dir + "/none/archive":       "mount its file system",
		"s3://key:secret@b":                     "credentials come from the environment",
		"s3:b":                                  "SCHEME://BUCKET",
		"s3://b#x":                              "SCHEME://BUCKET",
		"s3://b/a//b":                           "a part that is empty",
		"s3://b/" + strings.Repeat("a/", 220):   "at most 400",
		"s3://b?prefix=a":                       "write the folder as a path",
		"s3://b?request_checksum_calculation=x": "request_checksum_calculation",
		"s3://b?unknown=x":                      "unknown",
		"mem://":                                "its scheme must be",
		"backups":                               "its scheme must be",
		"%":                                     "URL of the archive",
	} {
		b, err := Open(t.Context(), text)
		switch {
		case says == "" && err != nil:
			t.Errorf("%s: %v", text, err)
		case says != "" && (err == nil || !strings.Contains(err.Error(), says)):
			t.Errorf("%s: %v", text, err)
		case err != nil && strings.Contains(err.Error(), "secret"):
			t.Errorf("%s: the error tells the password: %v", text, err)
		}
		if err == nil {
			if err := b.Close(); err != nil {
				t.Error(err)
			}
		}
	}
}

// If an object does not exist, that is an answer of the bucket and not a failure, so the error has no reason.
func TestAnswersHaveNoReason(t *testing.T) {
	b := inMemory()
	_, err := b.Stat(t.Context(), "x")
	if !errors.Is(err, fs.ErrNotExist) || bucket.ReasonOf(err) != "" || !strings.Contains(err.Error(), "mem://test/x") {
		t.Error(err)
	}
}
