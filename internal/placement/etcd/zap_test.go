package etcd

import (
	"bytes"
	"errors"
	"log/slog"
	"strings"
	"testing"

	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"

	"sheaf.dev/sheaf/internal/test/must"
)

// TestAnEmbeddedEtcdSaysWhyItEndsTheProcess makes etcd's disk fail, so that etcd exits the process. The last message
// of etcd must be forwarded, together with the folder and advice on what to do. All other messages must be discarded.
func TestAnEmbeddedEtcdSaysWhyItEndsTheProcess(t *testing.T) {
	var said bytes.Buffer
	before := slog.Default()
	slog.SetDefault(slog.New(slog.NewTextHandler(&said, nil)))
	defer slog.SetDefault(before)
	cfg := config("/data/etcd")
	must.OK(t, cfg.ZapLoggerBuilder(cfg))
	logger := cfg.GetLogger().With(zap.String("of", "backend")).WithOptions(zap.WithFatalHook(zapcore.WriteThenPanic))
	logger.Error("failed to update storage version")
	if said.Len() > 0 {
		t.Errorf("of a start that is well it says: %s", &said)
	}
	func() {
		defer func() { _ = recover() }()
		logger.Fatal("failed to commit tx", zap.Error(errors.New("read-only file system")))
	}()
	for _, words := range []string{"/data/etcd", "failed to commit tx", "read-only file system",
		"start the process again"} {
		if !strings.Contains(said.String(), words) {
			t.Errorf("it does not say %q: %s", words, &said)
		}
	}
}

// When etcd starts for the first time, it logs an error although nothing is wrong. Sheaf must not log that message as
// an error. If the same step fails for any other reason, Sheaf must log an error.
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
