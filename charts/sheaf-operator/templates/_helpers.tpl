{{- define "sheaf-operator.name" -}}
{{- default .Chart.Name .Values.nameOverride | trunc 50 | trimSuffix "-" }}
{{- end }}

{{- define "sheaf-operator.fullname" -}}
{{- $name := include "sheaf-operator.name" . }}
{{- if .Values.fullnameOverride }}
{{- .Values.fullnameOverride | trunc 50 | trimSuffix "-" }}
{{- else if contains $name .Release.Name }}
{{- .Release.Name | trunc 50 | trimSuffix "-" }}
{{- else }}
{{- printf "%s-%s" .Release.Name $name | trunc 50 | trimSuffix "-" }}
{{- end }}
{{- end }}

{{- /* Names outside of namespaces: two releases of one name in two namespaces must not meet. */ -}}
{{- define "sheaf-operator.clusterName" -}}
{{- printf "%s:%s" .Release.Namespace (include "sheaf-operator.fullname" .) }}
{{- end }}

{{- define "sheaf-operator.selector" -}}
app.kubernetes.io/name: {{ include "sheaf-operator.name" . }}
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{- define "sheaf-operator.labels" -}}
{{ include "sheaf-operator.selector" . }}
app.kubernetes.io/component: operator
app.kubernetes.io/part-of: sheaf
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" | trunc 63 | trimSuffix "-" }}
{{- end }}

{{- define "sheaf-operator.serviceAccount" -}}
{{- if .Values.serviceAccount.create }}
{{- default (include "sheaf-operator.fullname" .) .Values.serviceAccount.name }}
{{- else }}
{{- required "serviceAccount.name is needed where serviceAccount.create is false" .Values.serviceAccount.name }}
{{- end }}
{{- end }}

{{- /* An image from a dict with image and version. */ -}}
{{- define "sheaf-operator.image" -}}
{{- with .image }}
{{- if .digest }}{{ .repository }}@{{ .digest }}{{ else }}{{ .repository }}:{{ default $.version .tag }}{{ end }}
{{- end }}
{{- end }}

{{- /* Who the roles are bound to. */ -}}
{{- define "sheaf-operator.subjects" -}}
subjects:
  - kind: ServiceAccount
    name: {{ include "sheaf-operator.serviceAccount" . }}
    namespace: {{ .Release.Namespace }}
{{- end }}

{{- /* How long a pod stays on a node that does not answer, where tolerations do not say it themselves: Kubernetes' own are 300 s. */ -}}
{{- define "sheaf-operator.leavesSoon" -}}
{{- range $key := list "node.kubernetes.io/not-ready" "node.kubernetes.io/unreachable" }}
{{- $said := false }}
{{- range $.Values.tolerations }}
{{- if and (has (default "" .key) (list "" $key)) (has (default "" .effect) (list "" "NoExecute")) }}
{{- $said = true }}
{{- end }}
{{- end }}
{{- if not $said }}
- {key: {{ $key }}, operator: Exists, effect: NoExecute, tolerationSeconds: 10}
{{- end }}
{{- end }}
{{- end }}
