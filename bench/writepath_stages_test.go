package bench

import (
	"os"
	"strings"
	"testing"
)

func TestAStackBelongsToItsInnermostStage(t *testing.T) {
	for _, c := range []struct {
		want  string
		stack []string // innermost first
	}{
		{"frame", []string{"runtime.memmove", sheaf + "storage/group/segio.AppendFrame", sheaf + "consensus/replica.write"}},
		{"log", []string{sheaf + "storage/group.(*Log).Append", sheaf + "consensus/replica.(*round).write"}},
		{"queue", []string{sheaf + "consensus/replica/writes.(*Queue).Add", sheaf + "shard/serve.(*Server).Put"}},
		{"allocate", []string{"runtime.(*mcache).nextFree", "runtime.mallocgc", shared + "call/message.Codec.Unmarshal"}},
		{"collect garbage", []string{"runtime.scanobject", "runtime.gcDrain", "runtime.gcAssistAlloc", "runtime.mallocgc"}},
		{otherStage, []string{"main.main"}},
		{otherStage, nil},
	} {
		if got := stageOf(c.stack); got != c.want {
			t.Errorf("%q: %s, not %s", c.stack, got, c.want)
		}
	}
}

// The test finds stages that name a package that no longer exists. Otherwise a renamed package would silently belong
// to no stage.
func TestStagesNamePackagesThatExist(t *testing.T) {
	for _, s := range stages {
		for _, beginning := range s.functions {
			name, ours := strings.CutPrefix(beginning, "sheaf.dev/sheaf/")
			name, _, _ = strings.Cut(name, ".")
			if _, err := os.Stat("../" + name); ours && err != nil {
				t.Errorf("stage %s: %v", s.name, err)
			}
		}
	}
}
