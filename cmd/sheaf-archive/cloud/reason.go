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

// status is what a provider has answered: a status of HTTP, and the provider's own word. Either may be empty.
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

// codes are the words of S3, Google and Azure that say more than the status of HTTP beside them.
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
	"ConditionalRequestConflict": bucket.Busy, // somebody creates this name right now

	"QuotaExceeded": bucket.Full, "XMinioStorageFull": bucket.Full, "InsufficientStorage": bucket.Full,
	"AccountQuotaExceeded": bucket.Full, "quotaExceeded": bucket.Full, "storageQuotaExceeded": bucket.Full,
}

// statuses are the statuses of HTTP that say enough without a word.
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
	// Libraries have no types for checksums that differ and for credentials that they did not find.
	switch text := strings.ToLower(err.Error()); {
	case strings.Contains(text, "checksum did not match"):
		return bucket.Broken
	case strings.Contains(text, "credential"), strings.Contains(text, "token"):
		return bucket.Credentials
	}
	return bucket.Other
}

// notSent reports whether a request failed on its way, before any answer.
func notSent(err error) bool {
	if _, ok := errors.AsType[*smithyhttp.RequestSendError](err); ok {
		return true
	}
	if _, ok := errors.AsType[*url.Error](err); ok {
		return true
	}
	_, ok := errors.AsType[*net.OpError](err) // also a name that DNS does not know
	return ok
}
