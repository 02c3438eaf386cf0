module sheaf.dev/sheaf/hack/kube/probe

go 1.26.0
