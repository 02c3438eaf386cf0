{{- define "type" -}}
{{- if markdownShouldRenderType . }}

### {{ .Name }}
{{ if .IsAlias }}
Underlying type: {{ markdownRenderTypeLink .UnderlyingType }}
{{ end }}
{{ .Doc }}
{{- template "sample" . }}
{{- template "checks" .Validation }}
{{- if .References }}

Used by:{{ range $i, $r := .SortedReferences }}{{ if $i }},{{ end }} {{ markdownRenderTypeLink $r }}{{ end }}
{{- end }}
{{- if .Members }}

| field | what | default | bounds |
| --- | --- | --- | --- |
{{ if .GVK -}}
| `apiVersion` string | `{{ .GVK.Group }}/{{ .GVK.Version }}` | | |
| `kind` string | `{{ .GVK.Kind }}` | | |
{{ end -}}
{{ range .Members -}}
| `{{ .Name }}` {{ markdownRenderType .Type }} | {{ if eq .Name "metadata" }}As of every Kubernetes object.{{ else }}{{ markdownRenderFieldDoc .Doc }}{{ end }} | {{ if and (eq .Name "status") .Default }}condition Reconciling, reason Pending{{ else }}{{ markdownRenderDefault .Default }}{{ end }} | {{ template "bounds" .Validation }} |
{{ end -}}
{{- end }}
{{- if .EnumValues }}

| value | what |
| --- | --- |
{{ range .EnumValues -}}
| `{{ .Name }}` | {{ markdownRenderFieldDoc .Doc }} |
{{ end -}}
{{- end }}
{{- end }}
{{- end -}}

{{- /* Rules in CEL are left out: their messages say what to change, at the time. */ -}}
{{- define "bounds" -}}
{{- range . -}}
{{- if hasPrefix "Required" . }}required<br />
{{- else if not (or (contains "XValidation" .) (hasPrefix "Optional" .) (hasPrefix "Schemaless" .) (hasPrefix "Type:" .)) }}{{ markdownRenderFieldDoc . }}<br />
{{- end -}}
{{- end -}}
{{- end -}}

{{- define "checks" -}}
{{- range . -}}
{{- if not (contains "XValidation" .) }}

{{ . }}
{{- end -}}
{{- end -}}
{{- end -}}

{{- /* A kind's sample is config/samples/KIND.yaml, which `make generate` hands over. KIND-restored.yaml follows it, if it exists. */ -}}
{{- define "sample" -}}
{{- if .GVK -}}
{{- $sample := markdownTemplateValue (lower .Name) -}}
{{- if not $sample }}{{ fail (printf "config/samples/%s.yaml is missing" (lower .Name)) }}{{ end }}

```yaml
{{ $sample }}
```
{{- with markdownTemplateValue (printf "%s-restored" (lower .Name)) }}

```yaml
{{ . }}
```
{{- end }}
{{- end -}}
{{- end -}}
