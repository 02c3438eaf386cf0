package bench

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"path/filepath"
	"time"

	"golang.org/x/sync/errgroup"

	"sheaf.dev/sheaf/bench/drive"
	"sheaf.dev/sheaf/bench/result"
	"sheaf.dev/sheaf/bench/rounds"
	"sheaf.dev/sheaf/client"
)

// direct is the configuration of a reader that calls the shard itself.
var direct = map[string]any{"direct": true}

// batches compares random batches, scans and loaders.
func (b *readersBench) batches(ctx context.Context) error {
	for _, size := range b.opts.Sizes {
		s, err := b.start(ctx, size, b.records(size))
		if err != nil {
			return err
		}
		err = s.batches(ctx)
		s.close()
		if err != nil {
			return err
		}
	}
	return nil
}

func (s *readStore) batches(ctx context.Context) error {
	files, err := s.worker(ctx, "prepare", "prepare", nil)
	if err != nil {
		return err
	}
	files.close()
	for _, compare := range []func(context.Context) error{s.random, s.scan, s.loaders} {
		if err := compare(ctx); err != nil {
			return err
		}
	}
	return nil
}

// name returns the name of a row about the records of this store.
func (s *readStore) name(what string) string { return fmt.Sprintf("%s, %d B", what, s.size) }

func (s *readStore) random(ctx context.Context) error {
	contract := filepath.Join(s.dir, "record.binpb")
	if err := writeDescriptors(contract); err != nil {
		return err
	}
	s.b.Say("random batches of %d, %d B", readersBatch, s.size)
	got, err := s.turns(ctx,
		reader{"ours", "get_many", direct},
		reader{"array_record", "array_record", nil},
		reader{"Lance", "lance", nil},
		reader{"grpcio", "grpcio", map[string]any{"descriptors": contract}},
		reader{"gateway", "get_many", nil},
		reader{"keep", "get_many", map[string]any{"direct": true, "keep": true}},
	)
	if err != nil {
		return err
	}
	cpu := s.name(fmt.Sprintf("random batches of %d, records for a processor second of the client", readersBatch))
	wall := s.name(fmt.Sprintf("random batches of %d, records", readersBatch))
	const keeps = ", while malloc keeps freed memory"
	s.b.add(
		got.metric(cpu+" / array_record", byCPU, "ours", "array_record", 1.5),
		got.metric(cpu+" / Lance", byCPU, "ours", "Lance", 1.5),
		got.metric(cpu+" / grpcio", byCPU, "ours", "grpcio", 2),
		got.metric(cpu+keeps+" / array_record", byCPU, "keep", "array_record", 0),
		got.metric(cpu+keeps+" / Lance", byCPU, "keep", "Lance", 0),
		got.metric(cpu+keeps+" / grpcio", byCPU, "keep", "grpcio", 0),
		got.metric(cpu+", by a gateway / Lance", byCPU, "gateway", "Lance", 0),
		got.metric(wall+" / Lance", byTime, "ours", "Lance", 0.9).
			WithNote("the server uses the same processors; Lance has none"),
		got.metric(wall+" / array_record", byTime, "ours", "array_record", 0),
		got.metric(wall+" / grpcio", byTime, "ours", "grpcio", 0),
		got.metric(wall+", by a gateway / Lance", byTime, "gateway", "Lance", 0),
	)
	return nil
}

func (s *readStore) scan(ctx context.Context) error {
	s.b.Say("scans, %d B", s.size)
	bare, err := s.worker(ctx, "bare", "bare flight", nil)
	if err != nil {
		return err
	}
	defer bare.close()
	name := s.name("scan of all columns / the same batches by a bare Flight server")
	if bare.missing != "" {
		s.b.add(result.Ratio{Labels: result.Labels("what", name), Missed: bare.missing})
		return nil
	}
	got, err := s.turns(ctx, reader{"ours", "scan", direct}, reader{"gateway", "scan", nil},
		reader{"bare", "flight scan", map[string]any{"address": bare.address}})
	if err != nil {
		return err
	}
	s.b.add(got.metric(name, byTime, "ours", "bare", 0.8),
		got.metric(name+", for a processor second of the client", byCPU, "ours", "bare", 0),
		got.metric(name+", by a gateway", byTime, "gateway", "bare", 0))
	return nil
}

