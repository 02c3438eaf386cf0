package access

import (
	"context"
	"encoding/base64"
	"errors"
	"strings"
	"time"
)

// pageLasts is how long a signed page token is valid.
const pageLasts = 7 * 24 * time.Hour

// SignPage signs the page token of a list within a group for a context's caller, if Call.Signs is true for that caller.
// An empty token, which means that no further page exists, remains empty. A signed token is text in URL-safe base64
// without padding. SignPage returns an error if the context has no call.
func SignPage(ctx context.Context, group, token string) (string, error) {
	call, err := callOf(ctx)
	if err != nil || token == "" || !call.Signs() {
		return token, err
	}
	return base64.RawURLEncoding.EncodeToString(call.Sign([]byte(group+"\x00"+token), pageLasts)), nil
}

// OpenPage is the inverse of SignPage. It returns ErrForged for a value that is not a token issued for this group and
// this caller, ErrOutdated for a token that is no longer valid, and a different error if the context has no call.
func OpenPage(ctx context.Context, group, sealed string) (string, error) {
	call, err := callOf(ctx)
	if err != nil || sealed == "" || !call.Signs() {
		return sealed, err
	}
	value, err := base64.RawURLEncoding.Strict().DecodeString(sealed)
	if err != nil {
		return "", ErrForged
	}
	// The first byte of an unsigned page token does not show that the token is unsigned, but such a token is shorter than
	// any signed token.
	if len(value) == unsignedPageBytes {
		return "", errUnsigned
	}
	if value, err = call.Open(value); err != nil {
		if errors.Is(err, errUnsigned) {
			return "", ErrForged // no unsigned token ever had this length
		}
		return "", err
	}
	token, ok := strings.CutPrefix(string(value), group+"\x00")
	if !ok {
		return "", ErrForged
	}
	return token, nil
}

// unsignedPageBytes is the length of the ListVersions page tokens that were issued before the store signed tokens.
const unsignedPageBytes = 20
