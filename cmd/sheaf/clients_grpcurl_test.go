package main

import (
	"os"
	"path/filepath"
	"testing"
)

// The variable SHEAF_GRPCURL contains the path of the program grpcurl.
var grpcurlClient = clientProgram{
	language: "grpcurl", variable: "SHEAF_GRPCURL", file: "grpcurl/sheaf_client.sh", driver: "driver.sh",
	command: func(_ *testing.T, grpcurl, dir string) []string {
		return []string{"env", "PATH=" + filepath.Dir(grpcurl) + ":" + os.Getenv("PATH"), "bash",
			filepath.Join(dir, "driver.sh")}
	},
}
