package etcd

import (
	"context"
	"log/slog"
	"strings"

	"go.uber.org/zap/zapcore"
)

// zapCore is a zapcore.Core that forwards etcd's log to slog. It turns etcd's info level into debug, because etcd
// logs every step that it takes.
type zapCore struct {
	logger *slog.Logger
	fields []zapcore.Field
	// last is called with the messages that etcd logs just before it panics or exits the process. It may be nil.
	last func(entry zapcore.Entry, fields map[string]any)
}

// A member that starts for the first time logs these errors again and again until it has stored its first entry,
// although nothing is wrong.
const (
	notYetVersioned = "failed to update storage version"
	noTerm          = "missing term information"
)

var levels = map[zapcore.Level]slog.Level{
	zapcore.DebugLevel: slog.LevelDebug - 4, zapcore.InfoLevel: slog.LevelDebug, zapcore.WarnLevel: slog.LevelWarn,
}

func levelOf(level zapcore.Level) slog.Level {
	if l, ok := levels[level]; ok {
		return l
	}
	return slog.LevelError
}

func (c *zapCore) Enabled(level zapcore.Level) bool {
	return level >= zapcore.DPanicLevel || c.logger.Enabled(context.Background(), levelOf(level))
}

func (c *zapCore) With(fields []zapcore.Field) zapcore.Core {
	return &zapCore{logger: c.logger, last: c.last, fields: append(c.fields[:len(c.fields):len(c.fields)], fields...)}
}

func (c *zapCore) Check(entry zapcore.Entry, checked *zapcore.CheckedEntry) *zapcore.CheckedEntry {
	if c.Enabled(entry.Level) {
		return checked.AddCore(entry, c)
	}
	return checked
}

func (c *zapCore) Write(entry zapcore.Entry, fields []zapcore.Field) error {
	encoder := zapcore.NewMapObjectEncoder()
	for _, f := range append(c.fields[:len(c.fields):len(c.fields)], fields...) {
		f.AddTo(encoder)
	}
	level := levelOf(entry.Level)
	if why, _ := encoder.Fields["error"].(string); entry.Message == notYetVersioned && strings.Contains(why, noTerm) {
		level = slog.LevelDebug
	}
	args := make([]any, 0, 2*len(encoder.Fields))
	for key, value := range encoder.Fields {
		args = append(args, key, value)
	}
	c.logger.With("process", "etcd").Log(context.Background(), level, entry.Message, args...)
	if c.last != nil && entry.Level >= zapcore.DPanicLevel {
		c.last(entry, encoder.Fields)
	}
	return nil
}

func (c *zapCore) Sync() error { return nil }
