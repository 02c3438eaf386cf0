//go:build e2e

package e2e

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"

	"sheaf.dev/sheaf/internal/test/pagetest"
)

// suiteCommands matches those commands on the page that this test must not run, because the suite has run them already,
// or runs them when it ends.
var suiteCommands = regexp.MustCompile(`^make |^export KUBECONFIG=|cluster load `)

// sessionOf returns a script that runs the commands one after another and exits at the first failure. Before each
// command it prints the command's number.
func sessionOf(steps []pagetest.Step) string {
	var b strings.Builder
	b.WriteString("exec 2>&1\nset -o pipefail\n")
	for n, step := range steps {
		command := step.Command
		if behind, ok := strings.CutSuffix(command, "&"); ok && slices.ContainsFunc(step.Prints, isWord) {
			// The page runs this command in the background, so the shell continues before the command prints anything.
			// Therefore the script waits until the command prints something or exits.
			command = fmt.Sprintf("said=$(mktemp)\n%s >\"$said\" &\n"+
				"until [ -s \"$said\" ] || ! kill -0 $!; do sleep 0.1; done; cat \"$said\"", behind)
		}
		fmt.Fprintf(&b, "echo '@@ %d'\n%s\n", n, command)
		fmt.Fprintf(&b, "[ $? = 0 ] || { echo '@@ the command of line %d failed'; exit 1; }\n", step.Line)
	}
	return b.String()
}

func isWord(line string) bool { return strings.TrimSpace(line) != "" }

// answersOf splits the output of a script from sessionOf, by the numbers of the commands.
func answersOf(printed string) map[int]string {
	answers := map[int]string{}
	for _, part := range strings.Split("\n"+printed, "\n@@ ")[1:] {
		number, answer, _ := strings.Cut(part, "\n")
		if n, err := strconv.Atoi(number); err == nil {
			answers[n] = answer
		}
	}
	return answers
}

// The test runs the commands of docs/tutorial-kubernetes.md in order in one shell, as a reader does. The last commands
// of the page remove the operator and the kinds.
var _ = Describe("the tutorial", Serial, func() {
	It("works as its page says, from an operator that is installed to kinds that are removed", func() {
		text, err := os.ReadFile(filepath.Join(root, "docs/tutorial-kubernetes.md"))
		Expect(err).NotTo(HaveOccurred())
		files := pagetest.Files(string(text))
		Expect(files).NotTo(BeEmpty())
		Expect(os.RemoveAll(filepath.Join(root, ".cache/tutorial"))).To(Succeed())
		for name, content := range files {
			Expect(os.MkdirAll(filepath.Dir(filepath.Join(root, name)), 0o750)).To(Succeed())
			Expect(os.WriteFile(filepath.Join(root, name), []byte(content), 0o600)).To(Succeed())
		}
		var steps []pagetest.Step
		images := strings.NewReplacer(
			"--set sheaf.image.tag=v1", "--set sheaf.image.repository="+repository(image)+" --set sheaf.image.tag="+tag(image),
			"--set image.tag=v1", "--set image.repository="+repository(operatorImage)+" --set image.tag="+tag(operatorImage))
		for _, step := range pagetest.Transcript(string(text)) {
			if !suiteCommands.MatchString(step.Command) {
				step.Command = images.Replace(step.Command)
				steps = append(steps, step)
			}
		}
		Expect(len(steps)).To(BeNumerically(">", 40), "the page has few commands left")

		s := &space{name: "tutorial", sets: []string{"tutorial"}}
		DeferCleanup(func() { // runs last; if the page ended early, some of the disks do not exist
			for _, disk := range strings.Fields("n1/data n1/etcd n1/spare n2/data n2/etcd n3/data n3/etcd") {
				node, name, _ := strings.Cut(disk, "/")
				_ = try(time.Minute, "", "cluster", "disk", "rm", node, name)
			}
		})
		DeferCleanup(s.remove)
		DeferCleanup(func() { installOperator() }) // runs before s.remove, because a deleted DiskSet needs an operator

		script := filepath.Join(GinkgoT().TempDir(), "tutorial.sh")
		Expect(os.WriteFile(script, []byte(sessionOf(steps)), 0o600)).To(Succeed())
		// The page sets a PATH. Use the programs in it.
		path := "PATH="
		for _, dir := range []string{"bin", "bin/kube", "bin/tools"} {
			path += filepath.Join(root, dir) + ":"
		}
		path += os.Getenv("PATH")
		o := once(20*time.Minute, "", "env", path, "bash", script)
		GinkgoWriter.Println(o)
		Expect(o.err).NotTo(HaveOccurred(), "%v", o)
		answers := answersOf(o.out)
		for n, step := range steps {
			Expect(answers).To(HaveKey(n), step.Command)
			Expect(step.Check(answers[n])).To(Succeed())
		}
		Expect(o.out).NotTo(MatchRegexp(`(?m)^sheaf: `), "a call failed")
	})
})
