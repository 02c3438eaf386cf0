package serve

import (
	"time"

	"sheaf.dev/sheaf/client/call/message"
	"sheaf.dev/sheaf/client/recordv1"
	"sheaf.dev/sheaf/internal/call/cursor"
	"sheaf.dev/sheaf/internal/security/access"
	"sheaf.dev/sheaf/internal/shard/answer"
	"sheaf.dev/sheaf/internal/storage/group"
)

// The code in this file builds a Scan's messages, bounds their memory, and sends them.

const (
	// scanSizeFirst is the size limit for a scan's first messages, so that a scan of few records uses little memory. The
	// limit grows while messages are full.
	scanSizeFirst = 64 << 10
	// scanLook is how often a scan checks whether other scans wait for a turn, as long as its caller does not read its
	// message. scanPatience is the longest time for which such a scan keeps its own turn.
	scanLook     = 20 * time.Millisecond
	scanPatience = time.Second
)

// take reserves the memory for the first messages, so that the memory of all scans is bounded.
func (sc *scan) take() error { return sc.ask(scanSizeFirst, scanSizeFirst) }

// ask reserves memory for sending messages of up to size bytes. It reserves the data bytes once and size twice, because
// one encoded message is being sent while the next one waits. The scan's current message must be empty.
func (sc *scan) ask(data, size int64) error {
	arena, encoded := int64(0), max(sc.encoded, message.RoundUp(size))
	if sc.arena != nil {
		arena = int64(cap(*sc.arena))
	}
	grown := max(arena, message.RoundUp(data))
	if err := sc.held.Ask(grown + 2*encoded + recordHeldBytes*int64(len(sc.records))); err != nil {
		return err
	}
	sc.encoded = encoded
	if grown > arena {
		sc.drop()
		sc.arena = message.Pool.Get(int(grown))
		*sc.arena = (*sc.arena)[:0]
	}
	return nil
}

// drop releases the arena.
func (sc *scan) drop() {
	if sc.arena != nil && sc.taken == 0 {
		message.Pool.Put(sc.arena)
	}
	sc.arena = nil
}

// release releases the arena and stops the timer. It must be called when no message is being sent.
func (sc *scan) release() {
	sc.drop()
	if sc.look != nil {
		sc.look.Stop()
	}
}

// add adds a record to the message. If the record does not fit, add first sends the message. If the message cannot be
// sent soon, added is false: the caller must release the log, and read the record again later.
func (sc *scan) add(at *cursor.Cursor, rec *group.Record) (added bool, err error) {
	size := answerSize(at.Group, rec)
	if n := len(sc.out.Records); n > 0 && (sc.size+size > sc.sizeMax || n == scanRecordsMax || n == len(sc.records) &&
		sc.prepare() != nil) {
		if going, err := sc.sendReading(at); err != nil || !going {
			return false, err
		}
		next := min(4*sc.sizeMax, ResultBytes)
		data := next
		if sc.metadataOnly {
			data = 0
		}
		if next > sc.sizeMax && sc.ask(data, next) == nil {
			sc.sizeMax = next // if memory is short, the messages stay small
		}
	}
	n := len(sc.out.Records)
	if n == 0 {
		sc.size = messageSize
		if err := sc.ask(int64(len(rec.Data)), sc.size+size); err != nil {
			return false, err
		}
	}
	if n == len(sc.records) {
		if err := sc.prepare(); err != nil {
			return false, err
		}
	}
	out := sc.records[n]
	out.Reset()
	begin := len(*sc.arena)
	*sc.arena = append(*sc.arena, rec.Data...) // rec.Data is valid only until the next step of the iteration
	copied := *rec
	copied.Data = (*sc.arena)[begin:len(*sc.arena):len(*sc.arena)]
	sum := dataOf(&copied, sc.metadataOnly, sc.sums[n])
	if err := fillRecord(out, answer.Where{Group: at.Group, ID: rec.ID}, &copied, sum); err != nil {
		return false, err
	}
	sc.out.Records = append(sc.out.Records, out)
	sc.size += size
	at.After = rec.Index
	return true, nil
}

