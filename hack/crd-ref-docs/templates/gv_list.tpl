{{- define "gvList" -}}
# Reference of the Kubernetes API

Generated from `api/v1alpha1` by `make generate`. `kubectl explain recordstore.spec` shows the same text.
{{ range . }}
{{ template "gvDetails" . }}
{{- end }}
{{ end -}}
