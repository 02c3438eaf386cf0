package step

import (
	"cmp"
	"context"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// Warnings returns the latest warnings about an object, the newest first.
func Warnings(ctx context.Context, live client.Reader, about client.Object) ([]string, error) {
	var list corev1.EventList
	err := live.List(ctx, &list, client.InNamespace(about.GetNamespace()),
		client.MatchingFields{"involvedObject.uid": string(about.GetUID()), "type": corev1.EventTypeWarning})
	if err != nil {
		return nil, fmt.Errorf("list events of %s: %w", about.GetName(), err)
	}
	return EventWords(list.Items), nil
}

// EventWords returns the latest messages of events, the newest first.
func EventWords(list []corev1.Event) []string {
	at := func(e corev1.Event) time.Time {
		newest := e.LastTimestamp.Time
		if e.Series != nil && e.Series.LastObservedTime.After(newest) {
			newest = e.Series.LastObservedTime.Time
		}
		if e.EventTime.After(newest) {
			newest = e.EventTime.Time
		}
		return newest
	}
	slices.SortStableFunc(list, func(a, b corev1.Event) int {
		return cmp.Or(at(b).Compare(at(a)), cmp.Compare(a.Name, b.Name))
	})
	words := make([]string, 0, min(len(list), eventsKept))
	for _, e := range list[:min(len(list), eventsKept)] {
		message := kubeletPath.ReplaceAllString(e.Reason+": "+strings.Join(strings.Fields(e.Message), " "),
			"/var/lib/kubelet/...")
		if cause := missing.FindStringIndex(message); len(message) > eventBytesMax && cause != nil {
			from := max(eventBytesMax/2, cause[0]-causeBytes)
			message = message[:eventBytesMax/2] + " ... " + message[from:min(len(message), from+eventBytesMax/2)]
		} else if len(message) > eventBytesMax {
			// A mount error starts with the device and ends with the message of mount(8), so keep both ends.
			message = message[:eventBytesMax/2] + " ... " + message[len(message)-eventBytesMax/2:]
		}
		words = append(words, strings.ToValidUTF8(message, "?"))
	}
	return words
}

const eventsKept = 5

// causeBytes is the number of bytes that are kept in front of the cause. These bytes name the program or the device.
const causeBytes = 40

var (
	kubeletPath = regexp.MustCompile(`/var/lib/kubelet/[^\s"')]*`)
	// missing matches the messages of mount(8), mkfs and the kubelet for a device that does not exist. mkfs prints its
	// usage after such a message, so the message is in the middle of the event's text.
	missing = regexp.MustCompile(`(?i)can't open blockdev|device size reported to be zero|` +
		`special device \S+ does not exist|path "/dev/[^"]*" does not exist|no such device`)
)

// DeviceMissing reports whether a warning says that a volume's device does not exist or has no size. In this case,
// nothing is known about the contents of the device.
func DeviceMissing(event string) bool {
	return strings.HasPrefix(event, "FailedMount: ") && missing.MatchString(event)
}

const eventBytesMax = 400
