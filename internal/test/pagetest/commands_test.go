package pagetest

import (
	"fmt"
	"strings"
	"testing"

	"github.com/spf13/cobra"
)

// ticks replaces the characters that stand for backticks in the tables below.
var ticks = strings.NewReplacer("'''", "```", "´", "`")

func TestCommands(t *testing.T) {
	for name, c := range map[string]struct {
		text string
		// want lists the expected commands. Each has the form LINE [DIR:] WORD|WORD... If the command sets a variable, VAR=
		// comes before the words. A ? after LINE means that the command is only mentioned.
		want string
	}{
		"a block of a shell":          {"a\n'''sh\nmake a B=1\n'''\n", "3 make|a|B=1"},
		"a block of nothing said":     {"'''\nmake a\n'''\n", "2 make|a"},
		"an indented block":           {"Say:\n\n    make a   # b\n    make c\n\nmake d\n", "3 make|a; 4 make|c"},
		"a paragraph of a list":       {"- a\n\n    make a or ´make b´\n", "3? make|b"},
		"a block of another language": {"'''yaml\nmake a\n'''\n'''python\nmake b\n'''\n", ""},
		"two blocks":                  {"'''\nmake a\n'''\nb\n'''\nmake b\n'''\n", "2 make|a; 6 make|b"},
		"a block that never ends":     {"'''\nmake a", "2 make|a"},
		"prompts": {
			"'''\n$ sheaf get 4 | wc -c\n20000\nmake nothing\n   $ make a\n'''\n",
			"2 sheaf|get|4; 2 wc|-c; 5 make|a",
		},
		"a prompt that is continued": {"'''console\n$ make a \\\n  b\nc\n'''\n", "2 make|a|b"},
		"a line that is continued": {
			"'''sh\nhelm upgrade a \\\n  --set b=c \\\n  --wait\nmake a\n'''\n",
			"2 helm|upgrade|a|--set|b=c|--wait; 5 make|a",
		},
		"a comment": {"'''sh\n# make a\nmake b # make c\n'''\n", "3 make|b"},
		"pipes and lists": {
			"'''sh\nmake a && make b || make c; make d & echo | make e\n'''\n",
			"2 make|a; 2 make|b; 2 make|c; 2 make|d; 2 echo; 2 make|e",
		},
		"variables before a command": {"'''sh\nA=1 B=$x make c\n'''\n", "2 A= B= make|c"},
		"sudo, time and env": {
			"'''sh\nsudo make a\ntime sudo A=1 make b\nenv B=2 make c\n'''\n",
			"2 make|a; 3 A= make|b; 4 B= make|c",
		},
		"quotes": {"'''sh\nmake 'a b' \"c $d\" e\\ f\n'''\n", "2 make|a b|c $d|e f"},
		"expansions": {
			"'''sh\nmake ${a:-b} $(sheaf get 1)\n'''\n",
			"2 make|${a:-b}|$(sheaf get 1); 2 sheaf|get|1",
		},
		"a loop":     {"'''\nfor a in b; do\n  make $a\ndone\n'''\n", "3 make|$a"},
		"a function": {"'''sh\nf() {\n  make a\n}\nf 1\n'''\n", "3 make|a; 5 f|1"},
		"placeholders": {
			"'''sh\nsheaf get <record id> >out\nsheaf verify DIR ...\n'''\n",
			"2 sheaf|get|RECORD_ID; 3? sheaf|verify|DIR",
		},
		"a here-string": {"'''sh\nmake a <<<\"$b\" < <(make c)\n'''\n", "2 make|a; 2 make|c"},
		"a synopsis": {
			"´sheaf watch GROUP [--from CURSOR] [-w]´",
			"1? sheaf|watch|GROUP|--from|CURSOR|-w",
		},
		"a folder for a line": {
			"'''sh\ncd a && make b\nmake c\ncd d\nmake e\n'''\n",
			"2 cd|a; 2 a: make|b; 3 make|c; 4 cd|d; 5 d: make|e",
		},
		"a program in a pod": {
			"'''sh\nkubectl exec a -- /sheaf etcd members\n'''\n",
			"2 kubectl|exec|a|--|/sheaf|etcd|members; 2 /sheaf|etcd|members",
		},
		"sentences": {
			"Run ´make a´, or\n´sheaf\nget 1´: no ´make´, ´a b´ or ´A=1´, but ´A=1 make b´.",
			"1? make|a; 2? sheaf|get|1; 3? A= make|b",
		},
		"two backticks": {
			"´´make a ´sheaf get 1´ ´´ and ´make c´",
			"1? make|a|`sheaf get 1`; 1? sheaf|get|1; 1? make|c",
		},
		"a prompt in a sentence": {"´$ make a´", "1? make|a"},
		"a script in a sentence": {"´hack/a.sh´, ´.ci/run´ and ´hack/a.go´", "1? hack/a.sh; 1? .ci/run"},
		"a table": {
			"| a | ´sheaf scan \\| wc´ |\n| ´make b´ |\n",
			"1? sheaf|scan; 1? wc; 2? make|b",
		},
		"output between commands": {"'''\nmake a\nit's (a mess\nmake b\n'''\n", "2 make|a; 4 make|b"},
		"output that swallows":    {"'''\nmake a\nit's\nmake b\nit's\n'''\n", "2 make|a; 4 make|b"},
	} {
		commands, bad := Commands(ticks.Replace(c.text))
		if len(bad) > 0 {
			t.Errorf("%s: %v", name, bad)
		}
		got := make([]string, len(commands))
		for i, c := range commands {
			got[i] = fmt.Sprint(c.Line)
			if c.Mentioned {
				got[i] += "?"
			}
			if c.Dir != "" {
				got[i] += " " + c.Dir + ":"
			}
			for _, e := range c.Env {
				got[i] += " " + e + "="
			}
			got[i] += " " + strings.Join(c.Words, "|")
		}
		if joined := strings.Join(got, "; "); joined != c.want {
			t.Errorf("%s:\n got %s\nwant %s", name, joined, c.want)
		}
	}
}

