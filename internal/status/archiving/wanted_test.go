package archiving

import (
	"strings"
	"testing"
)

func TestWhatIsWantedIsRead(t *testing.T) {
	for text, says := range map[string]string{
		`{"points": [{"name": "a", "until": "2027-01-01T00:00:00Z", "drop": true}]}`: "",
		`{"facts": [{"name": "x", "yaml": "y"}]}`:                                    "",
		`{}`: "", ``: "not the JSON", `{"pionts": []}`: "not the JSON", `{"points": {}}`: "not the JSON",
		`{"points": [` + strings.Repeat(`{"name": "a"},`, 100) + `{"name": "a"}]}`: "allowed are 100",
		strings.Repeat(" ", WantedBytesMax+1):                                      "more than 1048576 bytes",
	} {
		if _, err := ParseWanted([]byte(text)); (err == nil) != (says == "") || err != nil &&
			!strings.Contains(err.Error(), says) {
			t.Errorf("%.40s: %v", text, err)
		}
	}
}
