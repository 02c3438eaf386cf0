# The images with a container engine, for those who have one (and for platforms that `make image` does not know):
#
#   docker build --target sheaf          --build-arg VERSION=v1 --tag registry.example/sheaf:v1 .
#   docker build --target sheaf-operator --build-arg VERSION=v1 --tag registry.example/sheaf-operator:v1 .
#   docker build --target sheaf-archive  --build-arg VERSION=v1 --tag registry.example/sheaf-archive:v1 .
#
# `make image` needs no engine, is what the tests use, and is reproducible bit by bit, which this is not: an engine puts
# times of its own into the layers. The layout is the same: user nonroot, one static binary, nothing else.
ARG GO_IMAGE=golang:1.26

FROM --platform=$BUILDPLATFORM ${GO_IMAGE} AS build
WORKDIR /src
COPY go.mod go.sum ./
COPY client/go.mod client/go.sum client/
COPY cmd/sheaf-archive/go.mod cmd/sheaf-archive/go.sum cmd/sheaf-archive/
RUN go mod download && cd cmd/sheaf-archive && go mod download
COPY . .
ARG TARGETOS TARGETARCH VERSION=unknown
RUN CGO_ENABLED=0 GOOS=$TARGETOS GOARCH=$TARGETARCH go build -trimpath -buildvcs=false \
      -ldflags "-s -w -X main.version=$VERSION" -o /out/ ./cmd/sheaf ./cmd/sheaf-operator
RUN cd cmd/sheaf-archive && CGO_ENABLED=0 GOOS=$TARGETOS GOARCH=$TARGETARCH go build -trimpath -buildvcs=false \
      -ldflags "-s -w -X main.version=$VERSION" -o /out/ .
RUN mkdir -p /rootfs/etc && \
    echo 'nonroot:x:65532:65532:nonroot:/:/sbin/nologin' >/rootfs/etc/passwd && \
    echo 'nonroot:x:65532:' >/rootfs/etc/group

FROM scratch AS sheaf-operator
ARG VERSION=unknown
LABEL org.opencontainers.image.title=sheaf-operator \
      org.opencontainers.image.description="Sheaf: the Kubernetes operator" \
      org.opencontainers.image.licenses=Apache-2.0 \
      org.opencontainers.image.version=$VERSION
COPY --from=build /rootfs/ /
COPY --from=build /out/sheaf-operator /sheaf-operator
USER 65532:65532
ENTRYPOINT ["/sheaf-operator"]

FROM scratch AS sheaf-archive
ARG VERSION=unknown
LABEL org.opencontainers.image.title=sheaf-archive \
      org.opencontainers.image.description="Sheaf: archives of stores in buckets" \
      org.opencontainers.image.licenses=Apache-2.0 \
      org.opencontainers.image.version=$VERSION
COPY --from=build /rootfs/ /
COPY --from=build /out/sheaf-archive /sheaf-archive
USER 65532:65532
ENTRYPOINT ["/sheaf-archive"]

FROM scratch AS sheaf
ARG VERSION=unknown
LABEL org.opencontainers.image.title=sheaf \
      org.opencontainers.image.description="Sheaf: shard, gateway, etcd and command line" \
      org.opencontainers.image.licenses=Apache-2.0 \
      org.opencontainers.image.version=$VERSION
COPY --from=build /rootfs/ /
COPY --from=build /out/sheaf /sheaf
USER 65532:65532
ENTRYPOINT ["/sheaf"]
