// Command charts generates the parts of the Helm charts that have their source elsewhere, so that nothing is
// maintained in two places:
//
//	charts sync ROOT                 from config/crd and config/rbac: the operator chart's CRD templates and rules,
//	                                 and the schema of the store chart's values, which are the specs of our kinds
//	charts schemas ROOT SWAGGER DIR  JSON schemas for kubeconform: of our kinds, and of Kubernetes' from its swagger.json
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
