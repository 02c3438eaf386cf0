// Package dev runs a whole store in one process: embedded etcd, shards, planner and gateway. It consists of the same
// parts as the real processes, and adds only the folder with their data.
package dev

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"sheaf.dev/sheaf/internal/base/telemetry"
	"sheaf.dev/sheaf/internal/placement"
	"sheaf.dev/sheaf/internal/security/access/guard"
	"sheaf.dev/sheaf/internal/shard"
	"sheaf.dev/sheaf/internal/storage/vfs"
)

// Config configures a dev store. Dir is required.
type Config struct {
	Dir    string         // created if it does not exist
	Shards int            // 0 means as many as in the previous run, or 3 in a new folder
	Copies int            // copies of each group; 0 means the folder's setting, or 1 in a new folder
	Groups int            // groups of Hash routing; 0 means the folder's setting, or 16 in a new folder
	Mode   placement.Mode // empty means the folder's setting, or Hash in a new folder

	Listen string // host:port of the gateway; port 0 chooses a free port
	HTTP   string // host:port of the web page, metrics, health and status; empty means none
	// RecordsHTTP is the host:port of records over HTTP; empty means none. It has the certificates and the mode of Listen.
	RecordsHTTP string
	// TLS makes the gateway and the shards accept only mutual TLS. The authority and the certificates, including the
	// callers' certificate, are in the folder tls.
	TLS bool

	// Restore makes a new store from an archive. It is nil for a store that begins empty. The folder must be new.
	Restore *Restore

	// Shard is the configuration of each shard. Start sets its name, folder, address, placement and telemetry.
	Shard shard.Config

	Version string
	Traces  *telemetry.Traces // if nil, no traces are sent
	Logger  *slog.Logger      // if nil, nothing is logged
	// Progress, if not nil, is called repeatedly while Start waits. Status.NotYet has the reason for the wait.
	Progress func(Status)

	seams seams
}

// seams are hooks for tests of this package. The zero value changes nothing.
type seams struct {
	audit *guard.Audit  // the audit log of gateway and shards
	look  time.Duration // interval of the certificate checks; 0 means the default of the processes

	// These functions replace parts of the store in tests that keep the store in memory. If a function is nil, the
	// store uses its own part.
	etcd     func() (*clientv3.Client, error)
	disk     func(shard string) vfs.FS
	listener func(ctx context.Context, address string) (net.Listener, error) // opens the listeners of gateway and shards
	dial     func(ctx context.Context, address string) (net.Conn, error)     // opens the connections to shards
}

const (
	groupsDefault = 16
	shardsMax     = 256
)

func (c Config) routing() placement.Routing {
	if c.Mode == placement.Named {
		return placement.Routing{Mode: placement.Named}
	}
	return placement.Routing{Mode: placement.Hash, Groups: cmp.Or(c.Groups, groupsDefault)}
}

// Validate returns an error that names every invalid field by its flag.
func (c Config) Validate() error {
	var errs []error
	bad := func(format string, args ...any) { errs = append(errs, fmt.Errorf(format, args...)) }
	if c.Shards < 0 || c.Shards > shardsMax {
		bad("--shards %d: must be 1 to %d", c.Shards, shardsMax)
	}
	switch c.Copies {
	case 0, 1, 3, 5:
	default:
		bad("--copies %d: must be 1, 3 or 5", c.Copies)
	}
	switch c.Mode {
	case "", placement.Hash:
		if c.Groups < 0 || c.Groups > 65536 {
			bad("--groups %d: must be 1 to 65536", c.Groups)
		}
	case placement.Named:
		if c.Groups != 0 {
			bad("--groups does not go with --routing named: groups are made when they are first written to")
		}
	default:
		bad("--routing %q: must be hash or named", c.Mode)
	}
	if c.Listen == "" {
		bad("--listen is empty: give host:port")
	}
	return errors.Join(append(errs, c.Restore.validate(&c))...)
}
