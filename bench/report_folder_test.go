package bench

import (
	"context"
	"os"
	"testing"
)

// What the parts have left running ends before its folder is removed. etcd would end the whole process.
func TestTheFolderIsRemovedLast(t *testing.T) {
	o := outcome{Options: Options{Dir: t.TempDir(), Say: t.Logf}}
	closed := false
	o.close = func() {
		_, err := os.Stat(o.dir)
		if closed = true; err != nil {
			t.Error(err)
		}
	}
	_, err := parts[struct{}]{{"one", func(*struct{}, context.Context) error { return nil }}}.measure(t.Context(), nil, &o,
		"copies")
	if err != nil || !closed {
		t.Errorf("closed %t, %v", closed, err)
	}
	if _, err := os.Stat(o.dir); !os.IsNotExist(err) {
		t.Errorf("the folder remains: %v", err)
	}
}
