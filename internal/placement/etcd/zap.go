package etcd

import (
	"context"
	"log/slog"
	"strings"

	"go.uber.org/zap/zapcore"
)

// zapCore forwards etcd's log to slog. etcd's info level becomes debug, because etcd logs every step.
type zapCore struct {
	logger *slog.Logger
	fields []zapcore.Field
	panics func(words string) // receives the message that precedes a panic; may be nil
}

// A member logs these errors again and again from its first start until it has stored its first entry, although
// nothing is wrong.
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

// Enabled implements zapcore.Core.
func (c *zapCore) Enabled(level zapcore.Level) bool {
	return level >= zapcore.DPanicLevel || c.logger.Enabled(context.Background(), levelOf(level))
}

// With implements zapcore.Core.
func (c *zapCore) With(fields []zapcore.Field) zapcore.Core {
	return &zapCore{logger: c.logger, panics: c.panics, fields: append(c.fields[:len(c.fields):len(c.fields)], fields...)}
}

// Check implements zapcore.Core.
func (c *zapCore) Check(entry zapcore.Entry, checked *zapcore.CheckedEntry) *zapcore.CheckedEntry {
	if c.Enabled(entry.Level) {
		return checked.AddCore(entry, c)
	}
	return checked
}

// Write implements zapcore.Core.
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
	if c.panics != nil && (entry.Level == zapcore.PanicLevel || entry.Level == zapcore.DPanicLevel) {
		c.panics(entry.Message)
	}
	return nil
}

// Sync implements zapcore.Core.
func (c *zapCore) Sync() error { return nil }

// lastWords forwards only the messages that etcd logs just before it ends the process. etcd ends the process when its
// disk fails, for example. An etcd inside another process has no log of its own, and its failure ends that process.
type lastWords struct {
	dir    string
	fields []zapcore.Field
}

// Enabled implements zapcore.Core.
func (*lastWords) Enabled(level zapcore.Level) bool { return level >= zapcore.DPanicLevel }

// With implements zapcore.Core.
func (c *lastWords) With(fields []zapcore.Field) zapcore.Core {
	return &lastWords{c.dir, append(c.fields[:len(c.fields):len(c.fields)], fields...)}
}

// Check implements zapcore.Core.
func (c *lastWords) Check(entry zapcore.Entry, checked *zapcore.CheckedEntry) *zapcore.CheckedEntry {
	if c.Enabled(entry.Level) {
		return checked.AddCore(entry, c)
	}
	return checked
}

// Write implements zapcore.Core.
func (c *lastWords) Write(entry zapcore.Entry, fields []zapcore.Field) error {
	encoder := zapcore.NewMapObjectEncoder()
	for _, f := range append(c.fields[:len(c.fields):len(c.fields)], fields...) {
		f.AddTo(encoder)
	}
	slog.Error("the etcd in this process ends the process: see that its folder can be written, that its disk is well "+
		"(dmesg) and has free space, then start the process again", "dir", c.dir, "reason", entry.Message,
		"error", encoder.Fields["error"])
	return nil
}

// Sync implements zapcore.Core.
func (*lastWords) Sync() error { return nil }
