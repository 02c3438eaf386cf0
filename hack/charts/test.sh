#!/usr/bin/env bash
# Checks the charts: lint, the rendered objects of each file in ci/ against schemas, and the unit tests. It also
# checks the samples against the same schemas. CEL rules need an API server, which the tests in api/v1alpha1 use (make
# test-api). `make charts-test` builds the tools first.
set -euo pipefail
cd "$(dirname "$0")/../.."
export PATH="$PWD/bin/tools:$PATH"
schemas=bin/schemas

echo "== the generator"
(cd hack/charts && go vet ./... && go test ./...)

echo "== alerts and dashboard"
(cd hack/alerts && go vet ./... && go test -count=1 ./...) # the test cache does not see changes in the charts, which are outside that module

echo "== schemas of our kinds and of Kubernetes'"
kubernetes=$(cd hack/kube/kubernetes && go mod download -json k8s.io/kubernetes | sed -n 's/.*"Dir": "\(.*\)".*/\1/p')
rm -rf "$schemas"
(cd hack/charts && go run . schemas ../.. "$kubernetes/api/openapi-spec/swagger.json" "../../$schemas")

echo "== config/samples"
mapfile -t samples < <(grep -lE '^kind: ' config/samples/*.yaml)
kubeconform -strict -summary -schema-location "$schemas/{{.ResourceKind}}-{{.Group}}-{{.ResourceAPIVersion}}.json" "${samples[@]}"

for chart in charts/*/; do
  for values in "$chart"ci/*-values.yaml; do
    echo "== $values"
    helm lint --strict --quiet "$chart" --values "$values"
    # Skip the kinds of the Prometheus operator: they belong to another project, and their schemas are not here.
    helm template test "$chart" --namespace prod --values "$values" |
      kubeconform -strict -summary -skip monitoring.coreos.com/v1/ServiceMonitor,monitoring.coreos.com/v1/PodMonitor,monitoring.coreos.com/v1/PrometheusRule \
        -schema-location "$schemas/{{.ResourceKind}}-{{.Group}}-{{.ResourceAPIVersion}}.json"
  done
done

echo "== unit tests"
helm-unittest --strict charts/*/
