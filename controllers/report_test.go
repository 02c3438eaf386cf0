package controllers

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"strings"
	"sync"

	"github.com/go-logr/logr"
	. "github.com/onsi/gomega"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/controller-runtime/pkg/log"

	"sheaf.dev/sheaf/api/v1alpha1"
)

// heardEvents records the fields of each event by which Kubernetes decides whether to merge it with another one: the
// reason, the action, and the objects that the event names.
type heardEvents struct {
	mu   sync.Mutex
	list []string
}

func (h *heardEvents) Eventf(regarding, related runtime.Object, kind, reason, action, note string, args ...any) {
	h.mu.Lock()
	defer h.mu.Unlock()
	name := func(o runtime.Object) string {
		if o == nil {
			return "-"
		}
		named, err := meta.Accessor(o)
		if err != nil {
			return err.Error()
		}
		return named.GetName()
	}
	h.list = append(h.list, fmt.Sprintf("%s %s %s %s of %s", kind, reason, action, name(related), name(regarding)))
}

var _ = Describe("What the operator does", func() {
	It("is in its log as JSON with object and reason, and in one event for each object", func(ctx context.Context) {
		p := newPoolPlay(ctx)
		heard, text := &heardEvents{}, &bytes.Buffer{}
		p.r.Recorder = heard
		ctx = log.IntoContext(ctx, logr.FromSlogHandler(slog.NewJSONHandler(text, nil)).WithValues("controller", "shardpool"))
		p.settledPool(ctx, "ssd", 2)
		// A change of the medium restarts both shards.
		p.change(ctx, "ssd", func(pool *v1alpha1.ShardPool) { pool.Spec.Medium = v1alpha1.HDD })
		p.settle(ctx, 0)
		p.change(ctx, "ssd", func(pool *v1alpha1.ShardPool) { *pool.Spec.Shards = 1 })
		p.settle(ctx, 0)
		Expect(heard.list).To(ContainElements(
			"Normal ShardCreated Create ssd-0 of ssd", "Normal ShardCreated Create ssd-1 of ssd",
			"Normal ShardRestarts Restart ssd-0-0 of ssd", "Normal ShardRestarts Restart ssd-1-0 of ssd",
			"Normal SetDeleted Delete ssd-1 of ssd"))
		var logged []string
		for line := range strings.Lines(text.String()) {
			var fields map[string]any
			Expect(json.Unmarshal([]byte(line), &fields)).To(Succeed(), line)
			logged = append(logged, fmt.Sprintf("%v %v %v", fields["controller"], fields["reason"], fields["object"]))
		}
		of := func(kind, name string) string { return kind + " " + p.Namespace + "/" + name }
		Expect(logged).To(ContainElements(
			"shardpool ShardCreated "+of("StatefulSet", "ssd-0"), "shardpool ShardRestarts "+of("Pod", "ssd-1-0"),
			"shardpool SetDeleted "+of("StatefulSet", "ssd-1"), "shardpool Serving "+of("StatefulSet", "ssd-0"),
			"shardpool Applied <nil>"))
	})
})
