package loopback

import (
	"encoding/hex"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"slices"
	"strconv"
	"strings"
)

// Listener is a socket on which a process accepts connections or datagrams.
type Listener struct {
	Network string // tcp, udp or unix
	Address string // host:port, or the path of a unix socket; the path begins with @ if the socket has no file
}

// Listeners returns the sockets on which a process of this machine listens, in order, as the kernel reports them. If
// the process belongs to another user, Listeners needs root.
func Listeners(pid int) ([]Listener, error) {
	of := fmt.Sprintf("/proc/%d/", pid)
	own, err := sockets(of + "fd")
	if err != nil {
		return nil, err
	}
	var out []Listener
	for _, table := range []string{"tcp", "tcp6", "udp", "udp6", "unix"} {
		rows, err := os.ReadFile(of + "net/" + table)
		if errors.Is(err, os.ErrNotExist) {
			continue // a kernel without IPv6
		}
		if err != nil {
			return nil, err
		}
		for row := range strings.Lines(string(rows)) {
			l, inode := listener(table, strings.Fields(row))
			if l.Network != "" && own[inode] {
				out = append(out, l)
			}
		}
	}
	slices.SortFunc(out, func(a, b Listener) int {
		return strings.Compare(a.Network+a.Address, b.Network+b.Address)
	})
	return out, nil
}

// sockets returns the inodes of the sockets that a process has open.
func sockets(dir string) (map[string]bool, error) {
	files, err := os.ReadDir(dir)
	if err != nil {
		return nil, err
	}
	out := map[string]bool{}
	for _, f := range files {
		to, err := os.Readlink(dir + "/" + f.Name())
		if err != nil {
			continue // the socket was closed in the meantime
		}
		if inode, ok := strings.CutPrefix(to, "socket:["); ok {
			out[strings.TrimSuffix(inode, "]")] = true
		}
	}
	return out, nil
}

// listener parses a row of a table in /proc/PID/net. It returns the socket and its inode, or the zero Listener if the
// socket does not listen.
func listener(table string, row []string) (l Listener, inode string) {
	if table == "unix" {
		const accepts = "00010000"
		if len(row) < 7 || row[3] != accepts {
			return Listener{}, ""
		}
		address := "(unnamed)"
		if len(row) > 7 {
			address = row[7]
		}
		return Listener{Network: "unix", Address: address}, row[6]
	}
	network := strings.TrimSuffix(table, "6")
	// These are the codes in the kernel's tables for the state of a socket that has no peer: a listening socket of TCP,
	// and an unconnected socket of UDP.
	takes := map[string]string{"tcp": "0A", "udp": "07"}[network]
	if len(row) < 10 || row[3] != takes {
		return Listener{}, ""
	}
	host, port, _ := strings.Cut(row[1], ":")
	number, err := strconv.ParseUint(port, 16, 16)
	if err != nil {
		return Listener{}, "" // the first line is a heading
	}
	return Listener{Network: network, Address: net.JoinHostPort(ip(host), strconv.FormatUint(number, 10))}, row[9]
}

// ip decodes an address, which consists of 32-bit words in the byte order of the machine. It assumes that the machine
// is little-endian.
func ip(text string) string {
	b, err := hex.DecodeString(text)
	if err != nil {
		return text
	}
	for word := range slices.Chunk(b, 4) {
		slices.Reverse(word)
	}
	address, ok := netip.AddrFromSlice(b)
	if !ok {
		return text
	}
	return address.Unmap().String()
}
