package floors

import (
	"strings"
	"testing"

	"sheaf.dev/sheaf/internal/test/pagetest"
)

// TestBadCommands checks that the check finds each sort of command that does not exist in this tree, and that it
// accepts a similar one that exists.
func TestBadCommands(t *testing.T) {
	all := sorts(t)
	for _, c := range []struct{ sort, command, wrong string }{
		{"make", "make run ARGS=--once", ""},
		{"make", "make runs", "no target runs"},
		{"make", "make build && make imag", "no target imag"},
		{"make", "make cluster-up NODES=3", ""},
		{"make", "make cluster-up SHARDS=3", "read SHARDS"}, // only another target reads this variable
		{"make", "KEEP=1 make e2e", ""},                     // a script that the target runs reads the variable
		{"make", "KEPT=1 make e2e", "read KEPT"},
		{"make", "make soak FOCUS=TestChaos", ""}, // the recipe of soak passes the variable to another make
		{"make", "make soak-$part FOCUS=a", "read FOCUS"},
		{"script", "TIMES=10 hack/mutants/run.sh NAME", ""},
		{"script", "TIME=10 hack/mutants/run.sh NAME", "reads TIME"},
		{"go", "go test ./internal/test/sim -run TestSeeds -v", ""},
		{"go", "go test ./internal/simulation -run TestSeeds", "no package ./internal/simulation"},
		{"go", "go test ./internal/test/sim -run TestSeedlings", "no test is called TestSeedlings"},
		{"go", "go test ./internal/test/sim -bench TestSeeds", "no test is called TestSeeds"},
		{"go", "go test ./internal/test/sim -run 'TestEveryRuleIsNeeded/a_lease_ends'", ""},
		{"go", "go test ./internal/test/sim -run 'TestEveryRuleIsNeeded/a_lease_flies'", "no part of TestEveryRuleIsNeeded"},
		{"go", "cd internal/test/chaos && go test . -run TestChaos -faults kill", ""},
		{"go", "cd internal/test/chaos && go test . -run TestChaos -fault kill", "flag -fault"},
		{"go", "go run ./hack/vulncheck", ""},
		{"go", "go run ./hack/vulnchecks", "no package ./hack/vulnchecks"},
		{"go", "go get sheaf.dev/sheaf/clients", "no package sheaf.dev/sheaf/clients"},
		{"path", "hack/cluster/cluster up 3", ""},
		{"path", "sudo ./hack/cluster/start.sh", "no hack/cluster/start.sh"},
		{"path", ".ci/runs", "no .ci/runs"},
		{"path", "cp examples/node/*.json x", ""},
		{"path", "cp hack/clients/node/*.yaml x", "no hack/clients/node/*.yaml"},
		{"path", "cd internal && cat cmd/sheaf/main.go", "no internal/cmd/sheaf/main.go"},
		{"helm", "helm upgrade --install a charts/sheaf-operator --set 'image.tag=v1,watchNamespaces={a,b}'", ""},
		{"helm", "helm upgrade --install a charts/sheaf-operator --set image.tags=v1", "no value image.tags"},
		{"helm", "helm install a charts/sheaf-store --set pools.ssd.shards=3", ""},
		{"helm", "helm install a charts/sheaf-store --set=pools.ssd.shard=3", "no value pools.ssd.shard"},
		{"helm", "helm install a --set image.tag=v1", "names no folder of a chart"},
		{"grpcurl", "grpcurl -plaintext a:1 sheaf.record.v1.RecordService/Get", ""},
		{"grpcurl", "grpcurl -plaintext a:1 sheaf.record.v1.RecordService/Got", "no sheaf.record.v1.RecordService/Got"},
		{"grpcurl", "grpcurl -plaintext a:1 describe sheaf.record.v2.RecordService", "no sheaf.record.v2.RecordService"},
		{"kubectl", "kubectl -n prod get recordstores,shpool,pods -o wide", ""},
		{"kubectl", "kubectl -n prod get recordstores,shardpol", "kind shardpol"},
		{"kubectl", "kubectl wait --for=condition=Ready recordshop/a", "kind recordshop"},
		{"kubectl", "kubectl obtain pods", "no verb obtain"},
		{"kubectl", "kubectl -n prod sheaf status", "before the name of a plugin"},
		{"kubectl", "kubectl explain shardpool.spec.storage.size", ""},
		{"kubectl", "kubectl explain shardpool.spec.storage.sise", "no field spec.storage.sise"},
		{"kubectl", `kubectl patch shardpool a --type=merge -p '{"spec":{"remove":[2]}}'`, ""},
		{"kubectl", `kubectl patch shardpool a --type=merge -p '{"spec":{"removed":[2]}}'`, "no field spec.removed"},
		{"kubectl", `kubectl patch diskset a --type=json -p '[{"op":"add","path":"/spec/disks/-","value":{"node":"b"}}]'`,
			""},
		{"kubectl", `kubectl patch diskset a --type=json -p '[{"op":"add","path":"/spec/disk/-","value":{"node":"b"}}]'`,
			"no field spec.disk"},
		{"kubectl", `kubectl patch diskset a --type=json -p '[{"op":"add","path":"/spec/disks/0","value":{"host":"b"}}]'`,
			"no field spec.disks.host"},
		{"kubectl", "kubectl get recordstore a -o jsonpath='{.status.storeUid}'", "no field status.storeUid"},
		{"label", "kubectl annotate pv a sheaf.dev/wipe-", ""},
		{"label", "kubectl annotate pv a sheaf.dev/erase=true", "annotation sheaf.dev/erase"},
		{"label", "kubectl get pods -l app=a,sheaf.dev/shop=b", "annotation sheaf.dev/shop"},
	} {
		commands, bad := pagetest.Commands("```sh\n" + c.command + "\n```\n")
		if len(bad) > 0 {
			t.Errorf("%s: %v", c.command, bad)
		}
		applied, wrong := false, ""
		for _, command := range commands {
			for _, s := range all {
				applies, err := s.check(command)
				applied = applied || applies && s.name == c.sort
				if err != nil {
					wrong = s.name + ": " + err.Error()
				}
			}
		}
		switch {
		case !applied:
			t.Errorf("%s: it is not seen as of the sort %q", c.command, c.sort)
		case c.wrong == "" && wrong != "":
			t.Errorf("%s: %s, it is said", c.command, wrong)
		case c.wrong != "" && (!strings.HasPrefix(wrong, c.sort+": ") || !strings.Contains(wrong, c.wrong)):
			t.Errorf("%s: said is %q, not %q", c.command, wrong, c.wrong)
		}
	}
}