// prepare makes room in the message for more records.
func (sc *scan) prepare() error {
	more := min(max(16, len(sc.records)), scanRecordsMax-len(sc.records))
	if err := sc.held.More(recordHeldBytes * int64(more)); err != nil {
		return err
	}
	records, sums := make([]recordv1.Record, more), make([]uint32, more)
	for i := range records {
		sc.records, sc.sums = append(sc.records, &records[i]), append(sc.sums, &sums[i])
	}
	return nil
}

// sendReading sends the message while the scan is reading the log. If going is false, the scan must give up its turn,
// because other scans wait for a turn, or because the caller does not take the message. The message may still be in
// transit then, and flush returns the result of sending it.
func (sc *scan) sendReading(at *cursor.Cursor) (going bool, err error) {
	if sc.out.Cursor, err = access.Sign(sc.stream.Context(), at.Encode(), at.Lasts()); err != nil {
		return false, err
	}
	sc.sending = true
	go func() {
		var err error
		defer func() { sc.sent <- err }()
		defer sc.server.contain(sc.method, &err)
		err = sc.transmit()
	}()
	if sc.look == nil {
		sc.look = time.NewTimer(scanLook)
	} else {
		sc.look.Reset(scanLook)
	}
	for began := time.Now(); ; sc.look.Reset(scanLook) {
		select {
		case err := <-sc.sent:
			sc.clear()
			return !sc.server.reading.wanted() || time.Since(sc.turn) < turnTime, err
		case <-sc.look.C:
			if sc.server.reading.wanted() || time.Since(began) >= scanPatience {
				return false, nil
			}
		}
	}
}

// flush waits until the message in transit was sent, and empties it.
func (sc *scan) flush() error {
	if !sc.sending {
		return nil
	}
	err := <-sc.sent
	sc.clear()
	return err
}

// clear empties the message after it was sent.
func (sc *scan) clear() {
	sc.sending = false
	sc.out.Records = sc.out.Records[:0]
	if sc.taken > 0 {
		sc.arena, sc.taken = message.Pool.Get(sc.taken), 0 // the memory was reserved, as that of an encoded message
	}
	*sc.arena = (*sc.arena)[:0]
}

// sendOut sends sc.out.
func (sc *scan) sendOut() error {
	to, ok := sc.stream.(dataTaker)
	if !ok {
		return sc.stream.Send(&sc.out)
	}
	size := cap(*sc.arena) // read before another user of the pool can have the arena
	taken, err := to.sendData(&sc.out, sc.arena)
	if taken {
		sc.taken = size
	}
	return err
}

// dataTaker is a stream that can send the data of a message from the memory in which the scan has collected them.
type dataTaker interface {
	// sendData sends a message, whose records' data lie in the arena in the order of the records, without gaps. If taken
	// is true, the arena belongs to the stream, also after an error.
	sendData(m *recordv1.ScanResponse, arena *[]byte) (taken bool, err error)
}

// send sends the collected records, with a cursor that points after them.
func (sc *scan) send(at *cursor.Cursor) (err error) {
	if len(sc.out.Records) == 0 {
		return nil
	}
	if sc.out.Cursor, err = access.Sign(sc.stream.Context(), at.Encode(), at.Lasts()); err != nil {
		return err
	}
	err = sc.transmit()
	sc.clear()
	return err
}

// transmit sends sc.out, and counts the data sent.
func (sc *scan) transmit() error {
	moved := int64(0)
	for _, r := range sc.out.Records {
		moved += int64(len(r.Data))
	}
	if err := pass(sc.stream.Context(), sc.tenant, moved, int64(cap(*sc.arena))); err != nil {
		return err
	}
	if err := sc.sendOut(); err != nil {
		return err
	}
	sc.method.moved(len(sc.out.Records), moved)
	return nil
}
