package gateway

// Epoch returns the epoch of the newest view.
func (g *Gateway) Epoch() uint64 { return g.epoch() }

// CallsMax returns the configuration of a gateway that accepts at most n concurrent calls.
func CallsMax(n int64) Config { return Config{callsMax: n} }
