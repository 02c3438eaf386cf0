# This is the Makefile of Sheaf. `make help` lists the targets.
SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
.DEFAULT_GOAL := help

# These are the versions of the tools, which are built from their Go modules into bin/tools on first use.
BUF_VERSION                := v1.71.0
PROTOC_GEN_GO_VERSION      := v1.36.12
PROTOC_GEN_GO_GRPC_VERSION := v1.6.2
GOLANGCI_LINT_VERSION      := v2.15.0
GOTESTSUM_VERSION          := v1.13.0
GRPCURL_VERSION            := v1.9.3
HELM_VERSION               := v4.3.1
HELM_DOCS_VERSION          := v1.14.2
KUBECONFORM_VERSION        := v0.8.0
CONTROLLER_GEN_VERSION     := v0.22.0
CRD_REF_DOCS_VERSION       := v0.3.0
KWOK_VERSION               := v0.8.0
GOVULNCHECK_VERSION        := v1.9.0
VERSITYGW_VERSION          := v1.8.0
# This is the Go vulnerability database as a module. Update it together with the modules in go.mod.
VULNDB_VERSION             := v0.0.0-20261105234957-e22db6528018

VERSION ?= $(shell git describe --tags --always --dirty 2>/dev/null || echo unknown)
LDFLAGS := -s -w -X main.version=$(VERSION)

# FOCUS=name runs only the tests with matching names. PKG=./internal/storage/group/... runs only those packages.
FOCUS ?=
PKG   ?=
# The packages with the longest tests start first, so that none of them runs alone at the end.
LONGEST := ./controllers ./internal/shard ./internal/storage/group ./internal/test/sim ./cmd/sheaf ./internal/placement/etcd ./internal/test/powercut ./... sheaf.dev/sheaf/client/...
# ARGS is passed on by `make run` and `make bench`.
ARGS  ?=
# FUZZTIME is the time for each decoder in `make fuzz`.
FUZZTIME ?= 30s

# Images are named IMAGE_PREFIX:IMAGE_TAG, IMAGE_PREFIX-operator:IMAGE_TAG, IMAGE_PREFIX-bench:IMAGE_TAG and
# IMAGE_PREFIX-archive:IMAGE_TAG.
# PLATFORMS="linux/amd64 linux/arm64" packs images for both platforms.
IMAGE_PREFIX      ?= localhost/sheaf
IMAGE_TAG         ?= $(VERSION)
IMAGES            ?= sheaf sheaf-operator sheaf-bench sheaf-archive
PLATFORMS         ?= linux/$(shell go env GOARCH)
SOURCE_DATE_EPOCH ?= $(shell git log -1 --format=%ct 2>/dev/null || echo 0)
REVISION          ?= $(shell git rev-parse HEAD 2>/dev/null)
IMAGE_ENV := IMAGES='$(IMAGES)' IMAGE_PREFIX='$(IMAGE_PREFIX)' IMAGE_TAG='$(IMAGE_TAG)' PLATFORMS='$(PLATFORMS)' VERSION='$(VERSION)' \
  REVISION='$(REVISION)' SOURCE_DATE_EPOCH='$(SOURCE_DATE_EPOCH)'

TOOLS := bin/tools
# Programs, images, tests, lint and chaos use the same variant of the build, so that they share compiled packages.
# Only the race detector needs cgo and another variant.
# In CI, hack/compiletime records the time of compilers. This does not change their output.
export GOFLAGS := -buildvcs=false -trimpath$(if $(SHEAF_COMPILE_TIMES), -toolexec=$(CURDIR)/bin/tools/compiletime)
export CGO_ENABLED := 0
unexport GOBIN
# Tests are linked without symbols for debuggers, which halves the time of linking. `make lint` vets the tests.
TESTFLAGS := -vet=off -ldflags '-s -w'

.PHONY: help
help: ## Show this help.
	@awk 'BEGIN {FS = ":.*## "} /^[a-zA-Z_-]+:.*## / {printf "  %-16s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

##@ Build and run

.PHONY: build build-run build-test
build: build-test ## Build the static binaries bin/sheaf, sheaf-bench, sheaf-operator, kubectl-sheaf and sheaf-archive, with their version.
	cd cmd/sheaf-archive && go build -ldflags '$(LDFLAGS)' -o ../../bin/ .

