package care

import (
	"context"
	"sync"
	"time"

	"sheaf.dev/sheaf/internal/placement"
	"sheaf.dev/sheaf/internal/placement/registry"
)

// reportedWeights caches the weights that leaders reported to etcd.
type reportedWeights struct {
	etcd  Etcd
	fresh time.Duration // how long a response from etcd is used

	mu     sync.Mutex
	shards map[string]reportedWeight
	silent time.Time // etcd did not respond, and is not queried again before this time
}

func newReportedWeights(etcd Etcd, fresh time.Duration) *reportedWeights {
	return &reportedWeights{etcd: etcd, fresh: fresh, shards: map[string]reportedWeight{}}
}

type reportedWeight struct {
	at      time.Time // when etcd was asked
	weights map[string]registry.Weight
}

const (
	weightsTimeout = time.Second
	weightsRetry   = 30 * time.Second
)

// weightOf returns the weight that the leader of a group last reported. It returns the zero value if there is no such
// weight, if the report concerns an earlier group of this name, or if etcd does not respond.
func (h *reportedWeights) weightOf(ctx context.Context, state placement.Group) registry.Weight {
	weights, _ := h.weightsOf(ctx, state.Leader, time.Time{})
	if w := weights[state.Name]; w.UUID == state.UUID {
		return w
	}
	return registry.Weight{}
}

// again does the same as weightsOf, but does not use an earlier answer of etcd.
func (h *reportedWeights) again(ctx context.Context, shard string) (map[string]registry.Weight, bool) {
	h.mu.Lock()
	delete(h.shards, shard)
	h.silent = time.Time{}
	h.mu.Unlock()
	return h.weightsOf(ctx, shard, time.Time{})
}

// weightsOf returns the weights that a shard last reported, by group. It does not use an answer to a question that etcd
// was asked before the given time. It returns false if the name of the shard is empty, or if etcd does not respond.
func (h *reportedWeights) weightsOf(ctx context.Context, shard string,
	since time.Time) (map[string]registry.Weight, bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	heard, known := h.shards[shard]
	if !known || time.Since(heard.at) > h.fresh || heard.at.Before(since) {
		if shard == "" || time.Now().Before(h.silent) {
			return nil, false
		}
		ctx, cancel := context.WithTimeout(ctx, weightsTimeout)
		defer cancel()
		at := time.Now()
		weights, err := h.etcd.Weights(ctx, shard)
		if err != nil {
			h.silent = time.Now().Add(weightsRetry)
			return nil, false
		}
		heard = reportedWeight{at, weights}
		h.shards[shard] = heard
	}
	return heard.weights, true
}
