{{- /* Name of the RecordStore. Too long a name fails here, with what to do: cut short, two releases could be one store. */ -}}
{{- define "sheaf-store.name" -}}
{{- $name := default .Release.Name .Values.fullnameOverride }}
{{- if not (regexMatch "^[a-z]([-a-z0-9]{0,38}[a-z0-9])?$" $name) }}
{{- fail (printf "%q cannot be the name of a RecordStore: at most 40 of a-z, 0-9 and -, first a letter. Choose another release name, or set fullnameOverride" $name) }}
{{- end }}
{{- $name }}
{{- end }}

{{- define "sheaf-store.labels" -}}
app.kubernetes.io/name: {{ .Chart.Name }}
app.kubernetes.io/instance: {{ .Release.Name }}
app.kubernetes.io/part-of: sheaf
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" | trunc 63 | trimSuffix "-" }}
{{- end }}

{{- /* The store's spec without what is empty, as YAML: the API server's defaults hold for that. */ -}}
{{- define "sheaf-store.spec" -}}
{{- $spec := dict }}
{{- range $field, $value := .Values.store }}
{{- if $value }}
{{- $_ := set $spec $field $value }}
{{- end }}
{{- end }}
{{- if not (hasKey $spec "groups") }}
{{- $_ := set $spec "groups" (dict "routing" "Hash" "count" 256) }}
{{- end }}
{{- toYaml $spec }}
{{- end }}

{{- define "sheaf-store.gateway" -}}
{{ include "sheaf-store.name" . }}-gateway.{{ .Release.Namespace }}.svc:7600
{{- end }}

{{- define "sheaf-store.cliImage" -}}
{{- if .Values.store.image }}
{{- .Values.store.image }}
{{- else }}
{{- with .Values.test.image }}
{{- if .digest }}{{ .repository }}@{{ .digest }}{{ else }}{{ .repository }}:{{ default $.Chart.AppVersion .tag }}{{ end }}
{{- end }}
{{- end }}
{{- end }}

{{- /* The group of the records in NOTES and helm test: Named routing wants one. */ -}}
{{- define "sheaf-store.group" -}}
{{- if eq "Named" (dig "routing" "Hash" (default dict .Values.store.groups)) }}helm-test{{ end }}
{{- end }}

{{- /* Fails where a key of a map of values cannot be a name: a dict with value (the map), name, max (characters) and also
(a further character). The schema does not check names: Helm would say another value than the one that is wrong. */ -}}
{{- define "sheaf-store.checkName" -}}
{{- if or (gt (len .name) .max) (not (regexMatch (printf "^[a-z0-9]([-a-z0-9%s]*[a-z0-9])?$" .also) .name)) }}
{{- fail (printf "%s.%s: the name must be at most %d of a-z, 0-9 and -%s, and begin and end with a letter or digit. Choose another name" .value .name .max (ternary "" " and ." (empty .also))) }}
{{- end }}
{{- end }}
