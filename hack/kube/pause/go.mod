module sheaf.dev/sheaf/hack/kube/pause

go 1.26.0
