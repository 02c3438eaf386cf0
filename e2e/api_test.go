//go:build e2e

package e2e

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"strings"
	"sync"
	"time"

	. "github.com/onsi/ginkgo/v2"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
)

// Scenarios send several thousand requests to the API server. The function get sends them from this process. A
// kubectl process for each request would take a tenth of a second of CPU time from the cluster, which runs on the
// same machine.

// groupOf maps the plural names of the kinds that get can read to their API groups.
var groupOf = map[string]string{
	"namespaces": "api/v1", "pods": "api/v1", "secrets": "api/v1", "persistentvolumeclaims": "api/v1",
	"statefulsets": "apis/apps/v1", "deployments": "apis/apps/v1",
	"leases": "apis/coordination.k8s.io/v1", "certificates": "apis/cert-manager.io/v1",
	"recordstores": "apis/sheaf.dev/v1alpha1", "recordarchives": "apis/sheaf.dev/v1alpha1",
	"recordbackups": "apis/sheaf.dev/v1alpha1",
	"shardpools":    "apis/sheaf.dev/v1alpha1", "shards": "apis/sheaf.dev/v1alpha1", "disksets": "apis/sheaf.dev/v1alpha1",
}

// apiServer returns a client for the cluster's API server, and the server's address.
var apiServer = sync.OnceValues(func() (*http.Client, string) {
	config, err := clientcmd.BuildConfigFromFlags("", os.Getenv("KUBECONFIG"))
	if err != nil {
		panic(err)
	}
	config.Timeout = 30 * time.Second
	c, err := rest.HTTPClientFor(config)
	if err != nil {
		panic(err)
	}
	return c, strings.TrimSuffix(config.Host, "/")
})

// get reads an object or a list of objects. It takes the arguments of `kubectl get`: a kind, a name, -n, -l. Its error
// can be passed to Eventually. Like the function try, get retries an unanswered request for up to a minute.
func get(into any, args ...string) error {
	path, err := pathOf(args)
	if err != nil {
		return err
	}
	for began := time.Now(); ; time.Sleep(time.Second) {
		text, answered, err := read(path)
		if err == nil {
			return json.Unmarshal(text, into)
		}
		if answered || time.Since(began) > time.Minute {
			return err
		}
		fmt.Fprintln(GinkgoWriter, "not answered:", err)
	}
}

// pathOf returns the API path for these arguments.
func pathOf(args []string) (string, error) {
	var words []string
	options := map[string]string{}
	for n := 0; n < len(args); n++ {
		if strings.HasPrefix(args[n], "-") && n+1 < len(args) {
			options[args[n]] = args[n+1]
			n++
			continue
		}
		words = append(words, args[n])
	}
	kind, _, _ := strings.Cut(words[0], ".")
	kind = strings.TrimSuffix(kind, "s") + "s"
	group := groupOf[kind]
	if group == "" || len(options) > 2 {
		return "", fmt.Errorf("get does not know how to ask for %q", args)
	}
	path := "/" + group
	if namespace := options["-n"]; namespace != "" {
		path += "/namespaces/" + namespace
	}
	path = strings.Join(append([]string{path, kind}, words[1:]...), "/")
	if selector := options["-l"]; selector != "" {
		path += "?labelSelector=" + url.QueryEscape(selector)
	}
	return path, nil
}

// read returns the API server's response for a path. answered is false if the API server, or one of its backends, is
// too busy.
func read(path string) (text []byte, answered bool, err error) {
	caller, host := apiServer()
	answer, err := caller.Get(host + path) //nolint:noctx // the client bounds it
	if err != nil {
		return nil, false, err
	}
	defer answer.Body.Close()
	if text, err = io.ReadAll(answer.Body); err != nil {
		return nil, false, fmt.Errorf("GET %s: %w", path, err)
	}
	if answer.StatusCode != http.StatusOK {
		asked := answer.StatusCode != http.StatusTooManyRequests && answer.StatusCode < http.StatusInternalServerError
		return nil, asked, fmt.Errorf("GET %s: %s: %s", path, answer.Status, text)
	}
	return text, true, nil
}
