package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// SHEAF_PYTHON is a Python with the packages of hack/python/requirements.txt.
var pythonClient = clientProgram{
	language: "python", variable: "SHEAF_PYTHON", first: "# sheaf_client.py:", driver: "driver.py", calls: "all",
	command: func(t *testing.T, python, dir string) []string {
		// As the page says.
		gen := filepath.Join(dir, "gen")
		must(t, os.Mkdir(gen, 0o700))
		where := output(t, python, "-c", "import google.rpc as g; print(list(g.__path__)[0])")
		site := filepath.Dir(filepath.Dir(strings.TrimSpace(where)))
		output(t, python, append([]string{
			"-m", "grpc_tools.protoc", "-I", "../../api", "-I", site, "--python_out=" + gen, "--grpc_python_out=" + gen,
		}, recordProtos(t)...)...)
		return []string{python, filepath.Join(dir, "driver.py")}
	},
}