# These two targets build only what `make run` and `make test` need. With an empty build cache, the libraries for
# Kubernetes and for clouds take two thirds of the time of `make build`.
build-run:
	go build -ldflags '$(LDFLAGS)' -o bin/ ./cmd/sheaf ./bench/sheaf-bench
build-test:
	go build -ldflags '$(LDFLAGS)' -o bin/ ./cmd/... ./bench/sheaf-bench

.PHONY: image
image: ## Pack OCI archives bin/images/*.tar of static binaries, without a container engine.
	$(IMAGE_ENV) OUT=bin/images hack/image/build.sh

.PHONY: run
run: build-run ## Start a store, import a real tree, crash it, reload it, report (ARGS=--once: exit after the report).
	hack/run.sh $(ARGS)

##@ Check

# All tests run the programs that `make build-test` has built. If PKG is set, its packages build the programs that they
# need, so that tests without programs link none.
.PHONY: test
test: $(TOOLS)/gotestsum $(if $(PKG),,build-test) ## Run all tests except those of test-api and of soaks (FOCUS=name, PKG=./internal/storage/group/...).
	FOCUS='$(FOCUS)' TESTFLAGS="$(TESTFLAGS)" $(if $(PKG),,SHEAF_BIN=$(CURDIR)/bin) hack/test.sh $(or $(PKG),$(LONGEST))
	@echo 'Not among them: what needs a real API server (make test-api), and what is long or by chance (make soak).'

# Tests of archives in buckets use an S3 server that is built from its module, which takes two minutes of processor time
# once.
.PHONY: test-archive
test-archive: build $(TOOLS)/versitygw ## Test the module of sheaf-archive, with a real S3 server behind a proxy that injects faults (FOCUS=name).
	cd cmd/sheaf-archive && SHEAF_BIN=$(CURDIR)/bin/sheaf SHEAF_VERSITYGW=$(CURDIR)/$(TOOLS)/versitygw go test $(TESTFLAGS) $(if $(CI),-count=1) -timeout 10m $(if $(FOCUS),-run '$(FOCUS)') ./...

# API_PKG are the packages with tests that need a real API server, namely those whose tests import
# internal/test/kubetest. internal/test/scaletest has a target of its own. The other tests of these packages also run
# in `make test`.
API_PKG = $(shell grep -rl --include='*_test.go' 'sheaf/internal/test/kubetest"' api cmd client controllers internal | xargs dirname | grep -v '/scaletest$$' | sort -u | sed 's|^|./|')
# GOGC is higher than the default, because memory is plentiful and the API server would spend a fifth of its time on
# garbage collection.
TEST_API = GOGC=400 SHEAF_API_FOCUS='$(FOCUS)' FOCUS='$(if $(FOCUS),$(FOCUS)|TestControllers)' TESTFLAGS="$(TESTFLAGS)" SHEAF_BIN=$(CURDIR)/bin \
  hack/test.sh $(or $(PKG),$(API_PKG))
.PHONY: test-api test-api-all
test-api: $(TOOLS)/gotestsum build envtest-assets ## Run the tests that need a real API server (FOCUS=words of specs or a test's name, PKG=./controllers).
	SHEAF_API=required $(TEST_API)
test-api-all: $(TOOLS)/gotestsum build envtest-assets ## Run the tests of test-api, and also the operator's specs that `make test` runs on a fake.
	SHEAF_API=all $(TEST_API)

# RACE_NOT matches packages whose short tests start no goroutine, or whose goroutines take turns. RACE_SKIP matches
# walks over damage, crashes and histories, each case of which runs in one goroutine, and tests that need 5 to 43
# processor seconds under the detector to repeat what the other tests of their package do at once. The soaks log,
# raft and proc include them: RACE_SKIP='^$$'. By default, each program with the detector sleeps for a second before it
# exits.
RACE_NOT := /(internal/test/(floors|scaletest|chaos|powercut|sim|vfstest)|internal/storage/group/format)$$
RACE_WALKS := AtEveryOperation$$ ^TestRule[46]_ ^TestRule8_(Repair|Indexes|ACrash|TheVersion) ^TestTheWalksAgree ^TestInstallRefusesEveryBadByte$$ ^TestRepair \
  ^TestPruningKeepsTheWindowAndThePoints$$ ^TestALargeGroupIsRestored$$ ^TestTheReaderAnswersWhatWasWritten$$ \
  ^TestAPowerCutAtEachStepOfARestore$$ ^TestVerifyPassesWhatAPowerCutLeavesOfALog$$ ^TestRestartsLeaveNoFiles$$ \
  ^TestAbsurdNumbersOfAGroup$$ ^TestChangesReportEveryLatestState$$ ^TestSnapshotsOfThePastEqualTheModel$$ \
  ^TestHistoryAboveTheFloorEqualsTheModel$$ ^TestHintOfTheActiveSegment$$ ^TestStoreEqualsModelAfterPuts ^TestEachFlippedByteIsFound$$
