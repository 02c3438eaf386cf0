// Package alerts evaluates the alerts of the chart sheaf-operator with Prometheus's own parsers and engine. Its tests
// evaluate the alerts on series from test data, like `promtool test rules`. A Watch evaluates the alerts on the
// metrics of a running operator. The e2e suite uses Watch through cmd/alerts-watch. The package is in a separate
// module, so that the product does not depend on Prometheus.
package alerts
