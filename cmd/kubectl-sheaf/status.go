package main

import (
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"sheaf.dev/sheaf/api/v1alpha1"
	"sheaf.dev/sheaf/internal/local/cli"
	"sheaf.dev/sheaf/internal/status/finding"
)

// livePatience is the default time limit for connecting to a gateway and getting its report.
const livePatience = 10 * time.Second

func (a *app) statusCommand() *cobra.Command {
	var (
		width    int
		output   string
		ask      bool
		patience time.Duration
	)
	cmd := &cobra.Command{
		Use:   "status [STORE]",
		Short: "Show a store on one screen: topology, copies, moves, etcd, disks, and what is wrong",
		Long: `Shows shards by failure domain, copies by domain, moves with the time left, etcd, gateways and
disks, and then what is wrong, the worst first, with what was seen and the command to type next.
Without STORE it shows all stores of the namespace. Who leads and what moves is asked of a gateway,
over a forwarded port; where that cannot be had, the rest is shown. Exit code 1 where there is a
problem; warnings and notes leave it at 0.`,
		Example: `  kubectl sheaf status -n prod
  kubectl sheaf status quotes -n prod -o json | jq .findings`,
		Args: cobra.MaximumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			if output != "" && output != "json" {
				return fmt.Errorf("--output %q: must be json, or absent", output)
			}
			if patience < 0 {
				return fmt.Errorf("--live-timeout %v: must not be negative", patience)
			}
			stores, err := a.stores(cmd.Context(), args, sourcePatience)
			if err != nil {
				return err
			}
			var all []finding.Finding
			for n := range stores {
				s, err := a.gather(cmd.Context(), &stores[n], sourcePatience)
				if err != nil {
					return err
				}
				if s.Live.Err = errNotAsked; ask {
					s.Live = a.askGateway(cmd.Context(), &stores[n], patience)
				}
				found := s.findings()
				all = append(all, found...)
				if n > 0 && output == "" {
					fmt.Fprintln(a.out)
				}
				if err := a.printStatus(s, found, output, a.width(width)); err != nil {
					return err
				}
			}
			if finding.Count(all, finding.Problem) > 0 {
				return failf("%s", finding.Words(all))
			}
			return nil
		},
	}
	cmd.Flags().IntVar(&width, "width", 0, "columns of the screen; 0: those of the terminal, else 140")
	cmd.Flags().StringVarP(&output, "output", "o", "", "json; absent: for people")
	cmd.Flags().BoolVar(&ask, "live", true,
		"ask a gateway who leads and what moves, which takes the right to create pods/portforward")
	cmd.Flags().DurationVar(&patience, "live-timeout", livePatience, "how long that may take; 0: no limit")
	return cmd
}

var errNotAsked = fmt.Errorf("--live is off")

// statusDocument is the output of -o json for one store.
type statusDocument struct {
	Namespace string                     `json:"namespace"`
	Name      string                     `json:"name"`
	Status    v1alpha1.RecordStoreStatus `json:"status"`
	Findings  []finding.Finding          `json:"findings"`
	// NotRead lists the objects that could not be read.
	NotRead []string `json:"notRead,omitempty"`
	// Live says why there is no report from a gateway. It is empty if there is one.
	Live string `json:"live,omitempty"`
}

func (a *app) printStatus(s *snapshot, found []finding.Finding, output string, width int) error {
	if output == "" {
		fmt.Fprint(a.out, s.show(width, found))
		return nil
	}
	document := statusDocument{Namespace: s.Store.Namespace, Name: s.Store.Name, Status: s.Store.Status, Findings: found,
		NotRead: s.Missing}
	if s.Live.Err != nil {
		document.Live = s.Live.Err.Error()
	}
	if err := cli.EncodeJSON(a.out, document); err != nil {
		return failf("write the status: %w", err)
	}
	return nil
}
