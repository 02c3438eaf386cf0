package main

import (
	"os"
	"path/filepath"
	"testing"
)

// The variable SHEAF_NODE_MODULES contains the path of a node_modules folder with the packages of examples/node. The
// test uses the node in the PATH.
var nodeClient = clientProgram{
	language: "node", variable: "SHEAF_NODE_MODULES", file: "node/sheaf_client.cjs", driver: "driver.cjs", calls: "all",
	command: func(t *testing.T, modules, dir string) []string {
		api, err := filepath.Abs("../../api")
		must(t, err)
		must(t, os.Symlink(api, filepath.Join(dir, "api")))
		must(t, os.Symlink(modules, filepath.Join(dir, "node_modules")))
		return []string{"node", filepath.Join(dir, "driver.cjs")}
	},
}
