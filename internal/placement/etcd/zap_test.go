package etcd

import (
	"bytes"
	"errors"
	"log/slog"
	"strings"
	"testing"

	"go.uber.org/zap"
)

// What etcd says at a first start, where nothing is wrong, is no error; any other failure of the same step is.
func TestAFirstStartLogsNoError(t *testing.T) {
	for why, want := range map[string]bool{
		"cannot detect storage schema version: missing term information": false,
		"cannot detect storage schema version: disk I/O error":           true,
	} {
		var out bytes.Buffer
		logger := zap.New(&zapCore{logger: slog.New(slog.NewTextHandler(&out, nil))})
		logger.Error("failed to update storage version", zap.Error(errors.New(why)))
		if got := strings.Contains(out.String(), "level=ERROR"); got != want {
			t.Errorf("%s: %q", why, out.String())
		}
	}
}
