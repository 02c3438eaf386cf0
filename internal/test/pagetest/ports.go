package pagetest

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
)

// Port is a process's socket in the table "Ports" of docs/security.md.
type Port struct {
	Process string // command that runs the process
	At      string // flag with the address, or a description if no flag sets the address
	TLS     bool   // whether the port accepts only TLS; otherwise it accepts only plaintext HTTP
}

// Ports reads the table "Ports" of docs/security.md below a root.
func Ports(root string) (ports []Port, err error) {
	page, err := os.ReadFile(filepath.Join(root, "docs", "security.md"))
	if err != nil {
		return nil, err
	}
	_, section, _ := strings.Cut(string(page), "\n## Ports\n")
	section, _, _ = strings.Cut(section, "\n## ")
	for line := range strings.Lines(section) {
		cells := strings.Split(line, "|")
		if len(cells) < 6 || !strings.Contains(cells[1], "`") {
			continue
		}
		at := strings.TrimSpace(cells[2])
		if flag, ok := strings.CutPrefix(at, "`--"); ok {
			flag, _, _ = strings.Cut(flag, "`")
			at = "--" + flag
		}
		for process := range strings.SplitSeq(cells[1], ",") {
			ports = append(ports, Port{Process: strings.Trim(process, " `"), At: at, TLS: strings.Contains(cells[4], "TLS")})
		}
	}
	if len(ports) < 17 {
		return nil, fmt.Errorf("the table of ports has %d rows: %v", len(ports), ports)
	}
	return ports, nil
}
