// Package kubetest runs a real API server with its etcd for tests. A guard process kills both servers and removes
// their folder, no matter whether the test ends normally, by a panic, by a timeout or by kill -9.
package kubetest

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/envtest"
)

// startTimeout is long, because CI machines build and test many things at the same time. On an idle machine, a start
// takes a few seconds.
const startTimeout = 5 * time.Minute

// Server is a running API server.
type Server struct {
	// Config is an administrator's configuration.
	Config *rest.Config
	// Kubeconfig is a file for the same administrator.
	Kubeconfig string

	assets string
	dir    string
	env    *envtest.Environment
	guard  *exec.Cmd
	pipe   io.Closer
}

// Options change the settings of an API server. The zero value means the settings that Start uses.
type Options struct {
	// Flags holds flags of the API server, by name without dashes. Each flag is added, or replaces a value that this
	// package sets.
	Flags map[string]string
	// Files are written to the server's folder, by name. Flags may refer to them, because $DIR in the value of a flag
	// stands for that folder.
	Files map[string]string
}

// Start starts an API server with the CRDs in a folder, and waits until they are served. The caller must call Stop.
func Start(crds string) (*Server, error) { return StartWith(crds, Options{}) }

// StartWith is like Start, with Options.
func StartWith(crds string, options Options) (*Server, error) {
	assets, err := findAssets()
	if err != nil {
		return nil, err
	}
	dir, err := os.MkdirTemp("", "sheaf-kubetest-")
	if err != nil {
		return nil, fmt.Errorf("kubetest: %w", err)
	}
	s := &Server{assets: assets, dir: dir, Kubeconfig: filepath.Join(dir, "kubeconfig")}
	if s.guard, s.pipe, err = startGuard(dir); err != nil {
		return nil, errors.Join(err, os.RemoveAll(dir))
	}
	if err := s.start(crds, options); err != nil {
		return nil, errors.Join(err, s.Stop())
	}
	return s, nil
}

func (s *Server) start(crds string, options Options) error {
	for _, name := range []string{"etcd", "apiserver"} {
		if err := os.Mkdir(filepath.Join(s.dir, name), 0o700); err != nil {
			return fmt.Errorf("kubetest: %w", err)
		}
	}
	for name, content := range options.Files {
		if err := os.WriteFile(filepath.Join(s.dir, name), []byte(content), 0o600); err != nil {
			return fmt.Errorf("kubetest: %w", err)
		}
	}
	logName := filepath.Join(s.dir, "apiserver.log")
	log, err := os.Create(logName)
	if err != nil {
		return fmt.Errorf("kubetest: %w", err)
	}
	defer log.Close() //nolint:errcheck // the server has its own handle of it

	// Both servers have the name of their folder on their command lines, so that the guard can find them.
	api := &envtest.APIServer{CertDir: filepath.Join(s.dir, "apiserver"), Out: log, Err: log}
	api.Configure().
		Set("enable-priority-and-fairness", "false").
		Set("endpoint-reconciler-type", "none").
		Set("profiling", "false").
		// Some distributions enable this plugin. It requires additional rights of clients that set owner references.
		Set("enable-admission-plugins", "OwnerReferencesPermissionEnforcement").
		// Without the watch cache, lists come directly from etcd. After a write to another kind, a list from the cache would
		// wait up to 100 ms until etcd confirms that the cache is complete.
		Set("watch-cache", "false")
	for name, value := range options.Flags {
		api.Configure().Set(name, strings.ReplaceAll(value, "$DIR", s.dir))
	}
	s.env = &envtest.Environment{
		BinaryAssetsDirectory:    s.assets,
		CRDDirectoryPaths:        []string{crds},
		CRDInstallOptions:        envtest.CRDInstallOptions{MaxTime: startTimeout},
		ErrorIfCRDPathMissing:    true,
		ControlPlaneStartTimeout: startTimeout,
		ControlPlaneStopTimeout:  startTimeout,
	}
	s.env.ControlPlane.APIServer = api
	s.env.ControlPlane.Etcd = &envtest.Etcd{DataDir: filepath.Join(s.dir, "etcd")}
	if s.Config, err = s.env.Start(); err != nil {
		return fmt.Errorf("kubetest: the API server of %s does not start: %w\n%s", s.assets, err, tail(logName))
	}
	return os.WriteFile(s.Kubeconfig, s.env.KubeConfig, 0o600)
}

