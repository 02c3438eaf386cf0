{{- /* Made by `make charts` from config/rbac/role.yaml. Do not edit. */ -}}

{{- /* What the operator does in the namespaces it watches. */ -}}
{{- define "sheaf-operator.rules.namespaced" -}}
- apiGroups:
  - ""
  resources:
  - configmaps
  - persistentvolumeclaims
  - services
  verbs:
  - create
  - delete
  - get
  - list
  - patch
  - update
  - watch
- apiGroups:
  - ""
  resources:
  - pods
  verbs:
  - delete
  - get
  - list
  - patch
  - watch
- apiGroups:
  - ""
  resources:
  - secrets
  verbs:
  - get
  - list
  - watch
- apiGroups:
  - apps
  resources:
  - deployments
  - statefulsets
  verbs:
  - create
  - delete
  - get
  - list
  - patch
  - update
  - watch
- apiGroups:
  - events.k8s.io
  resources:
  - events
  verbs:
  - create
  - patch
- apiGroups:
  - policy
  resources:
  - poddisruptionbudgets
  verbs:
  - create
  - delete
  - get
  - list
  - patch
  - update
  - watch
- apiGroups:
  - sheaf.dev
  resources:
  - recordstores
  - shardpools
  verbs:
  - get
  - list
  - patch
  - update
  - watch
- apiGroups:
  - sheaf.dev
  resources:
  - recordstores/finalizers
  - shardpools/finalizers
  verbs:
  - update
- apiGroups:
  - sheaf.dev
  resources:
  - recordstores/status
  - shardpools/status
  verbs:
  - get
  - patch
  - update
{{- end }}

{{- /* What it looks at outside of namespaces. */ -}}
{{- define "sheaf-operator.rules.read" -}}
- apiGroups:
  - ""
  resources:
  - nodes
  - persistentvolumes
  verbs:
  - get
  - list
  - watch
- apiGroups:
  - storage.k8s.io
  resources:
  - storageclasses
  verbs:
  - get
  - list
  - watch
{{- end }}

{{- /* What DiskSets need beside that. */ -}}
{{- define "sheaf-operator.rules.diskSets" -}}
- apiGroups:
  - ""
  resources:
  - persistentvolumes
  verbs:
  - create
  - delete
  - patch
  - update
- apiGroups:
  - sheaf.dev
  resources:
  - disksets
  verbs:
  - get
  - list
  - patch
  - update
  - watch
- apiGroups:
  - sheaf.dev
  resources:
  - disksets/finalizers
  verbs:
  - update
- apiGroups:
  - sheaf.dev
  resources:
  - disksets/status
  verbs:
  - get
  - patch
  - update
- apiGroups:
  - storage.k8s.io
  resources:
  - storageclasses
  verbs:
  - create
  - delete
  - patch
  - update
{{- end }}

{{- /* Leader election, in the operator's own namespace. */ -}}
{{- define "sheaf-operator.rules.election" -}}
- apiGroups:
  - coordination.k8s.io
  resources:
  - leases
  verbs:
  - create
  - get
  - list
  - patch
  - update
  - watch
{{- end }}
