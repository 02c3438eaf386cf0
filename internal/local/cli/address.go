package cli

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"strconv"

	"github.com/spf13/pflag"
)

// addressFlag is an address, host:port, on the command line. An empty host means all addresses of the machine. An empty
// value means no address.
type addressFlag struct {
	value    *string
	optional bool // whether the value may be empty
	loopback bool // whether only this machine may be able to connect
	host     bool // whether the host must not be empty
}

// AddressVar adds a flag for an address to listen on.
func AddressVar(flags *pflag.FlagSet, value *string, name, normal, usage string) {
	*value = normal
	flags.Var(&addressFlag{value: value}, name, usage)
}

// HTTPVar adds the flag for the address of metrics and health, which may be empty.
func HTTPVar(flags *pflag.FlagSet, value *string, normal, usage string) {
	*value = normal
	flags.Var(&addressFlag{value: value, optional: true}, "http", usage)
}

// RecordsHTTPVar adds the flag for the address of records over HTTP. If it is empty, they are not served.
func RecordsHTTPVar(flags *pflag.FlagSet, value *string) {
	flags.Var(&addressFlag{value: value, optional: true}, "records-http",
		"address of reads of records over HTTP, with the TLS, tokens and grants of --listen: docs/http.md; empty: none")
}

// PprofVar adds the flag for the address of profiles. If it is empty, profiles are not served.
func PprofVar(flags *pflag.FlagSet, value *string) {
	flags.Var(&addressFlag{value: value, optional: true, loopback: true}, "pprof",
		"address of /debug/pprof/, for go tool pprof: of the loopback device, as 127.0.0.1:6060; empty: none")
}

// AdvertiseVar adds a flag for the address under which other processes reach this one. The default is the listen
// address.
func AdvertiseVar(flags *pflag.FlagSet, value *string, name, usage string) {
	flags.Var(&addressFlag{value: value, optional: true, host: true}, name, usage)
}

// String implements pflag.Value.
func (a *addressFlag) String() string {
	if a.value == nil {
		return ""
	}
	return *a.value
}

// Type implements pflag.Value.
func (a *addressFlag) Type() string { return "string" }

// Set implements pflag.Value.
func (a *addressFlag) Set(s string) error {
	if s == "" && a.optional {
		*a.value = s
		return nil
	}
	host, port, err := net.SplitHostPort(s)
	if err != nil {
		return fmt.Errorf("must be HOST:PORT: %w", err)
	}
	if host == "" && a.host {
		return errors.New("must be HOST:PORT, with a host that others can reach")
	}
	if ip, err := netip.ParseAddr(host); a.loopback && (err != nil || !ip.IsLoopback()) {
		return errors.New("must be a loopback address, 127.0.0.1:PORT or [::1]:PORT: there is no password")
	}
	if _, err := strconv.ParseUint(port, 10, 16); err != nil {
		return fmt.Errorf("port %q: must be a number up to 65535", port)
	}
	*a.value = s
	return nil
}
