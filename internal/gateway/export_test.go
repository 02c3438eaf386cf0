package gateway

// Epoch returns the epoch of the newest view.
func (g *Gateway) Epoch() uint64 { return g.epoch() }
