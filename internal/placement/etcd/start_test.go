package etcd

import (
	"strings"
	"testing"
)

func TestAPanicOfEtcdAtItsStartIsAnError(t *testing.T) {
	if _, err := start(nil); err == nil || !strings.Contains(err.Error(), "gave up") {
		t.Errorf("error %v", err)
	}
}