RACE_LONG := ^TestExplore$$ ^TestDeletesBesideFailoversLoseNoPut$$ ^TestAViewMovesWithItsGroups$$ \
  ^TestEveryCopyAnswersForAView$$ ^TestTheOldestViewBreaks$$ ^TestTheLeadGoesToNoHangingDisk$$ \
  ^TestSnapshotsMoveTheirMetrics$$ ^TestEveryMemberHoldsWhatIsNotArchived$$ ^TestADomainIsLostAtEachStepOfAMigration$$ \
  ^TestAMoveFollowsItsTarget$$ ^TestAnArchiverFetchesAGroupAndItsBlobs$$ \
  ^TestAReaderThatDoesNotReadIsDisconnectedByTheGateway$$ ^TestPagesOf100000Groups$$
EMPTY :=
RACE_SKIP ?= $(subst $(EMPTY) $(EMPTY),|,$(strip $(RACE_WALKS) $(RACE_LONG)))
.PHONY: race
race: $(TOOLS)/gotestsum ## Run the short tests of the concurrent packages under the race detector, except those that measure.
	GOGC=400 GORACE=atexit_sleep_ms=0 CGO_ENABLED=1 $(TOOLS)/gotestsum --format pkgname --format-hide-empty-pkg --hide-summary=skipped -- -race -short -p 3 -vet=off -timeout 40m \
	  $(if $(CI),-count=1) $(if $(FOCUS),-run '$(FOCUS)') -skip '$(RACE_SKIP)$(if $(SKIP),|^($(SKIP))$$)' $(or $(PKG),./internal/shard ./internal/storage/group $$(hack/race-packages.sh | grep -vE '$(RACE_NOT)'))

# The clients in examples/ run in their languages against a store whose shards and gateway are killed, and against a
# server that answers according to a script.
CLIENTS ?= python node java grpcurl flight
CLIENT_python = SHEAF_PYTHON=$(CURDIR)/bin/python/bin/python
CLIENT_node = SHEAF_NODE_MODULES=$(CURDIR)/bin/clients/node/node_modules
CLIENT_java = SHEAF_JAVA=$(CURDIR)/bin/clients/java/target
CLIENT_grpcurl = SHEAF_GRPCURL=$(CURDIR)/$(TOOLS)/grpcurl
CLIENT_flight = SHEAF_FLIGHT_PYTHON=$(CURDIR)/bin/flight/bin/python
.PHONY: test-clients
test-clients: $(CLIENTS:%=client-%) ## Run the clients in examples/ against a store whose shards and gateway are killed (CLIENTS="python node").
	$(foreach client,$(CLIENTS),$(CLIENT_$(client))) go test $(TESTFLAGS) -count=1 -timeout 25m -run 'TestClients' -v ./cmd/sheaf

.PHONY: test-python
test-python: client-python ## Run only the Python client.
	$(CLIENT_python) go test $(TESTFLAGS) -count=1 -timeout 15m -run 'TestClients/python' -v ./cmd/sheaf

.PHONY: test-sheafdb
test-sheafdb: ## Build the wheel of python/, install it into an empty environment and test it against bin/sheaf (ARGS="-k loader").
	ARGS='$(ARGS)' hack/sheafdb/test.sh

.PHONY: client-python client-node client-java client-grpcurl client-flight
client-flight: # what is installed is not part of the programs in examples/: a reader of docs/flight.md needs pyarrow alone
	hack/clients/packages.sh python
	python3 -m venv bin/flight
	bin/flight/bin/pip install --quiet --disable-pip-version-check -r hack/clients/flight.txt
