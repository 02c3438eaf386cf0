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

// SignPage signs the page token of a listing within a group, for the caller in the context. It does so only if
// Call.Signs is true for that caller. An empty token means that there is no further page, and remains empty. A signed
// token is text in URL-safe base64 without padding. If the context has no call, SignPage returns an error.
func SignPage(ctx context.Context, group, token string) (string, error) {
	call, err := callOf(ctx)
	if err != nil || token == "" || !call.Signs() {
		return token, err
	}
	return base64.RawURLEncoding.EncodeToString(call.Sign([]byte(group+"\x00"+token), pageLasts)), nil
}

// OpenPage verifies and unpacks a token from SignPage. It returns ErrForged if the token was not issued for this
// group and this caller, ErrOutdated if the token is no longer valid, and a different error if the context has no
// call.
func OpenPage(ctx context.Context, group, sealed string) (string, error) {
	call, err := callOf(ctx)
	if err != nil || sealed == "" || !call.Signs() {
		return sealed, err
	}
	value, err := base64.RawURLEncoding.Strict().DecodeString(sealed)
	if err != nil {
		return "", ErrForged
	}
	// An unsigned page token cannot be recognized by its first byte. It can be recognized by its length, because it is
	// shorter than every signed token.
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

// unsignedPageBytes is the length of the page tokens that ListVersions returned before the store began to sign
// tokens.
const unsignedPageBytes = 20