func (s *readStore) loaders(ctx context.Context) error {
	s.b.Say("loaders, %d B", s.size)
	got, err := s.turns(ctx, reader{"ours", "store loader", direct}, reader{"gateway", "store loader", nil},
		reader{"WebDataset", "webdataset loader", nil}, reader{"files", "files loader", nil})
	if err != nil {
		return err
	}
	name := s.name("shuffled loader with 2 workers, records")
	s.b.add(got.metric(name+" / WebDataset in order", byTime, "ours", "WebDataset", 1),
		got.metric(name+" / a file for each record, shuffled", byTime, "ours", "files", 1),
		got.metric(name+", by a gateway / WebDataset in order", byTime, "gateway", "WebDataset", 0))

	s.b.Say("loaders of torch, %d B", s.size)
	got, err = s.turns(ctx, reader{"ours", "store torch", direct}, reader{"WebDataset", "webdataset torch", nil},
		reader{"files", "files torch", nil})
	if err != nil {
		return err
	}
	name = s.name("torch's DataLoader, shuffled, with 2 workers, records")
	s.b.add(got.metric(name+" / WebDataset in order", byTime, "ours", "WebDataset", 1),
		got.metric(name+" / a file for each record, shuffled", byTime, "ours", "files", 1))
	return nil
}

// calls compares records over HTTP with the calls of gRPC, both by the gateway and from Go.
func (b *readersBench) calls(ctx context.Context) error {
	for _, size := range b.opts.Sizes {
		s, err := b.start(ctx, size, b.records(size))
		if err != nil {
			return err
		}
		err = s.calls(ctx)
		s.close()
		if err != nil {
			return err
		}
	}
	return nil
}

func (s *readStore) calls(ctx context.Context) error {
	const callers = 16
	web := &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: callers, DisableCompression: true}}
	defer web.CloseIdleConnections()
	base := "http://" + s.dev.RecordsHTTPAddr() + "/v1/"
	s.b.Say("records over HTTP, %d B", s.size)
	got, err := s.b.takeTurns(ctx,
		ownCell("get", func() (float64, error) {
			did, err := drive.Callers(callers, s.b.opts.Time, func(_ int, i int64) error {
				_, err := s.client.Get(ctx, client.Key{ID: s.id(i)}, nil)
				return err
			})
			return did.PerSecond, err
		}),
		ownCell("http", func() (float64, error) {
			did, err := drive.Callers(callers, s.b.opts.Time, func(_ int, i int64) error {
				n, err := fetch(ctx, web, fmt.Sprintf("%srecords/-/%d", base, s.id(i)))
				if err == nil && n != int64(s.size) {
					err = fmt.Errorf("a record has %d bytes, not %d", n, s.size)
				}
				return err
			})
			return did.PerSecond, err
		}),
		ownCell("scan", func() (float64, error) {
			return perSecond(float64(s.records), func() error { return s.scanAll(ctx) })
		}),
		ownCell("tar", func() (float64, error) {
			return perSecond(float64(s.records), func() error { return s.fetchAll(ctx, web, base+"scan.tar") })
		}),
	)
	if err != nil {
		return err
	}
	get := s.name(fmt.Sprintf("GET over HTTP / unary Get, by the gateway, %d callers", callers))
	tar := s.name("records of scan.tar / Scan, by the gateway")
	const used = ", for a processor second of store and client"
	s.b.add(
		got.metric(get, byTime, "http", "get", 0.8), got.metric(get+used, byCPU, "http", "get", 0),
		got.metric(tar, byTime, "tar", "scan", 0.9), got.metric(tar+used, byCPU, "tar", "scan", 0))
	return nil
}

// ownCell creates a cell with two rates of what this process does: the one that run returns, and that for each second
// of the processors in this process, which has the store and its client.
func ownCell(key string, run func() (float64, error)) rounds.Cell {
	return rounds.Cell{Key: key, Run: func(_ context.Context, f *rounds.Figures) error {
		begin, used := time.Now(), processorTime()
		rate, err := run()
		f.Set(byTime, rate)
		f.Set(byCPU, rate*float64(time.Since(begin))/float64(max(processorTime()-used, 1)))
		return err
	}}
}

func (s *readStore) scanAll(ctx context.Context) error {
	n := 0
	for _, err := range s.client.Scan(ctx, nil) {
		if err != nil {
			return err
		}
		n++
	}
	return whole(int64(n), int64(s.records))
}

