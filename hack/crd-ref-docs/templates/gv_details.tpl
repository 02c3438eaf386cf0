{{- /* The kinds come first, in the order in which a reader meets them. Each has a sample: config/samples/KIND.yaml. */ -}}
{{- define "gvDetails" -}}
{{- $kinds := list "RecordStore" "ShardPool" "DiskSet" "RecordGrant" "RecordTenant" "RecordArchive" "RecordBackup" "Shard" -}}
{{- if ne (sortAlpha $kinds | join " ") (.SortedKinds | join " ") -}}
{{- fail (printf "hack/crd-ref-docs/templates/gv_details.tpl lists the kinds %v, and api/v1alpha1 has %v" $kinds .SortedKinds) -}}
{{- end -}}
{{ .Doc }}

## Kinds of {{ .GroupVersionString }}
{{ range $kinds }}
- {{ $.TypeForKind . | markdownRenderTypeLink }}
{{- end }}

The samples are those of [config/samples](../config/samples). [Other types](#other-types-of-{{ .GroupVersionString | replace "." "" | replace "/" "" }}) follow, by
alphabet.
{{ range $kinds }}
{{- template "type" ($.TypeForKind .) }}
{{- end }}

## Other types of {{ .GroupVersionString }}
{{ range .SortedTypes }}
{{- if not .GVK }}
{{- template "type" . }}
{{- end }}
{{- end }}
{{- end -}}
