package main

import (
	"path/filepath"
	"testing"
)

// The variable SHEAF_PYTHON contains the path of a Python interpreter that has the packages in
// examples/python/requirements.txt.
var pythonClient = clientProgram{
	language: "python", variable: "SHEAF_PYTHON", file: "python/sheaf_client.py", driver: "driver.py", calls: "all",
	command: func(t *testing.T, python, dir string) []string {
		output(t, filepath.Join(examples, "python", "generate.sh"), python, "../../api", filepath.Join(dir, "gen"))
		return []string{python, filepath.Join(dir, "driver.py")}
	},
}
