//go:build e2e

package e2e

import (
	"cmp"
	"fmt"
	"io/fs"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
)

// These are the credentials of the bucket server.
const (
	bucketKey    = "e2e"
	bucketSecret = "no-secret-of-anybody"
)

// bucketHost is the address of this machine, as pods see it (hack/cluster/README.md).
const bucketHost = "198.18.255.2"

// bucketServer is an S3 server on this machine, outside of the cluster. It keeps its objects when it is killed.
type bucketServer struct {
	address string
	dir     string
	stop    func() // nil while the server does not run
}

// newBucketServer starts a server with the bucket "backups". The server ends with the scenario.
func newBucketServer() *bucketServer {
	GinkgoHelper()
	free, err := net.Listen("tcp", bucketHost+":0")
	Expect(err).NotTo(HaveOccurred(), "this machine needs the address %s, which the cluster gives it", bucketHost)
	b := &bucketServer{address: free.Addr().String(), dir: GinkgoT().TempDir()}
	Expect(free.Close()).To(Succeed())
	Expect(os.Mkdir(filepath.Join(b.dir, "backups"), 0o755)).To(Succeed())
	DeferCleanup(func() { b.kill() })
	b.start()
	return b
}

// start starts the server, and waits until it accepts connections.
func (b *bucketServer) start() {
	GinkgoHelper()
	cmd := exec.Command(tool("versitygw"), "--access", bucketKey, "--secret", bucketSecret, "--port", b.address, "--quiet",
		"posix", b.dir)
	cmd.Stdout, cmd.Stderr = GinkgoWriter, GinkgoWriter
	cmd.WaitDelay = 5 * time.Second
	Expect(cmd.Start()).To(Succeed(), "`make e2e` builds versitygw")
	b.stop = func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait() // Wait returns an error, because the process was killed
	}
	Eventually(func() error {
		conn, err := net.Dial("tcp", b.address)
		if err == nil {
			err = conn.Close()
		}
		return err
	}).WithTimeout(time.Minute).Should(Succeed())
}

// kill kills the server, if it runs.
func (b *bucketServer) kill() {
	if b.stop != nil {
		b.stop()
		b.stop = nil
	}
}

// url is the URL of the bucket, as pods use it.
func (b *bucketServer) url() string {
	return "s3://backups/e2e?region=us-east-1&use_path_style=true&endpoint=http://" + b.address
}

// applyBucketSecret writes the Secret "bucket" with the credentials of a bucket.
func (s *space) applyBucketSecret(secret string) {
	GinkgoHelper()
	apply(fmt.Sprintf(`
apiVersion: v1
kind: Secret
metadata: {name: bucket, namespace: %s}
stringData: {AWS_ACCESS_KEY_ID: %s, AWS_SECRET_ACCESS_KEY: %s}
`, s.name, bucketKey, secret))
}

// segments returns the files of all segments in the bucket.
func (b *bucketServer) segments() (files []string) {
	GinkgoHelper()
	Expect(filepath.WalkDir(b.dir, func(name string, e fs.DirEntry, err error) error {
		if err == nil && e.Type().IsRegular() && strings.Contains(name, "/seg/") {
			files = append(files, name)
		}
		return err
	})).To(Succeed())
	return files
}

// flip changes one bit of each of the files, or changes it back.
func flip(files []string) {
	GinkgoHelper()
	for _, name := range files {
		content, err := os.ReadFile(name)
		Expect(err).NotTo(HaveOccurred())
		content[len(content)/2] ^= 1
		Expect(os.WriteFile(name, content, 0o644)).To(Succeed())
	}
}

// python runs a program of the repository that uses nothing of Sheaf, and returns its standard output. SHEAF_PYTHON
// may name another Python, as for the tests of internal/archive.
func python(script string, args ...string) string {
	GinkgoHelper()
	return must(5*time.Minute, "", cmp.Or(os.Getenv("SHEAF_PYTHON"), "python3"),
		append([]string{filepath.Join(root, script)}, args...)...)
}

// listing returns the name of a file that lists all records in the newest state of the archive of a store, as a program
// sees them that was written from docs/archive.md alone. The folder keys has the archive's keys.
func (b *bucketServer) listing(store, keys string) string {
	GinkgoHelper()
	list := python("examples/archive/read_archive.py", filepath.Join(b.dir, "backups/e2e", store), "", keys)
	name := filepath.Join(GinkgoT().TempDir(), "listing")
	Expect(os.WriteFile(name, []byte(list), 0o600)).To(Succeed())
	return name
}

// compareOutside compares all records of the store q with a listing of an archive, by programs that are not part of
// Sheaf.
func (s *space) compareOutside(listing string) {
	GinkgoHelper()
	files, host := s.adminFiles("q"), "q-gateway."+s.name+".svc"
	fmt.Fprint(GinkgoWriter, python("e2e/testdata/compare.py", listing, tool("grpcurl"), "-cacert", files.CA, "-cert",
		files.Cert, "-key", files.Key, "-authority", host, s.gatewayAddress()))
}
