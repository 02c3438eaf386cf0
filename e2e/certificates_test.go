//go:build e2e

package e2e

import (
	"path/filepath"
	"sync"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"

	"sheaf.dev/sheaf/client"
	"sheaf.dev/sheaf/internal/security/certs"
)

// secretEvery is the interval at which filesOf updates its files from their Secret, as a kubelet would do.
const secretEvery = 5 * time.Second

// adminFiles returns the certificate files of a store's administrator (see filesOf).
func (s *space) adminFiles(store string) client.TLSFiles {
	GinkgoHelper()
	return s.filesOf(store + "-admin-tls")
}

// filesOf writes the certificate files of a Secret to this machine, as they would be mounted in a pod. The files follow
// the Secret until the scenario ends.
func (s *space) filesOf(secret string) client.TLSFiles {
	GinkgoHelper()
	dir := GinkgoT().TempDir()
	install := func() error {
		content, err := s.secret(secret)
		if err != nil {
			return err
		}
		return certs.Install(dir, content)
	}
	Eventually(install).WithTimeout(time.Minute).Should(Succeed())
	stop := make(chan struct{})
	var follows sync.WaitGroup
	follows.Go(func() {
		turns := time.NewTicker(secretEvery)
		defer turns.Stop()
		for {
			select {
			case <-turns.C:
				if err := install(); err != nil {
					GinkgoWriter.Println("follow the Secret:", err) // the next update will try again
				}
			case <-stop:
				return
			}
		}
	})
	DeferCleanup(func() {
		close(stop)
		follows.Wait()
	})
	at := func(file string) string { return filepath.Join(dir, file) }
	return client.TLSFiles{CA: at(certs.BundleFile), Cert: at(certs.CertificateFile), Key: at(certs.KeyFile)}
}

// secret reads the data of a Secret.
func (s *space) secret(name string) (map[string][]byte, error) {
	var object struct{ Data map[string][]byte }
	err := get(&object, "secret", name, "-n", s.name)
	return object.Data, err
}
