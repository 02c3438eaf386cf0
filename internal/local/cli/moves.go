package cli

import (
	"fmt"
	"time"

	"sheaf.dev/sheaf/client/recordv1"
)

// MoveState returns the present phase of a move as text, or "planned" if the move has not started.
func MoveState(m *recordv1.Move) string {
	if !m.GetRunning() {
		return "planned"
	}
	switch m.GetPhase() {
	case recordv1.MovePhase_MOVE_PHASE_WAITING:
		return "waiting"
	case recordv1.MovePhase_MOVE_PHASE_COPYING:
		return "copying"
	case recordv1.MovePhase_MOVE_PHASE_CATCHING_UP:
		return "catching up"
	case recordv1.MovePhase_MOVE_PHASE_SWITCHING:
		return "switching"
	}
	return "running"
}

// MoveFigures returns the progress of a move in percent, its rate, and the estimated time for its remaining bytes. Each
// of these is empty if it is unknown.
func MoveFigures(m *recordv1.Move) (done, rate, eta string) {
	if m.GetRunning() && m.GetBytes() > 0 {
		done = fmt.Sprintf("%d%%", 100*min(m.GetBytesDone(), m.GetBytes())/m.GetBytes())
	}
	if m.GetBytesPerSecond() > 0 {
		rate = formatRate(m.GetBytesPerSecond())
	}
	if m.EtaSeconds != nil && m.GetPhase() == recordv1.MovePhase_MOVE_PHASE_COPYING {
		eta = wholeSeconds(m.GetEtaSeconds()).String()
	}
	return done, rate, eta
}

// MovesWords summarizes the moves.
func MovesWords(moves []*recordv1.Move) string {
	var running, planned int
	var done, total int64
	var rate float64
	for _, m := range moves {
		if !m.GetRunning() {
			planned++
			continue
		}
		running++
		done, total = done+min(m.GetBytesDone(), m.GetBytes()), total+m.GetBytes()
		rate += m.GetBytesPerSecond()
	}
	if running+planned == 0 {
		return "nothing moves"
	}
	words := fmt.Sprintf("%d running, %d planned", running, planned)
	if running > 0 {
		words += fmt.Sprintf(": %s of %s", FormatBytes(done), FormatBytes(total))
	}
	if left := total - done; rate > 0 && left > 0 {
		words += fmt.Sprintf(", %s, ETA %v", formatRate(rate), wholeSeconds(float64(left)/rate))
	}
	return words
}

func formatRate(bytesPerSecond float64) string { return FormatBytes(int64(bytesPerSecond)) + "/s" }

// wholeSeconds truncates a duration to seconds. An extremely long estimate becomes 1e9 s.
func wholeSeconds(s float64) time.Duration { return time.Duration(min(s, 1e9)) * time.Second }