client-python:
	hack/clients/packages.sh python
	python3 -m venv bin/python
	bin/python/bin/pip install --quiet --disable-pip-version-check -r examples/python/requirements.txt
client-java:
	hack/clients/packages.sh java
	mkdir -p bin/clients/java && cp examples/java/pom.xml bin/clients/java/
	mvn -q -B -f bin/clients/java/pom.xml -Dprotos=$(CURDIR)/api process-classes
client-grpcurl: $(TOOLS)/grpcurl
	hack/clients/packages.sh grpcurl
client-node:
	hack/clients/packages.sh node
	mkdir -p bin/clients/node && cp examples/node/*.json bin/clients/node/
	npm ci --prefix bin/clients/node --ignore-scripts --no-audit --no-fund --loglevel=error

.PHONY: test-versions
test-versions: ## Run shards and gateways of this version and of an older one together (REF=commit; default: the newest tag).
	hack/test-versions.sh $(REF)

.PHONY: chaos
chaos: build ## Break real processes in network namespaces under load, as root (ARGS="-faults kill,cut"; internal/test/chaos/README.md).
	internal/test/chaos/packages.sh
	hack/kube/build.sh slowdisk
	SHEAF_CHAOS=required go test $(TESTFLAGS) -count=1 -timeout 3h -run TestChaos -v ./internal/test/chaos -binary $(CURDIR)/bin/sheaf $(ARGS)

.PHONY: chaos-short
chaos-short: ## Run chaos for a minute with a fixed seed: kills, partitions, stops and failing disks.
	$(MAKE) --no-print-directory chaos ARGS='-faults kill,cut,stop,disk-error -duration 1m -seed 1 $(ARGS)'

.PHONY: charts-test
charts-test: $(TOOLS)/helm $(TOOLS)/kubeconform $(TOOLS)/helm-unittest ## Lint and render the charts, check what they render and config/samples against schemas, run their unit tests.
	hack/charts/test.sh

.PHONY: check-image
check-image: ## Test the packer, build the images twice, and fail if they differ (COLD=1: compile everything twice).
	cd hack/image && go vet ./... && go test ./...
	$(IMAGE_ENV) hack/image/check.sh

# The search for calls takes minutes. It runs only if a vulnerable package of a required module is imported.
.PHONY: vulncheck
vulncheck: $(TOOLS)/govulncheck ## Fail if code here reaches a known vulnerability in a module; list those in Go itself.
	@db=$$(cd / && go mod download -json golang.org/x/vulndb@$(VULNDB_VERSION) | sed -n 's/^\t"Dir": "\(.*\)",$$/\1/p') && \
	  scan() { GOGC=400 $(TOOLS)/govulncheck -scan $$1 -format json -db "file://$$db/data/osv" ./cmd/... sheaf.dev/sheaf/client/... ./bench/sheaf-bench && \
	    GOGC=400 $(TOOLS)/govulncheck -C cmd/sheaf-archive -scan $$1 -format json -db "file://$$db/data/osv" ./...; } && \
	  { scan package | go run ./hack/vulncheck -imported || scan symbol | go run ./hack/vulncheck; }

# A part of the soak gets FOCUS, and PKG if the command line or the environment sets it, because PKG has a default in
# this Makefile.
SOAK_OF = FOCUS='$(FOCUS)' PKG='$(if $(filter command line environment,$(origin PKG)),$(PKG))'

.PHONY: soak
soak: ## Run all parts of the soak, one after another; reports are in bin/soak.
	@failed=; for part in log raft proc kube eco; do $(MAKE) --no-print-directory soak-$$part || failed+=" soak-$$part"; done; \
	  [ -z "$$failed" ] || { echo "failed:$$failed" >&2; exit 1; }

.PHONY: soak-log soak-raft soak-proc soak-kube soak-eco
soak-log: $(TOOLS)/gotestsum ## Soak the log and the disks below it: every crash, bit and cut, power cuts, fuzzing (FOCUS=name, PKG=./internal/storage/group).
	$(SOAK_OF) hack/soak.sh log
soak-raft: $(TOOLS)/gotestsum ## Soak replicas, shards and placement: random seeds of the simulation and of the exploration, every rule.
	$(SOAK_OF) hack/soak.sh raft
soak-proc: $(TOOLS)/gotestsum ## Soak processes, as root: chaos, kills, hard starts, floods, memory, small disks, stopped processes, noise in bubbles.
	$(SOAK_OF) hack/soak.sh proc
soak-kube: $(TOOLS)/gotestsum envtest-assets ## Soak the operator, as root: all of e2e, a thousand shards, each death and pair of edits.
	$(SOAK_OF) hack/soak.sh kube
soak-eco: $(TOOLS)/gotestsum ## Soak the surroundings: clients in other languages, layouts, peers, older versions, cold images.
	$(SOAK_OF) hack/soak.sh eco

.PHONY: soak-short
soak-short: ## Run three minutes of the soak of a small disk and little memory, with hanging readers and kills, as root (FOR=1h).
	SHEAF_SOAK_FOR=$(or $(FOR),3m) go test $(TESTFLAGS) -count=1 -timeout 3h -run 'TestSoak$$' -v ./cmd/sheaf

# MUTANTS are names of hack/mutants/NAME.diff. None means all.
.PHONY: mutants
mutants: ## Remove fixes one by one, and fail if a test does not notice (MUTANTS="name name", ONLY_CHANGED=1; hack/mutants/README.md).
	hack/mutants/run.sh $(MUTANTS)

.PHONY: fuzz
fuzz: ## Fuzz every decoder for FUZZTIME each.
	hack/fuzz.sh $(FUZZTIME)

.PHONY: bench
bench: build ## Measure against the limits of this machine (ARGS=--quick: small sizes).
	bin/sheaf-bench load $(ARGS)
	bin/sheaf-bench rpc $(ARGS)

.PHONY: bench-layouts
bench-layouts: build ## Compare files in folders, a composite file and group files on ext4, xfs and btrfs, at quick scale, as root; the report is in bin/bench-layouts (FS=all that you have, ARGS=--table=1).
	hack/bench-layouts.sh $(ARGS)

.PHONY: bench-readers
bench-readers: build ## Compare readers in Python with array_record, Lance, WebDataset, files, grpcio and bare Flight: 3 minutes (ARGS="--time 2s --bytes 200MB").
	hack/bench-readers.sh $(ARGS)

# The stores for the comparison are in a separate module, because the product must not depend on them, and because
# they take two minutes to compile.
.PHONY: bench-peers
bench-peers: build ## Compare with other stores at equal durability (ARGS="--scale full --dir DISK --out REPORT").
	hack/kube/build.sh etcd
	cd bench/peers && go build -trimpath -ldflags '$(LDFLAGS)' -o ../../bin/bench-peers .
	bin/bench-peers --sheaf bin/sheaf --etcd bin/kube/etcd $(ARGS)

.PHONY: bench-peers-test
bench-peers-test: $(TOOLS)/golangci-lint ## Lint and test the module of bench-peers.
	cd bench/peers && ../../$(TOOLS)/golangci-lint run --allow-parallel-runners ./... && go test ./...

.PHONY: lint
lint: $(TOOLS)/golangci-lint $(TOOLS)/buf bin/protodeps ## Lint Go, proto, shell and the subjects of new commits.
	$(TOOLS)/golangci-lint run --allow-parallel-runners ./...
	cd client && ../$(TOOLS)/golangci-lint run --allow-parallel-runners ./...
	cd cmd/sheaf-archive && ../../$(TOOLS)/golangci-lint run --allow-parallel-runners ./...
	$(TOOLS)/buf lint
	$(TOOLS)/buf breaking api --against api/baseline.binpb
	@for script in hack/*.sh hack/*/*.sh examples/*/*.sh hack/cluster/cluster .ci/run; do bash -n "$$script"; done
	hack/kube/build_test.sh
	hack/commit-subjects_test.sh
	hack/commit-subjects.sh
	LANES=none hack/mutants/run.sh
	@if command -v shellcheck >/dev/null; then shellcheck -x hack/cluster/cluster hack/cluster/*.sh hack/kube/*.sh; fi

##@ Generate

.PHONY: generate
generate: $(TOOLS)/buf $(TOOLS)/protoc-gen-go $(TOOLS)/protoc-gen-go-grpc bin/protodeps $(TOOLS)/controller-gen $(TOOLS)/crd-ref-docs ## Regenerate code, CRDs, RBAC and docs/reference.md.
	$(TOOLS)/buf generate
	$(TOOLS)/controller-gen object paths=./api/v1alpha1
	$(TOOLS)/controller-gen crd paths=./api/v1alpha1 output:crd:dir=config/crd/bases
	$(TOOLS)/controller-gen rbac:roleName=sheaf-operator paths=./controllers/... output:rbac:dir=config/rbac
	samples=(); for file in config/samples/*.yaml; do samples+=(--template-value="$$(basename "$$file" .yaml)=$$(cat "$$file")"); done; \
	  $(TOOLS)/crd-ref-docs --source-path=api/v1alpha1 --config=hack/crd-ref-docs/config.yaml --templates-dir=hack/crd-ref-docs/templates --renderer=markdown --output-path=docs/reference.md --log-level=ERROR "$${samples[@]}"
	go mod tidy
	cd client && go mod tidy
	cd cmd/sheaf-archive && go mod tidy
	cd bench/peers && go mod tidy

# GENERATED are the files that `make generate` writes.
GENERATED := api client config docs/reference.md charts go.mod go.sum cmd/sheaf-archive/go.mod cmd/sheaf-archive/go.sum bench/peers/go.mod bench/peers/go.sum

.PHONY: charts
charts: $(TOOLS)/helm-docs ## Write what the charts take from config/: CRDs, RBAC rules, schema; and their README.md.
	cd hack/charts && go run . sync ../..
	$(TOOLS)/helm-docs --chart-search-root charts --log-level warning

.PHONY: check-generate
check-generate: generate charts ## Regenerate, and fail if the tree differs from what is committed.
	@git diff --exit-code -- $(GENERATED) && ! git ls-files --others --exclude-standard -- $(GENERATED) | grep . || { echo "generated files differ: run 'make generate' and commit" >&2; exit 1; }

.PHONY: proto-baseline
proto-baseline: $(TOOLS)/buf bin/protodeps ## At a release: make the present contract the baseline that later contracts must not break.
	$(TOOLS)/buf build api -o api/baseline.binpb

bin/protodeps: hack/protodeps/main.go hack/protodeps/go.mod
	cd hack/protodeps && go run . ../../bin/protodeps
	@touch bin/protodeps

##@ Tools

.PHONY: tools
tools: $(TOOLS)/buf $(TOOLS)/protoc-gen-go $(TOOLS)/protoc-gen-go-grpc $(TOOLS)/golangci-lint $(TOOLS)/gotestsum $(TOOLS)/grpcurl ## Build all tools.

# A tool is rebuilt when its version changes, because the name of its stamp contains the version. `go run` keeps
# linked programs in the build cache, so a fresh clone only copies them; `go install` would link again.
define tool
$(TOOLS)/$(1): $(TOOLS)/.$(1)-$(3)
	@touch $$@
$(TOOLS)/.$(1)-$(3):
	@mkdir -p $(TOOLS) && rm -f $(TOOLS)/.$(1)-*
	hack/ticks.sh 'building $(TOOLS)/$(1)' go run -exec 'cp --remove-destination' $(2)@$(3) $(CURDIR)/$(TOOLS)/$(1)
	@touch $$@
endef
$(eval $(call tool,buf,github.com/bufbuild/buf/cmd/buf,$(BUF_VERSION)))
$(eval $(call tool,protoc-gen-go,google.golang.org/protobuf/cmd/protoc-gen-go,$(PROTOC_GEN_GO_VERSION)))
$(eval $(call tool,protoc-gen-go-grpc,google.golang.org/grpc/cmd/protoc-gen-go-grpc,$(PROTOC_GEN_GO_GRPC_VERSION)))
$(eval $(call tool,golangci-lint,github.com/golangci/golangci-lint/v2/cmd/golangci-lint,$(GOLANGCI_LINT_VERSION)))
$(eval $(call tool,gotestsum,gotest.tools/gotestsum,$(GOTESTSUM_VERSION)))
$(eval $(call tool,grpcurl,github.com/fullstorydev/grpcurl/cmd/grpcurl,$(GRPCURL_VERSION)))
$(eval $(call tool,govulncheck,golang.org/x/vuln/cmd/govulncheck,$(GOVULNCHECK_VERSION)))
$(eval $(call tool,helm,helm.sh/helm/v4/cmd/helm,$(HELM_VERSION)))
$(eval $(call tool,helm-docs,github.com/norwoodj/helm-docs/cmd/helm-docs,$(HELM_DOCS_VERSION)))
$(eval $(call tool,controller-gen,sigs.k8s.io/controller-tools/cmd/controller-gen,$(CONTROLLER_GEN_VERSION)))
$(eval $(call tool,crd-ref-docs,github.com/elastic/crd-ref-docs,$(CRD_REF_DOCS_VERSION)))
$(eval $(call tool,kwok,sigs.k8s.io/kwok/cmd/kwok,$(KWOK_VERSION)))
$(eval $(call tool,versitygw,github.com/versity/versitygw/cmd/versitygw,$(VERSITYGW_VERSION)))
$(eval $(call tool,kubeconform,github.com/yannh/kubeconform/cmd/kubeconform,$(KUBECONFORM_VERSION)))

##@ A real Kubernetes

# Kubernetes 1.36, etcd and CoreDNS are built from their Go modules, whose versions hack/kube/*/go.mod pins. The first
# build takes about 5 minutes.
.PHONY: envtest-assets
envtest-assets: ## Build kube-apiserver, etcd and kubectl into bin/kube, for envtest (KUBEBUILDER_ASSETS).
	hack/kube/build.sh etcd kubectl kube-apiserver

