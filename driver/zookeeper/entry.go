package zookeeper

import (
	"cmp"
	"fmt"
	"path"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/leasekit/locker/driver"
)

// offsetName is the node that holds the prefix's token offset. No name is encoded like this.
const offsetName = "%token-offset"

func (c *conn) offsetPath() string            { return c.prefix + "/" + offsetName }
func (c *conn) folderPath(name string) string { return c.prefix + "/" + encode(name) }

// encode makes a name one element of a path. Besides "/" and "%", ZooKeeper's own list of what a path may not hold is
// encoded, a leading dot because of "." and "..", and the one reserved name.
func encode(name string) string {
	if name == reserved {
		return "%7A" + reserved[1:]
	}
	return driver.EncodeName(name, safe)
}

func decode(element string) (name string, ok bool) {
	if element == encode(reserved) {
		return reserved, true
	}
	name, ok = driver.DecodeName(element, safe)
	return name, ok && name != reserved
}

const reserved = "zookeeper"

func safe(offset int, r rune) bool {
	switch {
	case r == '/', r == '.' && offset == 0:
		return false
	case r < ' ', r >= 0x7f && r < 0xa0: // control characters
		return false
	}
	return r < 0xd800 || r >= 0xf900 && r < 0xfff0 // what UTF-16 writes with surrogates, private use, specials
}

// node is a contender: a child of a lock's folder that carries a sequence number.
type node struct {
	name string
	seq  int32
}

// id is that of the acquisition that made the node, "" for one that isn't in the protected form.
func (n node) id() string {
	id, rest, ok := strings.Cut(strings.TrimPrefix(n.name, protected), "-")
	if !ok || !strings.HasPrefix(n.name, protected) || rest == "" {
		return ""
	}
	return id
}

const protected = "_c_"

// contenders returns the children that take part in the lock, in the queue's order. Others are ignored: whoever has put
// them there doesn't lock. The order is that of the sequence numbers alone, since what stands before them is random.
func contenders(children []string) []node {
	var nodes []node
	for _, name := range children {
		if seq, ok := sequence(name); ok {
			nodes = append(nodes, node{name, seq})
		}
	}
	slices.SortFunc(nodes, func(a, b node) int {
		// The counter is 32 bits wide and goes on below zero when it overflows.
		return cmp.Or(cmp.Compare(a.seq-b.seq, 0), strings.Compare(a.name, b.name))
	})
	return nodes
}

// sequence returns the number that the server has put behind the name of a contender. Curator and go-zookeeper write
// "lock-" before it, kazoo "__lock__"; both are accepted, as go-zookeeper does.
func sequence(name string) (int32, bool) {
	digits := name
	if i := strings.LastIndex(name, "lock-"); i >= 0 {
		digits = name[i+len("lock-"):]
	} else if i := strings.LastIndex(name, "__"); i >= 0 {
		digits = name[i+len("__"):]
	} else {
		return 0, false
	}
	if len(digits) < 10 || digits[0] == '+' { // the server writes at least ten characters
		return 0, false
	}
	n, err := strconv.ParseInt(digits, 10, 32)
	return int32(n), err == nil
}

// newNode returns the path that the server completes with a sequence number.
func newNode(folder, id string) string { return folder + "/" + protected + id + "-lock-" }

// value is what a node holds, for people: who waits or holds, and since when.
func value(req driver.Request) []byte {
	return fmt.Appendf(nil, "%s %d %s", req.ID, time.Now().UnixMilli(), req.Owner)
}

// parseValue reads a value; ok is false for a foreign one.
func parseValue(data []byte) (id string, since time.Time, owner string, ok bool) {
	id, rest, _ := strings.Cut(string(data), " ")
	ms, owner, _ := strings.Cut(rest, " ")
	n, err := strconv.ParseInt(ms, 10, 64)
	if len(id) != 32 || err != nil {
		return "", time.Time{}, "", false
	}
	return id, time.UnixMilli(n), owner, true
}

// parent returns the path of a node's parent.
func parent(p string) string { return path.Dir(p) }
