package chaos

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strconv"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"sheaf.dev/sheaf/client"
	"sheaf.dev/sheaf/client/call/routing"
	"sheaf.dev/sheaf/client/recordv1"
)

// Ballast records have ids of their own, which are below those of the workers, bursts and probes.
const (
	ballastFirst   = -1_000_000_000
	ballastRecords = 4
	ballastBytes   = 400 << 10 // bytes of one record; a group's ballast is larger than a segment
)

// ballastData returns the data of a ballast record in one round. The data is text, so that it can be found in a
// segment.
func ballastData(id int64, round uint64) []byte {
	line := fmt.Sprintf("ballast %d of round %d;", id, round)
	out := make([]byte, 0, ballastBytes+len(line))
	for len(out) < ballastBytes {
		out = append(out, line...)
	}
	return out
}

// ballastIDs returns the ids of a group's ballast.
func (n *nemesis) ballastIDs(group int) (ids []int64) {
	hash := routing.Routing{Mode: routing.Hash, Groups: n.cfg.groups}
	for id := int64(ballastFirst); len(ids) < ballastRecords; id-- {
		if hash.GroupOf(id) == group {
			ids = append(ids, id)
		}
	}
	return ids
}

// writeBallast writes all ballast records of a group once more, with the data of the next round.
func (n *nemesis) writeBallast(group int) (round uint64, err error) {
	n.rounds++
	for _, id := range n.ballastIDs(group) {
		data := ballastData(id, n.rounds)
		if err := await("ballast is put", time.Minute, func() error {
			ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
			defer cancel()
			_, err := n.load.clients[0].Put(ctx, client.Key{ID: id}, data, nil)
			return err
		}); err != nil {
			return 0, err
		}
	}
	return n.rounds, nil
}

// stalledMax limits the number of streams that nobody reads. A scan occupies 192 KiB of a shard's response memory if
// its records are small, and more than 1 MiB if they are ballast.
const (
	stalledMax   = 510
	stalledKinds = 6        // number of kinds of streams; open takes them in turn
	window       = 64 << 10 // number of bytes that a stream may send before the caller reads them
)

// stallReaders opens scans, batch reads and watches on a shard and does not read their responses, until the shard has
// no memory left for another response. Puts must still succeed then. The callers first keep their connection open, as
// if they hung, and then close it.
func (n *nemesis) stallReaders(victim *server) (words string, err error) {
	group, err := n.groupWithBallast(victim)
	if err != nil {
		return "", err
	}
	// Without these options, gRPC would buffer an unlimited amount of unread data.
	conn, err := grpc.NewClient(victim.grpc(), append(n.dialOptions(), grpc.WithInitialWindowSize(window),
		grpc.WithInitialConnWindowSize(window))...)
	if err != nil {
		return "", err
	}
	ctx, cancel := context.WithCancel(context.Background())
	gone := false
	goAway := func() error {
		gone = true
		cancel()
		return conn.Close()
	}
	defer func() {
		if !gone {
			err = errors.Join(err, goAway())
		}
	}()
	reader := recordv1.NewRecordServiceClient(conn)
	opened := 0
	if err := await("there is no room for a further answer", time.Minute, func() error {
		if opened >= stalledMax {
			return fmt.Errorf("%w: %d streams are not read, and there is room for a scan", errHopeless, opened)
		}
		for range stalledKinds {
			if err := n.open(ctx, reader, group, opened); err != nil {
				return err
			}
			opened++
		}
		err := n.scanWholeGroup(victim, group)
		switch {
		case reasonOf(err) == overloaded:
			return nil
		case err != nil:
			// The scan probably failed because the group has another leader now. In that case the shard has also refused the
			// last streams, so these use none of its memory. Therefore the streams are opened anew, on another group.
			refused := err
			opened = 0
			if group, err = n.groupWithBallast(victim); err != nil {
				return err
			}
			return fmt.Errorf("a scan answered: %w", refused)
		}
		return fmt.Errorf("beside %d streams that nobody reads, a scan is answered", opened)
	}); err != nil {
		return "", err
	}
	taken, err := n.checkPutsSucceed(victim)
	if err != nil {
		return "", err
	}
	if err := goAway(); err != nil {
		return "", err
	}
	return fmt.Sprintf(
			"%d streams of group %d were not read until a scan was refused as OVERLOADED; %d puts to the shard were taken "+
				"meanwhile", opened,
			group, taken), await("scans go on", time.Minute, func() error {
			err := n.scanWholeGroup(victim, group)
			if status.Code(err) == codes.FailedPrecondition {
				return nil // another shard leads the group now, so the call was not refused for lack of memory
			}
			return err
		})
}

// groupWithBallast writes ballast into a group that a shard leads, and returns the group.
func (n *nemesis) groupWithBallast(victim *server) (group int, err error) {
	groups, err := n.awaitLeading(victim)
	if err != nil {
		return 0, err
	}
	if group, err = strconv.Atoi(groups[n.random.IntN(len(groups))]); err != nil {
		return 0, err
	}
	_, err = n.writeBallast(group)
	return group, err
}

// checkPutsSucceed makes puts to a shard for a while, and returns their number. A put needs as much memory as a scan.
// If puts and scans shared their memory, the puts would be refused like the scans.
func (n *nemesis) checkPutsSucceed(victim *server) (taken int, err error) {
	data := make([]byte, 1<<20)
	for at := time.Now(); time.Since(at) < holdMin || taken < 5; {
		switch reason, err := n.probe(victim, data); {
		case err == nil:
			taken++
		case reason == overloaded:
			return 0, fmt.Errorf("a put is refused because of readers that do not read: %w", err)
		case time.Since(at) > time.Minute:
			return 0, fmt.Errorf("%d puts were taken in a minute: %w", taken, err)
		}
		time.Sleep(200 * time.Millisecond)
	}
	return taken, nil
}

// open opens a stream and does not read it. Successive streams are of different kinds, but most of them are scans.
func (n *nemesis) open(ctx context.Context, reader recordv1.RecordServiceClient, group, number int) (err error) {
	switch number % stalledKinds {
	case 4:
		in := &recordv1.BatchGetRequest{}
		for _, id := range n.ballastIDs(group) {
			in.Gets = append(in.Gets, &recordv1.GetRequest{Key: &recordv1.RecordKey{Id: id}})
		}
		_, err = reader.BatchGet(ctx, in)
	case 5:
		_, err = reader.Watch(ctx, &recordv1.WatchRequest{Group: strconv.Itoa(group)})
	default:
		_, err = reader.Scan(ctx, &recordv1.ScanRequest{Group: strconv.Itoa(group)})
	}
	return err
}

// scanWholeGroup scans a whole group to its end. A shorter scan could succeed with too little memory, because the first
// message may be small enough if the first records are small.
func (n *nemesis) scanWholeGroup(victim *server, group int) error {
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	stream, err := recordv1.NewRecordServiceClient(victim.conn).
		Scan(ctx, &recordv1.ScanRequest{Group: strconv.Itoa(group)})
	for err == nil {
		_, err = stream.Recv()
	}
	if errors.Is(err, io.EOF) {
		return nil
	}
	return err
}
