// Command charts generates those parts of the Helm charts that have their source in other files, so that nothing has
// to be maintained in two places.
//
//	charts sync ROOT                 writes the operator chart's CRD templates and rules, and the schema of the
//	                                 store chart's values, from config/crd and config/rbac
//	charts schemas ROOT SWAGGER DIR  writes JSON schemas for kubeconform, of Sheaf's kinds and of the kinds in
//	                                 Kubernetes' swagger.json
package main

import (
	"errors"
	"fmt"
	"os"
)

func main() {
	if err := run(os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "charts:", err)
		os.Exit(1)
	}
}

func run(args []string) error {
	switch {
	case len(args) == 2 && args[0] == "sync":
		return sync(args[1])
	case len(args) == 4 && args[0] == "schemas":
		return writeSchemas(args[1], args[2], args[3])
	}
	return errors.New("usage: charts sync ROOT | charts schemas ROOT SWAGGER DIR")
}

// sync writes every generated file in the charts.
func sync(root string) error {
	crds, err := readCRDs(root)
	if err != nil {
		return err
	}
	if err := writeCRDTemplates(root, crds); err != nil {
		return err
	}
	if err := writeRules(root); err != nil {
		return err
	}
	if err := copyFence(root); err != nil {
		return err
	}
	return writeValuesSchema(root, crds)
}
