package cloud

import (
	"errors"
	"net"
	"net/http"
	"net/url"
	"strings"

	"github.com/Azure/azure-sdk-for-go/sdk/azcore"
	awshttp "github.com/aws/aws-sdk-go-v2/aws/transport/http"
	"github.com/aws/smithy-go"
	smithyhttp "github.com/aws/smithy-go/transport/http"
	"google.golang.org/api/googleapi"

	"sheaf.dev/sheaf/internal/archive/bucket"
)

// status is what a provider answered: an HTTP status and the provider's own error code. Either may be empty.
type status struct {
	http int
	code string
}

func statusOf(err error) status {
	var s status
	if e, ok := errors.AsType[*awshttp.ResponseError](err); ok {
		s.http = e.HTTPStatusCode()
	}
	if e, ok := errors.AsType[smithy.APIError](err); ok {
		s.code = e.ErrorCode()
	}
	if e, ok := errors.AsType[*azcore.ResponseError](err); ok {
		s = status{e.StatusCode, e.ErrorCode}
	}
	if e, ok := errors.AsType[*googleapi.Error](err); ok {
		s.http = e.Code
		for _, item := range e.Errors {
			s.code = item.Reason
		}
	}
	return s
}

// codes maps the error codes of S3, Google and Azure that are more precise than the HTTP status that comes with them.
var codes = map[string]bucket.Reason{
	"NoSuchBucket": bucket.NoBucket, "PermanentRedirect": bucket.NoBucket, "AuthorizationHeaderMalformed": bucket.NoBucket,
	"ContainerNotFound": bucket.NoBucket, "ContainerBeingDeleted": bucket.NoBucket, "AccountIsDisabled": bucket.NoBucket,

	"InvalidAccessKeyId": bucket.Credentials, "SignatureDoesNotMatch": bucket.Credentials,
	"ExpiredToken": bucket.Credentials, "ExpiredTokenException": bucket.Credentials, "InvalidToken": bucket.Credentials,
	"RequestTimeTooSkewed": bucket.Credentials, "InvalidClientTokenId": bucket.Credentials,
	"AuthenticationFailed": bucket.Credentials, "InvalidAuthenticationInfo": bucket.Credentials,
	"authError": bucket.Credentials,

	"AccessDenied": bucket.Forbidden, "AllAccessDisabled": bucket.Forbidden, "AuthorizationFailure": bucket.Forbidden,
	"AuthorizationPermissionMismatch": bucket.Forbidden, "ObjectLocked": bucket.Forbidden,

	"SlowDown": bucket.Busy, "ServiceUnavailable": bucket.Busy, "RequestLimitExceeded": bucket.Busy,
	"ServerBusy": bucket.Busy, "Throttling": bucket.Busy, "TooManyRequests": bucket.Busy, "rateLimitExceeded": bucket.Busy,
	"ConditionalRequestConflict": bucket.Busy, // another request is creating an object with this name

	"QuotaExceeded": bucket.Full, "XMinioStorageFull": bucket.Full, "InsufficientStorage": bucket.Full,
	"AccountQuotaExceeded": bucket.Full, "quotaExceeded": bucket.Full, "storageQuotaExceeded": bucket.Full,
}

// statuses maps the HTTP statuses that are precise enough without an error code.
var statuses = map[int]bucket.Reason{
	http.StatusUnauthorized: bucket.Credentials, http.StatusForbidden: bucket.Forbidden,
	http.StatusTooManyRequests: bucket.Busy, http.StatusServiceUnavailable: bucket.Busy,
	http.StatusInsufficientStorage: bucket.Full, http.StatusMovedPermanently: bucket.NoBucket,
	http.StatusBadGateway: bucket.Away, http.StatusGatewayTimeout: bucket.Away,
}

// reasonOf classifies an error of a provider.
func reasonOf(err error) bucket.Reason {
	s := statusOf(err)
	if reason, ok := codes[s.code]; ok {
		return reason
	}
	if reason, ok := statuses[s.http]; ok {
		return reason
	}
	if reason := bucket.ReasonOf(err); reason != bucket.Other || s.http >= http.StatusMultipleChoices {
		return reason
	}
	if notSent(err) {
		return bucket.Away
	}
	// For two errors, a wrong checksum and missing credentials, the libraries have no error type but only a text.
	switch text := strings.ToLower(err.Error()); {
	case strings.Contains(text, "checksum did not match"):
		return bucket.Broken
	case strings.Contains(text, "credential"), strings.Contains(text, "token"):
		return bucket.Credentials
	}
	return bucket.Other
}

// notSent reports whether a request failed before the provider answered.
func notSent(err error) bool {
	if _, ok := errors.AsType[*smithyhttp.RequestSendError](err); ok {
		return true
	}
	if _, ok := errors.AsType[*url.Error](err); ok {
		return true
	}
	_, ok := errors.AsType[*net.OpError](err) // this includes the case that DNS does not know the name
	return ok
}
