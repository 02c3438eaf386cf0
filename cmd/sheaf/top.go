package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"
	"golang.org/x/term"

	"sheaf.dev/sheaf/client/recordv1"
	"sheaf.dev/sheaf/internal/local/cli"
	"sheaf.dev/sheaf/internal/status/finding"
)

func topCommand(a *app) *cobra.Command {
	var every time.Duration
	cmd := &cobra.Command{
		Use:     "top",
		Short:   "Show the store on a terminal, live",
		GroupID: groupCare,
		Long: `Shows on one screen, again and again until q or Ctrl-C: what is wrong and what to do (as sheaf
doctor), what moves, a letter for each group (its worst copy: S serves, P pending, L loading, D
damaged, F failed, U unavailable; ½: it is served, and a copy of it is failed or unavailable), and the
shards. Since the look before: calls per second, the bytes of their records, and the mean time of
unary calls, of all shards together. A server that does not answer is reported and asked again.`,
		Args: cobra.NoArgs,
	}
	cmd.RunE = func(c *cobra.Command, args []string) error {
		if every <= 0 {
			return cli.Usagef("--every %v: must be more than 0", every)
		}
		file, ok := a.Out.Out.(*os.File)
		if !ok || !term.IsTerminal(int(file.Fd())) {
			return cli.Usagef(
				"sheaf top draws on a terminal, and this is none: sheaf status and sheaf doctor write text or JSON")
		}
		return a.call(true, func(ctx context.Context, conn *cli.Conn, _ []string) error {
			return runTop(ctx, a.Out, conn, file, every)
		})(c, args)
	}
	cmd.Flags().DurationVar(&every, "every", time.Second, "pause between two looks")
	return cmd
}

// runTop redraws the screen at intervals until ctx ends.
func runTop(ctx context.Context, out *cli.Output, conn *cli.Conn, file *os.File, every time.Duration) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer onQuit(cancel)()
	defer fmt.Fprintln(file) // moves the shell's prompt to a new line
	var last reading
	for {
		seen := lookAtStore(ctx, conn)
		if ctx.Err() != nil {
			return nil // q or an interruption is the normal end
		}
		width, height, err := term.GetSize(int(file.Fd()))
		if err != nil {
			return fmt.Errorf("the size of the terminal: %w", err)
		}
		now := reading{at: time.Now(), shards: seen.Shards}
		seen.traffic = now.since(&last)
		if seen.err == nil {
			last = now
		}
		screen := seen.draw(conn.Server, time.Now(), out.Colour(), width, height)
		if _, err := fmt.Fprint(file, clearScreen+screen); err != nil {
			return fmt.Errorf("writing to the terminal: %w", err)
		}
		if !cli.Pause(ctx, every) {
			return nil
		}
	}
}

// storeSeen holds the result of one query of a store.
type storeSeen struct {
	finding.Facts
	moves   []*recordv1.Move
	traffic string // rates and times of calls, as text; empty if they are not shown
	err     error  // set if the query failed; the other fields are then empty
}

// reading holds what the shards reported about their traffic at one point in time.
type reading struct {
	at     time.Time
	shards []*recordv1.Shard
}

// since returns a description of the calls that all shards served between an earlier reading and this one. It leaves
// out a shard whose traffic in that time is not known, because one of the readings lacks its counters, or because the
// shard started between the two.
func (r *reading) since(before *reading) string {
	earlier := map[string]*recordv1.Shard{}
	for _, s := range before.shards {
		earlier[s.GetName()] = s
	}
	seconds, known := r.at.Sub(before.at).Seconds(), 0
	var calls, bytes, unary int64
	var took float64
	for _, s := range r.shards {
		now, old := s.GetTraffic(), earlier[s.GetName()].GetTraffic()
		if now == nil || old == nil || s.GetGeneration() != earlier[s.GetName()].GetGeneration() {
			continue
		}
		known++
		calls += now.GetCallsTotal() - old.GetCallsTotal()
		bytes += now.GetRecordBytesTotal() - old.GetRecordBytesTotal()
		unary += now.GetUnaryCallsTotal() - old.GetUnaryCallsTotal()
		took += now.GetUnarySecondsTotal() - old.GetUnarySecondsTotal()
	}
	if known == 0 || seconds <= 0 {
		return fmt.Sprintf("calls %s/s, records %s/s, time of a call %s", notKnown, notKnown, notKnown)
	}
	mean := notKnown
	if unary > 0 {
		mean = fmt.Sprintf("%.1f ms", 1000*max(0, took)/float64(unary))
	}
	words := fmt.Sprintf("calls %.0f/s, records %s/s, time of a call %s", float64(calls)/seconds,
		cli.FormatBytes(int64(float64(bytes)/seconds)), mean)
	if known < len(r.shards) {
		words += fmt.Sprintf(" (of %d of %d shards)", known, len(r.shards))
	}
	return words
}

