package step

import (
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"sheaf.dev/sheaf/api/v1alpha1"
)

// MessageMax is the maximum length of a condition's message in bytes. The API server refuses more than 32768 bytes.
const MessageMax = 2048

// SetCondition sets a condition; its transition time changes only with its status.
func SetCondition(conditions *[]metav1.Condition, generation int64, kind string, status metav1.ConditionStatus, reason,
	message string) {
	if len(message) > MessageMax {
		message = message[:MessageMax-3] + "..."
	}
	meta.SetStatusCondition(conditions, metav1.Condition{
		Type: kind, Status: status, Reason: reason, Message: message, ObservedGeneration: generation,
	})
}

// SetTrue sets a condition to True.
func SetTrue(conditions *[]metav1.Condition, generation int64, kind, reason, message string) {
	SetCondition(conditions, generation, kind, metav1.ConditionTrue, reason, message)
}

// SetFalse sets a condition to False.
func SetFalse(conditions *[]metav1.Condition, generation int64, kind, reason, message string) {
	SetCondition(conditions, generation, kind, metav1.ConditionFalse, reason, message)
}

// Summarize sets Ready, Reconciling and Stalled from the outcome of a reconcile, as kstatus defines them.
func Summarize(conditions *[]metav1.Condition, generation int64, out Outcome, ready string) {
	switch {
	case out.IsComplete():
		SetTrue(conditions, generation, v1alpha1.ConditionReady, "Ready", ready)
		meta.RemoveStatusCondition(conditions, v1alpha1.ConditionReconciling)
		meta.RemoveStatusCondition(conditions, v1alpha1.ConditionStalled)
	case out.IsStalled():
		SetFalse(conditions, generation, v1alpha1.ConditionReady, out.Reason(), out.Message())
		SetTrue(conditions, generation, v1alpha1.ConditionStalled, out.Reason(), out.Message())
		meta.RemoveStatusCondition(conditions, v1alpha1.ConditionReconciling)
	case out.isResting(): // nothing is in progress, and no administrator has to act
		SetFalse(conditions, generation, v1alpha1.ConditionReady, out.Reason(), out.Message())
		meta.RemoveStatusCondition(conditions, v1alpha1.ConditionReconciling)
		meta.RemoveStatusCondition(conditions, v1alpha1.ConditionStalled)
	default:
		SetFalse(conditions, generation, v1alpha1.ConditionReady, out.Reason(), out.Message())
		SetTrue(conditions, generation, v1alpha1.ConditionReconciling, out.Reason(), out.Message())
		meta.RemoveStatusCondition(conditions, v1alpha1.ConditionStalled)
	}
}
