package controllers

import (
	"context"
	"fmt"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/tools/events"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/log"

	"sheaf.dev/sheaf/api/v1alpha1"
)

// news is something that the operator did, or saw change.
type news struct {
	warning bool
	reason  string // CamelCase
	action  string // what was done, in a word
	// object that it was done to, where that is not the one that is reconciled. Events of different objects never fold into one.
	object  client.Object
	message string
}

// tell says news in the log, which stays, and as an event of the object that is reconciled. Every function that acts tells by it.
func tell(ctx context.Context, recorder events.EventRecorder, about client.Object, n news) {
	logNews(ctx, n)
	if recorder == nil {
		return
	}
	kind := corev1.EventTypeNormal
	if n.warning {
		kind = corev1.EventTypeWarning
	}
	var related runtime.Object
	if n.object != nil {
		related = n.object
	}
	recorder.Eventf(about, related, kind, n.reason, n.action, "%s", tail(n.message, 1000))
}

// logNews says news in the log alone: what happens too often for events. The log names the object that is reconciled by itself.
func logNews(ctx context.Context, n news) {
	values := []any{"reason", n.reason, "action", n.action}
	if n.object != nil {
		values = append(values, "object", objectWords(n.object))
	}
	if n.warning {
		values = append(values, "warning", true)
	}
	log.FromContext(ctx).Info(n.message, values...)
}

// objectWords are such as "StatefulSet prod/ssd-0".
func objectWords(o client.Object) string {
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
	}
	if o.GetNamespace() == "" {
		return kind + o.GetName()
	}
	return fmt.Sprintf("%s%s/%s", kind, o.GetNamespace(), o.GetName())
}

// shardObject stands for a shard in news: its StatefulSet, which may not be there.
func shardObject(pool *v1alpha1.ShardPool, shard string) client.Object {
	set := &appsv1.StatefulSet{}
	set.Namespace, set.Name = pool.Namespace, shard
	return set
}

// tell says news of a pool.
func (w *poolWork) tell(ctx context.Context, reason, action string, object client.Object, format string, args ...any) {
	tell(ctx, w.Recorder, w.pool, news{reason: reason, action: action, object: object, message: fmt.Sprintf(format, args...)})
}
