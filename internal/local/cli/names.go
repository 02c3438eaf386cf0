package cli

import (
	"fmt"
	"path"
	"path/filepath"
	"strconv"
	"strings"
	"sync"

	"sheaf.dev/sheaf/client"
)

// These are the kinds of failures for records whose paths cannot coexist in one tree.
const (
	failOutside = "path leads outside"
	failTwice   = "path exported twice"
	failBoth    = "path of both a file and a folder"
)

// noPathDir is the folder for records that have no path.
const noPathDir = "_records"

// treeNames assigns paths in one tree to records. No two records get the same path, no path leads out of the tree, and
// no file or link is the folder of another path. Therefore nothing is written through a link of the same tree, not even
// when an archive is unpacked. Safe for concurrent use.
type treeNames struct {
	prefix string // if not empty, only records with paths below the prefix are written, without the prefix

	mu    sync.Mutex
	taken map[nameHash]bool // for each path in use: whether it is a folder (true) or the path of a record (false)
}

// take returns the path of a record, relative and clean. It returns false for a record that has no place in the tree,
// and the result failed then says why. If failed is nil, the prefix excludes the record.
func (n *treeNames) take(r client.Record) (name string, failed *failure, ok bool) {
	p, imported := r.Attributes[attributePath]
	name = string(p)
	switch {
	case n.prefix != "":
		var below bool
		if name, below = strings.CutPrefix(name, n.prefix+"/"); !below {
			return "", nil, false
		}
	case !imported:
		name = path.Join(noPathDir, r.Key.Group, strconv.FormatInt(r.Key.ID, 10))
	}
	if name == "." || !filepath.IsLocal(name) {
		return "", &failure{failOutside, name, fmt.Sprintf("record %d was not written", r.Key.ID)}, false
	}
	name = path.Clean(name)
	if kind, why := n.add(name); kind != "" {
		return "", &failure{kind, name, fmt.Sprintf("record %d in group %s was not written: %s", r.Key.ID, r.Key.Group,
			why)}, false
	}
	return name, nil, true
}

// add reserves a path and its folders. An empty kind means success.
func (n *treeNames) add(name string) (kind, why string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if folder, taken := n.taken[hashName(name)]; folder {
		return failBoth, "the paths of other records lead through it"
	} else if taken {
		return failTwice, "another record has this path"
	}
	var above []nameHash
	for dir := path.Dir(name); dir != "."; dir = path.Dir(dir) {
		hash := hashName(dir)
		folder, taken := n.taken[hash]
		if folder {
			break // dir is already reserved as a folder, and so are its parents
		}
		if taken {
			return failBoth, displayName(dir) + " is a record, too"
		}
		above = append(above, hash)
	}
	if n.taken == nil {
		n.taken = map[nameHash]bool{}
	}
	for _, hash := range above {
		n.taken[hash] = true
	}
	n.taken[hashName(name)] = false
	return "", ""
}
