// Command probe runs in the pods of the cluster's smoke test.
//
//	probe serve FILE    appends a line to FILE, syncs it, and serves a description of itself on :8080
//	probe get URL       prints the response of the URL
package main

import (
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"time"
)

// describe returns lines about the file system that holds the file, and about the process and its confinement.
func describe(file string) (string, error) {
	lines, err := os.ReadFile(file)
	if err != nil {
		return "", err
	}
	mounts, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		return "", err
	}
	status, err := os.ReadFile("/proc/self/status")
	if err != nil {
		return "", err
	}
	host, err := os.Hostname()
	if err != nil {
		return "", err
	}
	out := fmt.Sprintf("host=%s uid=%d starts=%d", host, os.Getuid(), strings.Count(string(lines), "\n"))
	for line := range strings.Lines(string(mounts)) {
		if left, right, found := strings.Cut(line, " - "); found && strings.Fields(left)[4] == filepath.Dir(file) {
			out += " fs=" + strings.Fields(right)[0]
		}
	}
	for line := range strings.Lines(string(status)) {
		if mode, found := strings.CutPrefix(line, "Seccomp:"); found {
			out += " seccomp=" + strings.TrimSpace(mode)
		}
	}
	return out + "\n", nil
}

func serve(file string) error {
	f, err := os.OpenFile(file, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	if _, err := fmt.Fprintln(f, time.Now().UTC().Format(time.RFC3339)); err != nil {
		return err
	}
	if err := f.Sync(); err != nil {
		return err
	}
	fmt.Println("serving on :8080")
	server := &http.Server{Addr: ":8080", ReadHeaderTimeout: 10 * time.Second,
		Handler: http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			text, err := describe(file)
			if err != nil {
				http.Error(w, err.Error(), http.StatusInternalServerError)
				return
			}
			_, _ = io.WriteString(w, text)
		})}
	return server.ListenAndServe()
}

func get(url string) error {
	response, err := (&http.Client{Timeout: 10 * time.Second}).Get(url)
	if err != nil {
		return err
	}
	defer func() { _ = response.Body.Close() }()
	if _, err := io.Copy(os.Stdout, response.Body); err != nil {
		return err
	}
	if response.StatusCode != http.StatusOK {
		return fmt.Errorf("%s answered %s", url, response.Status)
	}
	return nil
}

func main() {
	err := fmt.Errorf("usage: probe serve FILE | probe get URL")
	if len(os.Args) == 3 && os.Args[1] == "serve" {
		err = serve(os.Args[2])
	} else if len(os.Args) == 3 && os.Args[1] == "get" {
		err = get(os.Args[2])
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "probe:", err)
		os.Exit(1)
	}
}