.PHONY: kube-tools
kube-tools: $(TOOLS)/helm ## Build everything that a cluster needs into bin/kube, and Helm.
	hack/kube/build.sh etcd kubectl kube-apiserver pause probe slowdisk coredns kube-proxy kube-scheduler kube-controller-manager kubelet

# NODES is the number of nodes of the test cluster.
NODES ?= 3
.PHONY: cluster-up
cluster-up: kube-tools ## Start a real Kubernetes of NODES nodes on this machine, as root (hack/cluster/README.md).
	hack/cluster/cluster up $(NODES)

.PHONY: cluster-down
cluster-down: ## Stop the cluster; fail if anything of it is left on the machine.
	hack/cluster/cluster down
	hack/cluster/cluster leftovers

.PHONY: cluster-smoke
cluster-smoke: kube-tools ## Start the cluster, check what the e2e suite relies on, stop it (KEEP=1: keep it running).
	hack/cluster/smoke.sh

# SHARDS is the number of shards of the store with which the operator is measured. The operator is designed for 1000,
# which take minutes.
SHARDS ?= 100
.PHONY: scale-test
scale-test: build envtest-assets $(TOOLS)/kwok ## Measure the operator with SHARDS shards and as many nodes, simulated by kwok (SHARDS=1000; internal/test/scaletest/README.md).
	hack/kube/build.sh kube-scheduler kube-controller-manager
	SHEAF_SCALE_SHARDS=$(SHARDS) go test $(TESTFLAGS) -count=1 -timeout 2h -run 'TestScale' -v ./internal/test/scaletest