// fetchAll reads an archive of all records. Beside its data, each record has headers and JSON.
func (s *readStore) fetchAll(ctx context.Context, web *http.Client, url string) error {
	n, err := fetch(ctx, web, url)
	if data := int64(s.records) * int64(s.size); err == nil && n < data {
		return whole(n, data)
	}
	return err
}

// whole returns an error if a scan has not the expected number of records or bytes.
func whole(got, want int64) error {
	if got != want {
		return fmt.Errorf("a scan has %d, not %d", got, want)
	}
	return nil
}

// fetch reads the body of an answer to its end, and returns its length.
func fetch(ctx context.Context, web *http.Client, url string) (int64, error) {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return 0, err
	}
	answer, err := web.Do(request)
	if err != nil {
		return 0, err
	}
	n, err := io.Copy(io.Discard, answer.Body)
	_ = answer.Body.Close()
	if err == nil && answer.StatusCode != http.StatusOK {
		err = fmt.Errorf("%s: %s", url, answer.Status)
	}
	return n, err
}

// order measures how fast the places of a shuffled order are computed.
func (b *readersBench) order(ctx context.Context) error {
	if err := b.write(); err != nil {
		return err
	}
	w, err := startWorker(ctx, b.opts.Python, b.scripts, "order", map[string]any{"seed": readersSeed})
	if err != nil {
		return err
	}
	defer w.close()
	row := result.Ratio{Labels: result.Labels("what", "indexes of a shuffled order, for a processor second"), Unit: "/s",
		Missed: w.missing, Target: 10e6}
	if w.missing == "" {
		got, err := b.takeTurns(ctx, w.cell(b.opts.Time))
		if err != nil {
			return err
		}
		row.Ours = got.Of(w.name, byCPU)
	}
	b.add(row)
	return nil
}

// first compares the time to the first batch of a data set with a scan of its ids.
func (b *readersBench) first(ctx context.Context) error {
	s, err := b.start(ctx, readersSmall, b.opts.Records)
	if err != nil {
		return err
	}
	defer s.close()
	got, err := s.turns(ctx, reader{"ours", "first batch", nil}, reader{"scan", "scan of ids", nil})
	if err != nil {
		return err
	}
	row := atMost(fmt.Sprintf("time to the first batch of %d records / scan of their ids", b.opts.Records), "s",
		inverse(got.Of("ours", byTime)), inverse(got.Of("scan", byTime)), 2)
	b.add(got.unless(row, "ours", "scan"))
	return nil
}

// inverse returns the times of rates.
func inverse(rates []float64) []float64 {
	times := make([]float64, 0, len(rates))
	for _, rate := range rates {
		times = append(times, 1/rate)
	}
	return times
}

// beside compares the latency of another caller's gets beside two loaders with that of the caller alone.
func (b *readersBench) beside(ctx context.Context) error {
	size := b.opts.Sizes[0]
	s, err := b.start(ctx, size, b.records(size))
	if err != nil {
		return err
	}
	defer s.close()
	name := s.name("p99 of gets by one caller, beside two loaders / alone")
	var loaders [2]*worker
	none := map[string]any{"workers": 0}
	for i := range loaders {
		if loaders[i], err = s.worker(ctx, fmt.Sprint("loader", i), "store loader", none); err != nil {
			return err
		}
		if why := loaders[i].missing; why != "" {
			b.add(result.Ratio{Labels: result.Labels("what", name), Missed: why})
			return nil
		}
	}
	gets := func() (float64, error) {
		did, err := drive.Callers(1, b.opts.Time, func(_ int, i int64) error {
			_, err := s.client.Get(ctx, client.Key{ID: s.id(i)}, nil)
			return err
		})
		return did.P99, err
	}
	got, err := b.takeTurns(ctx, rounds.One("alone", gets), rounds.One("beside", func() (p99 float64, err error) {
		var g errgroup.Group
		for _, w := range loaders {
			g.Go(func() error {
				_, err := w.work(b.opts.Time)
				return err
			})
		}
		g.Go(func() (err error) {
			p99, err = gets()
			return err
		})
		return p99, g.Wait()
	}))
	if err != nil {
		return err
	}
	b.add(atMost(name, "s", got.Rate("beside"), got.Rate("alone"), 1.5).
		WithNote("loaders, caller and store share the processors"))
	return nil
}
