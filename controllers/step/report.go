package step

import (
	"context"
	"fmt"

	appsv1 "k8s.io/api/apps/v1"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/tools/events"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/log"

	"sheaf.dev/sheaf/api/v1alpha1"
)

// News describes an action of the operator or a change that the operator observed.
type News struct {
	Warning bool
	Reason  string // CamelCase
	Action  string // the action, in one word
	// Object is the object of the action, if that is not the reconciled object. Events about different objects are
	// never merged.
	Object  client.Object
	Message string
}

// Report writes news to the log and as an event of the reconciled object. The log is permanent, whereas events expire.
// Every function that acts reports its actions by Report or LogNews.
func Report(ctx context.Context, recorder events.EventRecorder, about client.Object, n News) {
	LogNews(ctx, n)
	if recorder == nil {
		return
	}
	kind := corev1.EventTypeNormal
	if n.Warning {
		kind = corev1.EventTypeWarning
	}
	var related runtime.Object
	if n.Object != nil {
		related = n.Object
	}
	recorder.Eventf(about, related, kind, n.Reason, n.Action, "%s", Tail(n.Message, 1000))
}

// LogNews writes news only to the log. It is for news that is too frequent for events. The log adds the name of the
// reconciled object.
func LogNews(ctx context.Context, n News) {
	values := []any{"reason", n.Reason, "action", n.Action}
	if n.Object != nil {
		values = append(values, "object", ObjectWords(n.Object))
	}
	if n.Warning {
		values = append(values, "warning", true)
	}
	log.FromContext(ctx).Info(n.Message, values...)
}

// ObjectWords returns a text such as "StatefulSet prod/ssd-0".
func ObjectWords(o client.Object) string {
	kind := ""
	switch o.(type) {
	case *appsv1.StatefulSet:
		kind = "StatefulSet "
	case *corev1.Pod:
		kind = "Pod "
	case *corev1.PersistentVolumeClaim:
		kind = "PersistentVolumeClaim "
	case *corev1.PersistentVolume:
		kind = "PersistentVolume "
	case *batchv1.Job:
		kind = "Job "
	}
	if o.GetNamespace() == "" {
		return kind + o.GetName()
	}
	return fmt.Sprintf("%s%s/%s", kind, o.GetNamespace(), o.GetName())
}

// ShardObject returns the object to which events about a shard refer: its StatefulSet, which need not exist.
func ShardObject(pool *v1alpha1.ShardPool, shard string) client.Object {
	set := &appsv1.StatefulSet{}
	set.Namespace, set.Name = pool.Namespace, shard
	return set
}
