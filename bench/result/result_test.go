package result

import (
	"bytes"
	"image"
	"image/color"
	"image/png"
	"math"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"sheaf.dev/sheaf/internal/test/must"
)

// sample returns a report with an example of everything, including names that must be escaped.
func sample() *Report {
	began := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	times := Table{
		ID: "read", Title: "Cold read of all records",
		About: "50,000 records of 20 KB; the page cache is dropped before each round.",
		Columns: []Column{{Key: "write", Title: "write", Unit: "s", Better: Lower},
			{Key: "read", Title: "cold read", Unit: "s", Better: Lower, Log: true},
			{Key: "rate", Title: "rate", Unit: "B/s", Better: Higher}, {Key: "disk", Title: "on disk", Unit: "B"}},
	}
	for _, fs := range []string{"ext3", "ext4", "xfs", "btrfs"} {
		for i, layout := range []string{"flat files", "two-level folders", "naive composite file", "group file"} {
			x := float64(4-i) * 0.8
			times.Rows = append(times.Rows, Row{Labels: Labels("file system", fs, "layout", layout), Cells: map[string]Value{
				"write": Of(x, x*1.1, x*1.2), "read": Of(x*3, x*3.1, x*2.9), "rate": Of(1e9/x, 1.1e9/x, 0.9e9/x),
				"disk": Of(1.02e9),
			}})
		}
	}
	times.Rows = append(times.Rows, Row{Labels: Labels("file system", "reiserfs", "layout", "flat files"),
		Missing: "this kernel has no reiserfs (removed in Linux 6.13) | and no module"})
	curve := Plot{ID: "latency", Title: "Latency of creation number N, <p50> and p99 per thousand",
		XLabel: "number of the file", YLabel: "time per creation", YUnit: "s", LogY: true}
	for i, name := range []string{"one directory", "40 in turn", "40 striped", "group file & its log"} {
		s := Series{Name: name}
		for n := 1; n <= 400; n++ {
			s.Points = append(s.Points, [2]float64{float64(n) * 1000,
				3e-6 * float64(i*i+1) * (1 + 0.3*math.Sin(float64(n)/9) + float64(n*(3-i))/300)})
		}
		curve.Series = append(curve.Series, s)
	}
	bytesPlot := Plot{ID: "sizes", Title: "Cold read against record size", XLabel: "record, bytes",
		YLabel: "bytes per second", YUnit: "B/s", LogX: true, LogY: true, Series: []Series{
			{Name: "flat files", Points: [][2]float64{{1e3, 2e6}, {1e4, 1.9e7}, {1e5, 1.5e8}}},
			{Name: "group file", Points: [][2]float64{{1e3, 1.1e9}, {1e4, 1.6e9}, {1e5, 1.9e9}}},
		}}
	times.Plots = []Plot{curve, bytesPlot}
	ratios := Ratios("ratios", "Targets", "", []Ratio{
		{Labels: Labels("what", "cold read of all, 20 KB", "against", "two-level folders"), Unit: "s",
			Ours: []float64{1, 1.1, 1.2}, Limit: []float64{14, 15, 16}, Faster: true, Target: 10},
		{Labels: Labels("what", "durable fill", "against", "best peer"), Unit: "/s", Ours: []float64{80, 90, 85},
			Limit: []float64{100, 100, 100}, Target: 1, Note: "the peer syncs once per 64 callers"},
		{Labels: Labels("what", "memory", "against", "best peer"), Missed: "redis-server is not installed", Target: 1,
			AtMost: true},
	})
	return &Report{
		Schema: Schema, Kind: "layouts", Title: "File layouts <on this disk>", Started: began,
		Ended: began.Add(95 * time.Second), Version: "v1.2.3",
		Machine: Machine{CPU: "A processor", CPUs: 2, MemoryBytes: 24 << 30, Kernel: "6.18", Go: "go1.26",
			FileSystem: "ext4", Device: "/dev/vda (rw)"},
		Settings: Labels("scale", "quick", "sync",
			"fdatasync after each batch of 64 records, by one caller, with O_DIRECT where the file system has it"),
		Tables: []Table{ratios, times}, Notes: []string{"Virtual disk: <b>take ratios</b>."},
	}
}

func mustJSON(t *testing.T, r *Report) []byte {
	t.Helper()
	var b bytes.Buffer
	must.OK(t, r.WriteJSON(&b))
	return b.Bytes()
}

