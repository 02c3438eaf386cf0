{{- define "gvDetails" -}}
## {{ .GroupVersionString }}

{{ .Doc }}

Kinds:
{{ range .SortedKinds }}
- {{ $.TypeForKind . | markdownRenderTypeLink }}
{{- end }}
{{ range .SortedTypes }}
{{- template "type" . }}
{{- end }}
{{- end -}}
