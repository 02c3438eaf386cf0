package step

import (
	"regexp"
	"strings"
	"testing"
	"unicode/utf8"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

func TestSingleItemUsesSingular(t *testing.T) {
	for got, want := range map[string]string{
		Count(0, "group", "groups"):                     "0 groups",
		Count(int32(1), "group serves", "groups serve"): "1 group serves",
		Count(int64(2000), "group", "groups"):           "2,000 groups",
		CountOf(0, 1, "group serves", "groups serve"):   "0 of 1 group serves",
		CountOf(1, 3, "group serves", "groups serve"):   "1 of 3 groups serve",
		CountOf(int32(1000), 1001, "group", "groups"):   "1,000 of 1,001 groups",
		All(1, "shard serves", "shards serve"):          "the only shard serves",
		All(12, "shard serves", "shards serve"):         "all 12 shards serve",
		All(0, "shard serves", "shards serve"):          "all 0 shards serve",
	} {
		if got != want {
			t.Errorf("%q, want %q", got, want)
		}
	}
}

// The API server replaces bytes that are not valid UTF-8. The stored status would then never be equal to the wanted
// one, so each reconcile would write it again.
func TestTruncatedTextIsValidUTF8(t *testing.T) {
	for n := range 4 {
		long := strings.Repeat("x", n) + strings.Repeat("ä€", MessageMax)
		var conditions []metav1.Condition
		SetTrue(&conditions, 1, "Ready", "Ready", long)
		for what, text := range map[string]string{
			"a condition": conditions[0].Message, "an end": Tail(long, MessageMax-n), "a beginning": Truncate(long, MessageMax),
		} {
			if !utf8.ValidString(text) || len(text) > MessageMax+3 || len(text) < MessageMax-10 {
				t.Errorf("%s of %d bytes, of which valid: %t", what, len(text), utf8.ValidString(text))
			}
		}
	}
}

// A single condition with an invalid reason makes the API server refuse the whole status of an object.
func TestInvalidConditionReasonIsReplaced(t *testing.T) {
	pattern := regexp.MustCompile(`^[A-Za-z]([A-Za-z0-9_,:]*[A-Za-z0-9_])?$`) // copied from the CRDs
	for reason, want := range map[string]string{
		"Ready": "Ready", "A_b:c,d1": "A_b:c,d1", "": reasonUnknown, "not this": reasonUnknown, "1st": reasonUnknown,
		"Ends:": reasonUnknown, "Ä": reasonUnknown, strings.Repeat("x", 1025): reasonUnknown, "Two\n": reasonUnknown,
	} {
		var conditions []metav1.Condition
		SetTrue(&conditions, 1, "Ready", reason, "words")
		if got := conditions[0].Reason; got != want || !pattern.MatchString(got) || conditions[0].Message != "words" {
			t.Errorf("%q: %q", reason, got)
		}
	}
}
