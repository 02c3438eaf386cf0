package main

import (
	"path/filepath"
	"testing"
)

// The variable SHEAF_JAVA contains the path of the target folder that Maven builds from examples/java/pom.xml. The test
// uses the javac and the java in the PATH.
var javaClient = clientProgram{
	language: "java", variable: "SHEAF_JAVA", file: "java/src/main/java/SheafClient.java", driver: "Driver.java",
	calls: "all",
	command: func(t *testing.T, target, dir string) []string {
		classes := filepath.Join(target, "classes") + ":" + filepath.Join(target, "lib", "*")
		sources := []string{filepath.Join(dir, "SheafClient.java"), filepath.Join(dir, "Driver.java")}
		output(t, "javac", append([]string{"--release", "17", "-cp", classes, "-d", dir}, sources...)...)
		return []string{"java", "-cp", dir + ":" + classes, "Driver"}
	},
}