func TestJSONComesBackAsWritten(t *testing.T) {
	first := mustJSON(t, sample())
	r, err := ReadJSON(bytes.NewReader(first))
	must.OK(t, err)
	if again := mustJSON(t, r); !bytes.Equal(first, again) {
		t.Errorf("written again, it differs:\n%s", again)
	}
}

// A reader reports each fault and where it is. It refuses a name that would point outside the folder.
func TestReadRefuses(t *testing.T) {
	for name, c := range map[string]struct {
		change func(*Report)
		want   string
	}{
		"another schema":     {func(r *Report) { r.Schema = "sheaf.dev/bench/v9" }, `"sheaf.dev/bench/v9"`},
		"a path as id":       {func(r *Report) { r.Tables[1].Plots[0].ID = "../../x" }, `"../../x"`},
		"an id twice":        {func(r *Report) { r.Tables[1].Plots[0].ID = "ratios" }, `"ratios"`},
		"a cell of nothing":  {func(r *Report) { r.Tables[1].Rows[0].Cells["x"] = Of(1) }, `cell "x"`},
		"no number":          {func(r *Report) { r.Tables[1].Rows[0].Cells["read"] = Of(math.NaN()) }, "cell read"},
		"a row twice":        {func(r *Report) { r.Tables[1].Rows[1].Labels = r.Tables[1].Rows[0].Labels }, "twice"},
		"zero on a log axis": {func(r *Report) { r.Tables[1].Plots[1].Series[0].Points[0][0] = 0 }, "log axis"},
		"a strange better":   {func(r *Report) { r.Tables[1].Columns[0].Better = "more" }, `"more"`},
	} {
		r := sample()
		c.change(r)
		var b bytes.Buffer
		err := r.WriteJSON(&b)
		if err == nil {
			_, err = ReadJSON(&b)
		}
		if err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: error %v, want one with %s", name, err, c.want)
		}
		if err := r.WriteDir(t.TempDir()); err == nil {
			t.Errorf("%s: was written as a folder", name)
		}
	}
	for _, text := range []string{"", "{", "[]", `{"schema": 3}`, `{"schema":"sheaf.dev/bench/v1","tables":[{"id":7}]}`} {
		if _, err := ReadJSON(strings.NewReader(text)); err == nil {
			t.Errorf("%q was read", text)
		}
	}
	if _, err := ReadFile(filepath.Join(t.TempDir(), "none")); !os.IsNotExist(err) {
		t.Errorf("no file: %v", err)
	}
}

func TestMedianAndSpread(t *testing.T) {
	if v := Of(3, 1, 2, 10); v.Median != 2.5 || v.Min != 1 || v.Max != 10 || v.Rounds != 4 || v.spread() != 9/2.5 {
		t.Errorf("%+v, spread %v", v, v.spread())
	}
	if v := Of(); v != (Value{}) {
		t.Errorf("of nothing: %+v", v)
	}
}

func TestRatios(t *testing.T) {
	table := sample().Tables[0]
	for _, c := range []struct {
		row     int
		ratio   float64
		verdict string
	}{{0, 15 / 1.1, Met}, {1, 0.85, Missed}} {
		cells := table.Rows[c.row].Cells
		if got := cells["ratio"].Median; math.Abs(got-c.ratio) > 1e-9 || cells["verdict"].Text != c.verdict {
			t.Errorf("row %d: ratio %v, %v; want %v, %s", c.row, got, cells["verdict"].Text, c.ratio, c.verdict)
		}
	}
	if row := table.Rows[2]; row.Missing == "" || len(row.Cells) != 0 {
		t.Errorf("a row without a figure: %+v", row)
	}
	atMost := Ratios("a", "", "", []Ratio{{Ours: []float64{2}, Limit: []float64{1}, AtMost: true, Target: 1.1},
		{Ours: []float64{5}, Target: 5, AtMost: true, Labels: Labels("x", "y")}})
	if a, b := atMost.Rows[0].Cells["verdict"].Text, atMost.Rows[1].Cells["verdict"].Text; a != Missed || b != Met {
		t.Errorf("at most: %q, %q", a, b)
	}
	if met, missed := sample().verdicts(); met != 1 || missed != 1 {
		t.Errorf("%d met, %d missed", met, missed)
	}
}

