// Package alerts evaluates the alerts of the chart sheaf-operator with Prometheus' own parsers and engine. Its tests
// do this as `promtool test rules` does, with series that they contain. A Watch does this with the metrics of a
// running operator; the e2e suite uses it through cmd/alerts-watch. The package is a separate module, so that the
// product has none of these dependencies.
package alerts
