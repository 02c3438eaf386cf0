package archiving

import (
	"bytes"
	"encoding/json"
	"fmt"
	"time"
)

// Wanted says what others want of the points of an archive. An archiver reads it again and again. A point that it does
// not name stays as it is.
type Wanted struct {
	// Facts are stored in each new point.
	Facts []Fact `json:"facts,omitempty"`
	// Points are the points that are to be made or dropped, at most WantedPointsMax.
	Points []WantedPoint `json:"points,omitempty"`
}

// Fact is a text without secrets that describes the store.
type Fact struct {
	Name string `json:"name"` // for example RecordStore/quotes
	YAML string `json:"yaml"`
}

// WantedPoint is a point that is to be made or dropped.
type WantedPoint struct {
	Name  string    `json:"name"`
	Until time.Time `json:"until,omitzero"` // if zero, the point is kept until it is dropped
	Drop  bool      `json:"drop,omitempty"`
}

// These are the limits of a Wanted.
const (
	WantedBytesMax  = 1 << 20 // as JSON
	WantedPointsMax = 100
)

// ParseWanted decodes a Wanted from JSON.
func ParseWanted(text []byte) (*Wanted, error) {
	if len(text) > WantedBytesMax {
		return nil, fmt.Errorf("it has more than %d bytes", WantedBytesMax)
	}
	w := &Wanted{}
	d := json.NewDecoder(bytes.NewReader(text))
	d.DisallowUnknownFields()
	if err := d.Decode(w); err != nil {
		return nil, fmt.Errorf("it is not the JSON of points and facts: %w", err)
	}
	if len(w.Points) > WantedPointsMax {
		return nil, fmt.Errorf("it has %d points, allowed are %d", len(w.Points), WantedPointsMax)
	}
	return w, nil
}