// lookTime is the time limit of one query.
const lookTime = 5 * time.Second

func lookAtStore(ctx context.Context, conn *cli.Conn) (seen storeSeen) {
	ctx, cancel := context.WithTimeout(ctx, lookTime)
	defer cancel()
	facts, err := askStore(ctx, conn)
	if err != nil {
		return storeSeen{err: err}
	}
	moves, err := planMoves(ctx, conn)
	if err != nil && !errors.Is(err, context.Canceled) {
		moves = nil // a shard does not know the moves, so there are none to show if the server is a shard
	}
	return storeSeen{Facts: facts, moves: moves}
}

// topShare limits how much of the screen findings and moves may fill: each takes at most a quarter of the lines. The
// remaining lines are for groups and shards.
const topShare = 4

// draw returns a screen of the given number of columns and lines.
func (s *storeSeen) draw(server string, now time.Time, colour bool, width, height int) string {
	height = max(height, 8)
	var lines []string
	add := func(of []string, most int) {
		if len(of) > most {
			left := len(of) - most + 1
			of = append(slices.Clip(of[:most-1]), fmt.Sprintf("(%d more lines)", left))
		}
		lines = append(lines, of...)
	}
	add([]string{fmt.Sprintf("%s  %s  %s", server, now.Format(time.TimeOnly), s.headline())}, 1)
	if s.err != nil {
		add(append([]string{""}, wrap(cli.Describe(s.err, server), width)...), height-2)
		return truncateLines(lines, width)
	}
	if s.traffic != "" {
		add([]string{s.traffic}, 1)
	}
	if found := s.findingLines(width); len(found) > 0 {
		add(append([]string{""}, found...), height/topShare+1)
	}
	if len(s.moves) > 0 {
		t := movesTable(s.moves)
		add(append([]string{"", cli.MovesWords(s.moves)}, tableLines(&t, colour)...), height/topShare+1)
	}
	t := shardTable(s.Shards)
	shards := append([]string{""}, tableLines(&t, colour)...)
	tiles := append([]string{""}, s.tiles(colour, width)...)
	left := height - 1 - len(lines)
	forShards := min(len(shards), max(left/2, left-len(tiles)))
	add(tiles, max(left-forShards, 1))
	add(shards, max(forShards, 1))
	return truncateLines(lines[:min(len(lines), height)], width)
}

// headline returns a line with the numbers of shards, groups and findings.
func (s *storeSeen) headline() string {
	if s.err != nil {
		return "no answer"
	}
	found := finding.Of(s.Facts)
	words := "nothing is wrong"
	if len(found) > 0 {
		words = finding.Words(found)
	}
	return fmt.Sprintf("%s, %s: %s", cli.Count(int64(len(s.Shards)), "shard", "shards"),
		cli.Count(int64(len(s.worst())), "group", "groups"), words)
}

// findingLines returns the findings as lines of at most width columns.
func (s *storeSeen) findingLines(width int) (lines []string) {
	for _, f := range finding.Of(s.Facts) {
		lines = append(lines, wrap(fmt.Sprintf("%-8s %s: %s", f.Severity, f.Where, f.What), width)...)
		if f.Do != "" {
			lines = append(lines, wrap("         do: "+f.Do, width)...)
		}
	}
	return lines
}

// wrap breaks a line between words at a number of columns, and indents the continuation lines by 12 columns. If there
// are fewer than 48 columns, it returns the line unchanged.
func wrap(line string, width int) (lines []string) {
	indent := strings.Repeat(" ", 12)
	if width < 4*len(indent) {
		return []string{line}
	}
	for utf8.RuneCountInString(line) > width {
		cut := strings.LastIndexByte(string([]rune(line)[:width+1]), ' ')
		if cut <= len(indent) {
			break // the first word alone is longer than the line
		}
		lines, line = append(lines, line[:cut]), indent+line[cut+1:]
	}
	return append(lines, line)
}