# KUBECONFIG is the cluster to use. Without it, the suite starts a cluster. E2E_FOCUS holds words of the scenarios to
# run.
E2E_FOCUS ?=
.PHONY: e2e
e2e: build kube-tools $(TOOLS)/versitygw $(TOOLS)/grpcurl ## Run the e2e suite on the cluster of KUBECONFIG, or on one of its own (E2E_FOCUS=words, KEEP=1).
	NODES=$(NODES) FOCUS='$(E2E_FOCUS)' hack/e2e.sh

# A failed scenario is repeated once. If the repetition passes, the scenario is printed as FLAKE.
.PHONY: e2e-smoke
e2e-smoke: build kube-tools $(TOOLS)/versitygw $(TOOLS)/grpcurl ## Run the e2e scenarios with the label smoke (E2E_FOCUS as for e2e).
	NODES=$(NODES) FOCUS='$(E2E_FOCUS)' LABELS=smoke FLAKE_ATTEMPTS=2 hack/e2e.sh

##@ Clean

$(TOOLS)/helm-unittest: hack/helm-unittest/go.mod hack/helm-unittest/go.sum
	cd hack/helm-unittest && go build -o ../../$(TOOLS)/helm-unittest github.com/helm-unittest/helm-unittest/cmd/helm-unittest

.PHONY: clean
clean: ## Remove what was built.
	rm -rf bin
