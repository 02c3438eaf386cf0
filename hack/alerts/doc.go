// Package alerts evaluates the alerts of the chart sheaf-operator with Prometheus's own parsers and engine. Its tests
// evaluate the alerts as `promtool test rules` does, with series that the tests contain. A Watch evaluates the alerts
// with the metrics of a running operator. The e2e suite uses Watch through cmd/alerts-watch. The package is a separate
// module, so that the product has none of these dependencies.
package alerts
