package access

import (
	"context"
	"encoding/base64"
	"errors"
	"strings"
	"time"
)

// pageLasts is how long tokens of pages are taken, where callers are known.
const pageLasts = 7 * 24 * time.Hour

// SealPage signs the token of a page of a list in a group, for the caller of a context, where there is one that gets
// signed ones; an empty token, which says that there is no further page, stays. A signed one is text, in URL-safe
// base64 without padding.
func SealPage(ctx context.Context, group, token string) string {
	call := CallOf(ctx)
	if token == "" || call == nil || !call.Signs() {
		return token
	}
	return base64.RawURLEncoding.EncodeToString(call.Seal([]byte(group+"\x00"+token), pageLasts))
}

// OpenPage is the reverse of SealPage. Errors are ErrForged, also for a token of another group, or ErrOutdated.
func OpenPage(ctx context.Context, group, sealed string) (string, error) {
	call := CallOf(ctx)
	if sealed == "" || call == nil || !call.Signs() {
		return sealed, nil
	}
	value, err := base64.RawURLEncoding.Strict().DecodeString(sealed)
	if err != nil {
		return "", ErrForged
	}
	// A token that is not signed does not begin as one of an older format does, as values that are signed do, but it is
	// shorter than any signed one.
	if len(value) == unsignedPageBytes {
		return "", errUnsigned
	}
	if value, err = call.Open(value); err != nil {
		if errors.Is(err, errUnsigned) {
			return "", ErrForged // of this length there was never one that is not signed
		}
		return "", err
	}
	token, ok := strings.CutPrefix(string(value), group+"\x00")
	if !ok {
		return "", ErrForged
	}
	return token, nil
}

// unsignedPageBytes is the length of the tokens of ListVersions that are not signed, as they were before the store
// signed them.
const unsignedPageBytes = 20
