// Command alerts-watch evaluates the rules in a file after every scrape. Its standard input has one line of JSON for
// each scrape. The line maps the name of each target to the target's response in Prometheus' text format. For each
// scrape, the command prints one line of JSON. That line maps the name of each alert to the label sets for which the
// alert is pending or firing. Each scrape counts as one minute after the previous one (alerts.Watch).
package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"

	"sheaf.dev/sheaf/hack/alerts"
)

func main() {
	if len(os.Args) != 2 {
		fmt.Fprintln(os.Stderr, "usage: alerts-watch RULES.yaml")
		os.Exit(2)
	}
	if err := run(os.Args[1], os.Stdin, os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, "alerts-watch:", err)
		os.Exit(1)
	}
}

func run(file string, in io.Reader, out io.Writer) error {
	watch, err := alerts.NewWatch(file)
	if err != nil {
		return err
	}
	scrapes, answers := json.NewDecoder(in), json.NewEncoder(out)
	for {
		var targets map[string]string
		if err := scrapes.Decode(&targets); errors.Is(err, io.EOF) {
			return nil
		} else if err != nil {
			return fmt.Errorf("a scrape is no line of JSON: %w", err)
		}
		found, err := watch.Scrape(targets)
		if err != nil {
			return err
		}
		if err := answers.Encode(found); err != nil {
			return fmt.Errorf("answer: %w", err)
		}
	}
}