// A line that begins like a command, and a block that is marked as shell, must be valid shell code.
func TestInvalidShellIsReported(t *testing.T) {
	for text, want := range map[string]string{
		"'''\nmake a (b)\n'''\n":           "line 2",
		"'''sh\na\necho 'b\n'''\n":         "line 2",
		"a\n´make a; )´\n":                 "line 2",
		"'''\nit's a (picture)\n--->\n'''": "",
	} {
		_, bad := Commands(ticks.Replace(text))
		if got := strings.Join(bad, "; "); !strings.HasPrefix(got, want) || (want == "") != (got == "") {
			t.Errorf("%q: %q", text, got)
		}
	}
}

func TestArgsOfAProgram(t *testing.T) {
	for _, c := range []struct{ command, program, want string }{
		{"sheaf get 1", "sheaf", "get 1"},
		{"bin/sheaf get", "sheaf", "get"},
		{"/sheaf get", "sheaf", "get"},
		{"../../../bin/sheaf get", "sheaf", "get"},
		{"cmd/sheaf get", "sheaf", "no"},
		{"sheaf-bench rpc", "sheaf", "no"},
		{"kubectl sheaf status -n a", "kubectl sheaf", "status -n a"},
		{"kubectl get sheaf", "kubectl sheaf", "no"},
		{"kubectl", "kubectl sheaf", "no"},
	} {
		got := "no"
		if args, ok := (Command{Words: strings.Fields(c.command)}).Args(c.program); ok {
			got = strings.Join(args, " ")
		}
		if got != c.want {
			t.Errorf("%s as %s: %s", c.command, c.program, got)
		}
	}
}

func program() *cobra.Command {
	root := &cobra.Command{Use: "p", Version: "1"}
	root.PersistentFlags().StringP("output", "o", "", "")
	run := func(*cobra.Command, []string) { panic("it runs") }
	get := &cobra.Command{Use: "get ID", Args: cobra.ExactArgs(1), Run: run, Aliases: []string{"g"}}
	get.Flags().Int("offset", 0, "")
	get.Flags().Bool("all", false, "")
	put := &cobra.Command{Use: "put ID", Args: cobra.ExactArgs(1), Run: run}
	put.Flags().String("to", "", "")
	_ = put.MarkFlagRequired("to")
	group := &cobra.Command{Use: "group", Args: cobra.NoArgs, Run: run}
	group.AddCommand(&cobra.Command{Use: "list", Args: cobra.NoArgs, Run: run})
	root.AddCommand(get, put, group)
	return root
}

func TestAccepts(t *testing.T) {
	for _, c := range []struct {
		args      string
		mentioned bool
		wrong     string
	}{
		{"get 1 --offset 2 -o json", false, ""},
		{"-o json g 1 --all=false", false, ""},
		{"get ID --offset N", false, ""},
		{"get ID --offset=$n", false, ""},
		{"get ID --offset n", false, "invalid argument"},
		{"get 1 --all=maybe", false, "invalid"},
		{"got 1", false, `unknown command "got"`},
		{"get 1 --from 2", false, "unknown flag: --from"},
		{"get 1 -x", false, "unknown shorthand flag"},
		{"get 1 --offset", false, "needs an argument"},
		{"get", false, "accepts 1 arg"},
		{"get", true, ""},
		{"get 1 2", true, "accepts 1 arg"},
		{"get --from", true, "unknown flag"},
		{"put 1", false, `required flag(s) "to"`},
		{"put 1", true, ""},
		{"group list", false, ""},
		{"group", true, ""},
		{"group lists", true, `unknown command "lists"`},
		{"group list 1", true, "unknown command"},
		{"help get", false, ""},
		{"get --help", false, ""},
		{"--version", false, ""},
		{"completion bash", false, ""},
	} {
		switch err := Accepts(program(), strings.Fields(c.args), c.mentioned); {
		case c.wrong == "" && err != nil:
			t.Errorf("p %s: %v", c.args, err)
		case c.wrong != "" && (err == nil || !strings.Contains(err.Error(), c.wrong)):
			t.Errorf("p %s: %v, not %s", c.args, err, c.wrong)
		}
	}
}

// TestExamplesAreChecked checks that an example in a program's help is reported if the program would not accept it.
func TestExamplesAreChecked(t *testing.T) {
	root := program()
	root.Commands()[0].Example = "  p get 1\n  echo a | p get 1 --all"
	if n, bad := examples(root, "p", program); n != 2 || len(bad) != 0 {
		t.Errorf("%d, %v", n, bad)
	}
	root.Commands()[0].Example += "\n  p get 1 --alle   # a comment"
	if n, bad := examples(root, "p", program); n != 3 || len(bad) != 1 {
		t.Errorf("%d, %v", n, bad)
	}
}