// Dir returns the server's folder. A process with this folder on its command line is killed together with the servers,
// no matter how the test ends.
func (s *Server) Dir() string { return s.dir }

// Program returns the path of a Kubernetes program that was built next to the API server.
func (s *Server) Program(name string) string { return filepath.Join(s.assets, name) }

// User writes a kubeconfig for a new user to the server's folder. The user has no rights except those that the caller
// grants with role bindings.
func (s *Server) User(name string) (kubeconfig string, err error) {
	user, err := s.env.AddUser(envtest.User{Name: name}, nil)
	if err != nil {
		return "", fmt.Errorf("kubetest: make user %s: %w", name, err)
	}
	content, err := user.KubeConfig()
	if err != nil {
		return "", fmt.Errorf("kubetest: make user %s: %w", name, err)
	}
	kubeconfig = filepath.Join(s.dir, name+".kubeconfig")
	if err := os.WriteFile(kubeconfig, content, 0o600); err != nil {
		return "", fmt.Errorf("kubetest: %w", err)
	}
	return kubeconfig, nil
}

// Stop immediately kills the servers, discards their data, and removes their folder.
func (s *Server) Stop() error {
	if err := s.pipe.Close(); err != nil {
		return fmt.Errorf("kubetest: %w", err)
	}
	if err := s.guard.Wait(); err != nil {
		return fmt.Errorf("kubetest: the guard of %s: %w", s.dir, err)
	}
	return nil
}

// Kubectl runs kubectl as the administrator. It returns the combined standard output and standard error.
func (s *Server) Kubectl(ctx context.Context, args ...string) (string, error) {
	args = append([]string{"--kubeconfig", s.Kubeconfig, "--cache-dir", filepath.Join(s.dir, "cache")}, args...)
	out, err := exec.CommandContext(ctx, filepath.Join(s.assets, "kubectl"), args...).CombinedOutput()
	if err != nil {
		return string(out), fmt.Errorf("kubetest: kubectl %v: %w: %s", args[4:], err, out)
	}
	return string(out), nil
}

// findAssets returns KUBEBUILDER_ASSETS, or bin/kube of this module.
func findAssets() (string, error) {
	dir := os.Getenv("KUBEBUILDER_ASSETS")
	if dir == "" {
		root, err := os.Getwd()
		if err != nil {
			return "", fmt.Errorf("kubetest: %w", err)
		}
		for {
			if _, err := os.Stat(filepath.Join(root, "go.mod")); err == nil {
				break
			}
			up := filepath.Dir(root)
			if up == root {
				return "", errors.New("kubetest: no go.mod above the working folder: run the test by go test")
			}
			root = up
		}
		dir = filepath.Join(root, "bin", "kube")
	}
	for _, name := range []string{"kube-apiserver", "etcd", "kubectl"} {
		if _, err := os.Stat(filepath.Join(dir, name)); err != nil {
			return "", fmt.Errorf(
				"kubetest: no %s: run `make envtest-assets`, or set KUBEBUILDER_ASSETS to a folder with kube-apiserver, etcd and "+
					"kubectl: %w", name, err)
		}
	}
	return dir, nil
}

// tail returns the end of a log.
func tail(name string) string {
	const most = 4 << 10
	text, err := os.ReadFile(name)
	if err != nil {
		return err.Error()
	}
	return string(text[max(0, len(text)-most):])
}

// startGuard runs this program as a folder's guard. See init.
func startGuard(dir string) (*exec.Cmd, io.Closer, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, nil, fmt.Errorf("kubetest: %w", err)
	}
	guard := exec.Command(self) //nolint:noctx // the guard has to outlive every context
	guard.Env = append(os.Environ(), guardVariable+"="+dir)
	guard.SysProcAttr = &syscall.SysProcAttr{Setpgid: true} // otherwise Ctrl-C at a terminal would also kill the guard
	pipe, err := guard.StdinPipe()
	if err != nil {
		return nil, nil, fmt.Errorf("kubetest: %w", err)
	}
	if err := guard.Start(); err != nil {
		return nil, nil, fmt.Errorf("kubetest: %w", err)
	}
	return guard, pipe, nil
}
