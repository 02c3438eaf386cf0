package access

import (
	"context"
	"encoding/base64"
	"errors"
	"strings"
	"time"
)

// pageLasts is the lifetime of page tokens, if callers are identified.
const pageLasts = 7 * 24 * time.Hour

// SignPage signs the page token of a list in a group for the caller of a context, if that caller gets signed tokens. An
// empty token, which means that no further page exists, remains empty. A signed token is text in URL-safe base64
// without padding. SignPage returns an error if the context has no call.
func SignPage(ctx context.Context, group, token string) (string, error) {
	call, err := callOf(ctx)
	if err != nil || token == "" || !call.Signs() {
		return token, err
	}
	return base64.RawURLEncoding.EncodeToString(call.Sign([]byte(group+"\x00"+token), pageLasts)), nil
}

// OpenPage is the inverse of SignPage. It returns ErrForged (also for a token of another group) or ErrOutdated, or
// a different error if the context has no call.
func OpenPage(ctx context.Context, group, sealed string) (string, error) {
	call, err := callOf(ctx)
	if err != nil || sealed == "" || !call.Signs() {
		return sealed, err
	}
	value, err := base64.RawURLEncoding.Strict().DecodeString(sealed)
	if err != nil {
		return "", ErrForged
	}
	// Other unsigned values can be recognised by their first byte. An unsigned page token cannot be recognised in this
	// way, but it is shorter than any signed token.
	if len(value) == unsignedPageBytes {
		return "", errUnsigned
	}
	if value, err = call.Open(value); err != nil {
		if errors.Is(err, errUnsigned) {
			return "", ErrForged // unsigned tokens never had this length
		}
		return "", err
	}
	token, ok := strings.CutPrefix(string(value), group+"\x00")
	if !ok {
		return "", ErrForged
	}
	return token, nil
}

// unsignedPageBytes is the length of the unsigned tokens of ListVersions, from the time before the store signed them.
const unsignedPageBytes = 20
