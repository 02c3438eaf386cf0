// Package alerts tests the alerts and the dashboard of the chart sheaf-operator with Prometheus' own parser and engine, as
// `promtool test rules` does. It is a module of its own, so that the product has none of these dependencies.
package alerts