// badness ranks the states of a group, from the best to the worst.
var badness = []recordv1.GroupState{
	recordv1.GroupState_GROUP_STATE_UNSPECIFIED, recordv1.GroupState_GROUP_STATE_SERVING,
	recordv1.GroupState_GROUP_STATE_LOADING, recordv1.GroupState_GROUP_STATE_PENDING,
	recordv1.GroupState_GROUP_STATE_DAMAGED, recordv1.GroupState_GROUP_STATE_FAILED,
	recordv1.GroupState_GROUP_STATE_UNAVAILABLE,
}

// worst returns, for each group, the copy that is in the worst state.
func (s *storeSeen) worst() map[string]*recordv1.Group {
	worst := map[string]*recordv1.Group{}
	for _, g := range s.Groups {
		there := worst[g.GetGroup()]
		if there == nil || slices.Index(badness, g.GetState()) > slices.Index(badness, there.GetState()) {
			worst[g.GetGroup()] = g
		}
	}
	return worst
}

// tiles returns one letter for each group, in the order of the groups' names.
func (s *storeSeen) tiles(colour bool, width int) []string {
	worst, led := s.worst(), map[string]bool{}
	for _, g := range s.Groups {
		led[g.GetGroup()] = led[g.GetGroup()] || g.GetLeader()
	}
	names := cli.SortedKeys(worst)
	// Sorts names that are numbers by their value.
	slices.SortStableFunc(names, func(a, b string) int { return len(a) - len(b) })
	perLine := max((width+1)/2, 1)
	var lines []string
	for line := range slices.Chunk(names, perLine) {
		var b strings.Builder
		for i, name := range line {
			if i > 0 {
				b.WriteByte(' ')
			}
			cell := groupCell(worst[name])
			letter := cell.Text[:1]
			if cell.Colour == cli.Red && led[name] && worst[name].GetState() != recordv1.GroupState_GROUP_STATE_DAMAGED {
				// Another copy leads the group, so the group is shown as half served, as on the HTML page.
				letter, cell.Colour = "½", cli.Yellow
			}
			if colour && cell.Colour != cli.Plain {
				letter = string(cell.Colour) + letter + string(cli.ColourEnd)
			}
			b.WriteString(letter)
		}
		lines = append(lines, b.String())
	}
	return lines
}

func tableLines(t *cli.Table, colour bool) []string {
	return strings.Split(strings.TrimSuffix(t.Format(colour), "\n"), "\n")
}

// truncateLines joins lines, each truncated to a number of columns. Colour codes do not count as columns.
func truncateLines(lines []string, width int) string {
	var b strings.Builder
	for i, line := range lines {
		if i > 0 {
			b.WriteByte('\n')
		}
		columns, escape, coloured := 0, false, false
		for _, r := range line {
			switch {
			case escape:
				escape = r != 'm'
			case r == '\x1b':
				escape, coloured = true, true
			case columns == width:
				continue
			default:
				columns++
			}
			b.WriteRune(r)
		}
		if coloured {
			b.WriteString(string(cli.ColourEnd))
		}
	}
	return strings.ToValidUTF8(b.String(), "?")
}

// onQuit calls cancel() when q is typed. Until restore() is called, the terminal delivers each key immediately and does
// not show it. Ctrl-C and Ctrl-Z work as usual. If standard input is not a terminal, onQuit does nothing.
func onQuit(cancel context.CancelFunc) (restore func()) {
	fd := int(os.Stdin.Fd())
	before, err := unix.IoctlGetTermios(fd, unix.TCGETS)
	if err != nil {
		return func() {}
	}
	keys := *before
	keys.Lflag &^= unix.ICANON | unix.ECHO
	keys.Cc[unix.VMIN], keys.Cc[unix.VTIME] = 1, 0
	if err := unix.IoctlSetTermios(fd, unix.TCSETS, &keys); err != nil {
		return func() {}
	}
	go func() { // runs until the process ends, because a read of a terminal cannot be cancelled
		if quits(os.Stdin) {
			cancel()
		}
	}()
	return func() { _ = unix.IoctlSetTermios(fd, unix.TCSETS, before) }
}

// quits reads keys, and returns true when q is typed. It returns false if the input ends first.
func quits(keys io.Reader) bool {
	var key [1]byte
	for {
		if _, err := io.ReadFull(keys, key[:]); err != nil {
			return false
		}
		if key[0] == 'q' || key[0] == 'Q' {
			return true
		}
	}
}
