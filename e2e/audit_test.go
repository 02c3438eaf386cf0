//go:build e2e

package e2e

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"sheaf.dev/sheaf/client"
)

// auditLine is a line of the audit log in the log file of a container on its node. Log collectors read these files.
type auditLine struct {
	stream                           string
	Server, Kind, Caller, Verb, Code string
	IDs                              []string
}

// auditLines reads the containers' logs on a node. It returns the lines with a field "kind", which only lines of the
// audit log have.
func (s *space) auditLines(node string) (lines []auditLine) {
	GinkgoHelper()
	text := cluster("exec", node, "sh", "-c", fmt.Sprintf("cat /var/log/pods/%s_*/*/*.log 2>/dev/null || true", s.name))
	for logged := range strings.Lines(text) {
		fields := strings.SplitN(logged, " ", 4) // timestamp, stream, F (full line) or P (part of a line), and text
		var line auditLine
		if len(fields) == 4 && json.Unmarshal([]byte(fields[3]), &line) == nil && line.Kind != "" {
			line.stream = fields[1]
			lines = append(lines, line)
		}
	}
	return lines
}

// checkAuditLog puts a record as the administrator, and tries to read it as a caller named reader, which has no grant.
// The store q has audit mode Writes. Its gateway has to write the put and the refused get to standard output. A shard
// has to write the put to standard output. Standard error must have no lines of the audit log.
func (s *space) checkAuditLog(nodes ...string) {
	GinkgoHelper()
	const id = 4711
	_, err := s.goClient().Put(context.Background(), client.Key{ID: id}, []byte("audited"), nil)
	Expect(err).NotTo(HaveOccurred())
	_, err = s.dial(s.filesOf("q-client-reader-tls")).Get(context.Background(), client.Key{ID: id}, nil)
	Expect(status.Code(err)).To(Equal(codes.PermissionDenied), "%v", err)
	Eventually(func(g Gomega) {
		var lines []auditLine
		for _, node := range nodes {
			lines = append(lines, s.auditLines(node)...)
		}
		for _, line := range lines {
			g.Expect(line.stream).To(Equal("stdout"), "%+v", line)
		}
		written := []string{fmt.Sprint(id)}
		for _, want := range []auditLine{
			{Server: "gateway", Kind: "refusal", Verb: "get", Caller: "client/reader", Code: codes.PermissionDenied.String()},
			{Server: "gateway", Kind: "write", Verb: "put", Caller: "admin/admin", Code: codes.OK.String(), IDs: written},
			{Server: "shard", Kind: "write", Verb: "put", Caller: "admin/admin", Code: codes.OK.String(), IDs: written},
		} {
			g.Expect(slices.ContainsFunc(lines, func(l auditLine) bool {
				return strings.HasPrefix(l.Server, want.Server+" ") && l.Kind == want.Kind && l.Verb == want.Verb &&
					l.Caller == want.Caller && l.Code == want.Code && slices.Equal(l.IDs, want.IDs)
			})).To(BeTrue(), "no line %+v in %+v", want, lines)
		}
	}).WithTimeout(time.Minute).Should(Succeed())
}