func TestCompareMarksWhatIsBeyondTheSpread(t *testing.T) {
	old, now := sample(), sample()
	rows := now.Tables[1].Rows
	slower := func(f float64) Value { v := rows[0].Cells["read"]; return Of(v.Min*f, v.Median*f, v.Max*f) }
	rows[1].Cells["write"] = Of(1) // a small difference is no change if there is only one round
	rows[2].Cells["rate"] = Of(9e9, 9e9, 9e9)
	rows[3].Missing = "no room"
	rows[0].Cells["read"] = slower(1.4)
	now.Tables[0].Rows[0].Cells["verdict"] = Words(Missed)
	rows[4].Cells["disk"] = Of(9e9) // for this metric, neither a lower nor a higher value is better
	must.OK(t, now.Compare(old))
	got := map[string]bool{}
	for _, c := range now.Comparison.Changes {
		got[c.Row+" "+c.Column] = c.Worse
	}
	want := map[string]bool{
		"ext3 · flat files read": true, "ext3 · naive composite file rate": false, "ext3 · group file ": true,
		"cold read of all, 20 KB · two-level folders verdict": true, "ext3 · two-level folders write": false,
	}
	for k, worse := range want {
		if is, ok := got[k]; !ok || is != worse {
			t.Errorf("%s: marked %v, worse %v; want worse %v", k, ok, is, worse)
		}
	}
	if len(got) != len(want) || now.Comparison.worseCount() != 3 || now.Comparison.Warning != "" {
		t.Errorf("changes: %v; %d worse; warning %q", got, now.Comparison.worseCount(), now.Comparison.Warning)
	}
	rows[0].Cells["read"] = slower(1.02) // a difference within the scatter
	if err := now.Compare(old); err != nil || now.Comparison.worseCount() != 3 {
		t.Errorf("%v: after another change %d worse", err, now.Comparison.worseCount())
	}
	old.Kind = "peers"
	if err := now.Compare(old); err == nil {
		t.Error("reports of two kinds were compared")
	}
	old.Kind, old.Machine.CPU = now.Kind, "another"
	if err := now.Compare(old); err != nil || now.Comparison.Warning == "" {
		t.Errorf("another machine: %v, no warning", err)
	}
}

// The page is self-contained. It loads no other files, and none of the data becomes markup.
func TestPageNeedsNothingElse(t *testing.T) {
	r := sample()
	must.OK(t, r.Compare(sample()))
	var b bytes.Buffer
	must.OK(t, r.writeHTML(&b))
	text := b.String()
	for _, bad := range []string{"<script", "<img", "<link", "@import", "url(", "src=", "<b>take", "<on this", "<p50>",
		"ZgotmplZ"} {
		if strings.Contains(text, bad) {
			t.Errorf("the page holds %q", bad)
		}
	}
	for _, m := range regexp.MustCompile(`https?://[^"'\s<]*`).FindAllString(text, -1) {
		if m != "http://www.w3.org/2000/svg" {
			t.Errorf("the page names %s", m)
		}
	}
	for _, want := range []string{"Cold read of all records", "reiserfs", "removed in Linux 6.13", "missed", "13.6 x",
		`id="latency"`, "prefers-color-scheme: dark", "group file &amp; its log"} {
		if !strings.Contains(text, want) {
			t.Errorf("the page lacks %q", want)
		}
	}
}

func TestMarkdownKeepsItsCells(t *testing.T) {
	var b bytes.Buffer
	must.OK(t, sample().WriteMarkdown(&b, "plots"))
	columns := 0
	for line := range strings.Lines(b.String()) {
		bars := strings.Count(strings.ReplaceAll(line, `\|`, ""), "|")
		if !strings.HasPrefix(line, "|") {
			columns = 0
		} else if columns == 0 {
			columns = bars
		} else if bars != columns {
			t.Errorf("%d bars, the head has %d: %s", bars, columns, line)
		}
	}
	for _, want := range []string{"**13.6 x**", "**missed**", "— redis-server is not installed", "(plots/latency.svg)"} {
		if !strings.Contains(b.String(), want) {
			t.Errorf("lacks %q:\n%s", want, b.String())
		}
	}
}

