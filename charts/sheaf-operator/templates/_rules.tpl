{{- /* Made by `make charts` from config/rbac/role.yaml. Do not edit. */ -}}

{{- /* What the operator does in the namespaces it watches. */ -}}
{{- define "sheaf-operator.rules.namespaced" -}}
- apiGroups:
  - ""
  resources:
  - configmaps
  - secrets
  verbs:
  - create
  - delete
  - get
  - patch
- apiGroups:
  - ""
  resources:
  - events
  verbs:
  - list
- apiGroups:
  - ""
  resources:
  - persistentvolumeclaims
  - pods
  verbs:
  - delete
  - list
  - patch
  - watch
- apiGroups:
  - ""
  resources:
  - services
  verbs:
  - create
  - delete
  - list
  - patch
  - watch
- apiGroups:
  - apps
  resources:
  - deployments
  - statefulsets
  verbs:
  - create
  - delete
  - list
  - patch
  - watch
- apiGroups:
  - batch
  resources:
  - jobs
  verbs:
  - create
  - delete
  - get
- apiGroups:
  - events.k8s.io
  resources:
  - events
  verbs:
  - create
  - patch
- apiGroups:
  - networking.k8s.io
  resources:
  - networkpolicies
  verbs:
  - create
  - delete
  - list
  - patch
  - watch
- apiGroups:
  - policy
  resources:
  - poddisruptionbudgets
  verbs:
  - create
  - list
  - patch
  - watch
- apiGroups:
  - sheaf.dev
  resources:
  - recordbackups
  - shardpools
  verbs:
  - list
  - patch
  - watch
- apiGroups:
  - sheaf.dev
  resources:
  - recordarchives/status
  - recordbackups/status
  - recordgrants/status
  - recordstores/status
  - recordtenants/status
  - shardpools/status
  - shards/status
  verbs:
  - patch
- apiGroups:
  - sheaf.dev
  resources:
  - recordarchives
  - recordgrants
  - recordtenants
  verbs:
  - list
  - watch
- apiGroups:
  - sheaf.dev
  resources:
  - recordarchives/finalizers
  - recordstores/finalizers
  - shardpools/finalizers
  verbs:
  - update
- apiGroups:
  - sheaf.dev
  resources:
  - recordstores
  verbs:
  - get
  - list
  - patch
  - watch
- apiGroups:
  - sheaf.dev
  resources:
  - shards
  verbs:
  - create
  - delete
  - list
  - patch
  - watch
{{- end }}

{{- /* Certificates of cert-manager, in the same namespaces. */ -}}
{{- define "sheaf-operator.rules.certManager" -}}
- apiGroups:
  - cert-manager.io
  resources:
  - certificates
  verbs:
  - create
  - delete
  - get
  - patch
{{- end }}

{{- /* What it looks at outside of namespaces. */ -}}
{{- define "sheaf-operator.rules.read" -}}
- apiGroups:
  - ""
  resources:
  - namespaces
  - nodes
  - persistentvolumes
  verbs:
  - list
  - watch
- apiGroups:
  - storage.k8s.io
  resources:
  - storageclasses
  verbs:
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
- apiGroups:
  - sheaf.dev
  resources:
  - disksets
  verbs:
  - list
  - patch
  - watch
- apiGroups:
  - sheaf.dev
  resources:
  - disksets/status
  verbs:
  - patch
- apiGroups:
  - storage.k8s.io
  resources:
  - storageclasses
  verbs:
  - create
  - delete
  - patch
{{- end }}

{{- /* Leader election, in the operator's own namespace. */ -}}
{{- define "sheaf-operator.rules.election" -}}
- apiGroups:
  - ""
  resources:
  - events
  verbs:
  - create
- apiGroups:
  - coordination.k8s.io
  resources:
  - leases
  verbs:
  - create
  - get
  - update
{{- end }}

{{- /* Jobs that wipe disks, in the operator's own namespace. */ -}}
{{- define "sheaf-operator.rules.wipe" -}}
- apiGroups:
  - ""
  resources:
  - persistentvolumeclaims
  verbs:
  - create
  - delete
  - get
- apiGroups:
  - batch
  resources:
  - jobs
  verbs:
  - create
  - delete
  - get
{{- end }}
