package step

import (
	"regexp"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"sheaf.dev/sheaf/api/v1alpha1"
)

// MessageMax is the maximum length of a condition's message in bytes. The API server refuses more than 32768 bytes.
const MessageMax = 2048

// reasonUnknown replaces a reason that the API server would refuse together with the whole status of the object.
const reasonUnknown = "ReasonUnknown"

// reasonPattern and reasonBytesMax are the API server's rules for a reason.
var reasonPattern = regexp.MustCompile(`^[A-Za-z]([A-Za-z0-9_,:]*[A-Za-z0-9_])?$`)

const reasonBytesMax = 1024

// SetCondition sets a condition. Its transition time changes only with its status, except that a condition of the
// default status of a CRD (time 0) gets a real time even if its status stays the same.
func SetCondition(conditions *[]metav1.Condition, generation int64, kind string, status metav1.ConditionStatus, reason,
	message string) {
	if len(reason) > reasonBytesMax || !reasonPattern.MatchString(reason) {
		reason = reasonUnknown
	}
	if is := meta.FindStatusCondition(*conditions, kind); is != nil && is.LastTransitionTime.Unix() == 0 {
		is.LastTransitionTime = metav1.Now()
	}
	meta.SetStatusCondition(conditions, metav1.Condition{Type: kind, Status: status, Reason: reason,
		Message: Truncate(message, MessageMax), ObservedGeneration: generation})
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
	if out.IsComplete() {
		SetTrue(conditions, generation, v1alpha1.ConditionReady, "Ready", ready)
	} else {
		SetFalse(conditions, generation, v1alpha1.ConditionReady, out.Reason(), out.Message())
	}
	present := func(kind string, is bool) {
		if is {
			SetTrue(conditions, generation, kind, out.Reason(), out.Message())
		} else {
			meta.RemoveStatusCondition(conditions, kind)
		}
	}
	present(v1alpha1.ConditionStalled, out.IsStalled())
	present(v1alpha1.ConditionReconciling, out.kind == wait || out.kind == retry)
}