func TestFolderHoldsAll(t *testing.T) {
	dir := t.TempDir()
	must.OK(t, sample().WriteDir(dir))
	for _, name := range []string{"report.json", "report.md", "report.html", "plots/latency.svg", "plots/latency.png",
		"plots/sizes.svg", "plots/sizes.png"} {
		if s, err := os.Stat(filepath.Join(dir, name)); err != nil || s.Size() < 300 {
			t.Errorf("%s: %v", name, err)
		}
	}
	if _, err := ReadFile(filepath.Join(dir, "report.json")); err != nil {
		t.Error(err)
	}
	f, err := os.Open(filepath.Join(dir, "plots/sizes.png"))
	must.OK(t, err)
	defer f.Close()
	img, err := png.Decode(f)
	must.OK(t, err)
	for i, c := range []int{seriesColour, seriesColour + 1} {
		if n := count(img, pngColours[c]); n < 200 {
			t.Errorf("series %d has %d pixels", i, n)
		}
	}
}

func count(img image.Image, c color.Color) (n int) {
	r, g, b, _ := c.RGBA()
	for y := range img.Bounds().Dy() {
		for x := range img.Bounds().Dx() {
			if pr, pg, pb, _ := img.At(x, y).RGBA(); pr == r && pg == g && pb == b {
				n++
			}
		}
	}
	return n
}

func TestAxesHoldTheirFigures(t *testing.T) {
	for _, c := range []struct {
		low, high float64
		log       bool
	}{{0, 0, false}, {5, 5, false}, {-3, -3, false}, {0, 1e12, false}, {1e-9, 2e-9, false}, {-5, 17, false}, {1, 1, true},
		{3, 4, true}, {1e-9, 1e9, true}, {1e3, 1e5, true}, {999, 1001, true}} {
		a := linearAxis(c.low, c.high)
		if c.log {
			a = logAxis(c.low, c.high)
		}
		if a.low > c.low || a.high < c.high || a.low >= a.high || len(a.ticks) < 2 || len(a.ticks) > 13 {
			t.Errorf("%+v: from %g to %g, ticks %v", c, a.low, a.high, a.ticks)
		}
	}
}

func TestThinKeepsTheEnds(t *testing.T) {
	points := make([][2]float64, 100_000)
	for i := range points {
		points[i] = [2]float64{float64(i), 1}
	}
	points[77_777][1], points[33_333][1] = 9, -9
	kept := thin(points)
	low, high := false, false
	for _, p := range kept {
		low, high = low || p[1] == -9, high || p[1] == 9
	}
	if len(kept) > pointsMax+2 || !low || !high {
		t.Errorf("%d kept, low %v, high %v", len(kept), low, high)
	}
}

func TestFormat(t *testing.T) {
	for _, c := range []struct {
		v    float64
		unit string
		want string
	}{
		{1.234e9, "B/s", "1.23 GB/s"}, {0, "B", "0 B"}, {0.00042, "s", "420 µs"}, {75, "s", "75.0 s"}, {7200, "s", "120 min"},
		{56, "ns", "56.0 ns"},
		{123456, "/s", "123,456/s"}, {0.996, "x", "1.00 x"}, {41.7, "x", "41.7 x"}, {12, "%", "12 %"},
		{1e6, "records", "1,000,000 records"}, {-4000, "", "-4,000"}, {0.001, "", "0.001"},
	} {
		if got := Format(c.v, c.unit); got != c.want {
			t.Errorf("%g %s: %q, want %q", c.v, c.unit, got, c.want)
		}
	}
}

func TestMachineIsKnown(t *testing.T) {
	m := ThisMachine(t.TempDir())
	if m.CPUs < 1 || m.MemoryBytes < 1<<28 || m.Kernel == "" || m.FileSystem == "" {
		t.Errorf("%+v", m)
	}
}

// If SHEAF_SAMPLE names a folder, the test writes the sample report there, so that it can be looked at.
func TestWriteSample(t *testing.T) {
	dir := os.Getenv("SHEAF_SAMPLE")
	if dir == "" {
		t.Skip("SHEAF_SAMPLE names no folder")
	}
	r, old := sample(), sample()
	old.Tables[1].Rows[0].Cells["read"] = Of(1, 1.1, 1.2)
	old.Tables[1].Rows[3].Cells["rate"] = Of(1e8)
	must.OK(t, r.Compare(old))
	must.OK(t, r.WriteDir(dir))
}
