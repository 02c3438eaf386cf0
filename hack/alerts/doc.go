// Package alerts evaluates the alerts of the chart sheaf-operator with Prometheus' own parsers and engine: its tests as
// `promtool test rules` does, from series that they write down, and a Watch from what an operator tells
// (cmd/alerts-watch, which the e2e suite runs). It is a module of its own, so that the product has none of these
// dependencies.
package alerts
