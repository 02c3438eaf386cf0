module sheaf.dev/sheaf/hack/protodeps

go 1.26.0

require (
	github.com/jhump/protoreflect v1.19.0
	google.golang.org/genproto/googleapis/rpc v0.0.0-20261019180522-ce908d29299b
)

require (
	github.com/golang/protobuf v1.5.4 // indirect
	github.com/jhump/protoreflect/v2 v2.0.0-beta.1 // indirect
	google.golang.org/protobuf v1.36.12 // indirect
)
