package zookeeper

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"strings"
	"time"

	"github.com/go-zookeeper/zk"

	"github.com/leasekit/locker/conformance"
)

// operator acts on a server by hand. Each act has a connection of its own, so that none is left over.
type operator struct{ addr, prefix string }

func (o operator) connect() (*zk.Conn, error) {
	z, _, err := zk.Connect([]string{o.addr}, 30*time.Second, zk.WithLogger(quiet{}))
	return z, err
}

func (o operator) admin() conformance.Admin {
	remove := func(z *zk.Conn, path string, _ *zk.Stat) error { return z.Delete(path, -1) }
	return conformance.Admin{
		Entry: func(_ context.Context, name string) (e conformance.Entry, err error) {
			err = o.act(func(z *zk.Conn) error {
				nodes, err := o.queue(z, name)
				if err != nil || len(nodes) == 0 {
					return err
				}
				data, stat, err := z.Get(nodes[0])
				if err == nil {
					e.Value = fmt.Sprintf("%s %s %d", nodes[0], data, stat.Czxid)
				}
				return err
			})
			return e, err
		},
		Delete:     o.at(0, remove),
		DropWaiter: o.at(1, remove),
		Replace: o.at(0, func(z *zk.Conn, path string, _ *zk.Stat) error {
			_, err := z.Set(path, []byte("somebody else"), -1)
			return err
		}),
		EndSession: o.at(0, func(_ *zk.Conn, _ string, stat *zk.Stat) error { return endSession(o.addr, stat.EphemeralOwner) }),
		Occupy:     o.occupy,
		Entries: func(context.Context) (all []string, err error) {
			err = o.act(func(z *zk.Conn) error {
				folders, err := o.children(z, o.prefix)
				for _, folder := range folders {
					nodes, err := o.children(z, o.prefix+"/"+folder)
					if err != nil {
						return err
					}
					for _, n := range nodes {
						all = append(all, folder+"/"+n)
					}
				}
				return err
			})
			return all, err
		},
		Sessions: func(context.Context) (int, error) {
			dump, err := word(o.addr, "dump")
			sessions, _, ok := strings.Cut(dump, "ephemeral nodes dump")
			if err == nil && !ok {
				err = fmt.Errorf("no sessions in %q", dump)
			}
			return strings.Count(sessions, "\t0x"), err
		},
	}
}

// act opens a connection for one act.
func (o operator) act(do func(*zk.Conn) error) error {
	z, err := o.connect()
	if err != nil {
		return err
	}
	defer z.Close()
	return do(z)
}

// occupy puts an ephemeral node, under which there can be none, where the folder would stand.
func (o operator) occupy(_ context.Context, name string) (func(context.Context) error, error) {
	folder := o.prefix + "/" + encode(name)
	z, err := o.connect()
	if err != nil {
		return nil, err
	}
	if _, err = z.Create(o.prefix, nil, 0, zk.WorldACL(zk.PermAll)); err == nil || errors.Is(err, zk.ErrNodeExists) {
		_, err = z.Create(folder, []byte("data"), zk.FlagEphemeral, zk.WorldACL(zk.PermAll))
	}
	return func(context.Context) error {
		defer z.Close()
		data, stat, err := z.Get(folder)
		if err == nil && (string(data) != "data" || stat.Version != 0) {
			err = errors.New("the foreign node isn't what it was")
		}
		return err
	}, err
}

// queue returns the paths of a name's contenders, the holder's first.
func (o operator) queue(z *zk.Conn, name string) (paths []string, err error) {
	folder := o.prefix + "/" + encode(name)
	children, err := o.children(z, folder)
	for _, n := range contenders(children) {
		paths = append(paths, folder+"/"+n.name)
	}
	return paths, err
}

// children returns a node's children, none if there is no node. It waits for a connection, as after a restart.
func (o operator) children(z *zk.Conn, path string) ([]string, error) {
	for end := time.Now().Add(10 * time.Second); ; time.Sleep(50 * time.Millisecond) {
		children, _, err := z.Children(path)
		switch {
		case errors.Is(err, zk.ErrNoNode):
			return nil, nil
		case err == nil || time.Now().After(end):
			return children, err
		}
	}
}

func (o operator) at(i int, do func(z *zk.Conn, path string, stat *zk.Stat) error) func(context.Context, string) error {
	return func(_ context.Context, name string) error {
		return o.act(func(z *zk.Conn) error {
			nodes, err := o.queue(z, name)
			if err == nil && len(nodes) <= i {
				err = fmt.Errorf("there are only %d nodes", len(nodes))
			}
			if err != nil {
				return err
			}
			_, stat, err := z.Get(nodes[i])
			if err != nil {
				return err
			}
			return do(z, nodes[i], stat)
		})
	}
}

// word returns the answer to a four-letter word.
func word(addr, w string) (string, error) {
	conn, err := net.DialTimeout("tcp", addr, 5*time.Second)
	if err != nil {
		return "", err
	}
	defer conn.Close()
	conn.SetDeadline(time.Now().Add(5 * time.Second))
	if _, err := io.WriteString(conn, w); err != nil {
		return "", err
	}
	reply, err := io.ReadAll(conn)
	return string(reply), err
}

// endSession takes over a session, whose password the server derives from its number, and closes it.
func endSession(addr string, id int64) error {
	conn, err := net.DialTimeout("tcp", addr, 5*time.Second)
	if err != nil {
		return err
	}
	defer conn.Close()
	conn.SetDeadline(time.Now().Add(5 * time.Second))
	b := binary.BigEndian.AppendUint32(nil, 44)
	b = append(b, make([]byte, 4+8)...)          // version, newest transaction seen
	b = binary.BigEndian.AppendUint32(b, 10_000) // timeout
	b = binary.BigEndian.AppendUint64(b, uint64(id))
	b = binary.BigEndian.AppendUint32(b, 16)
	b = append(b, sessionPassword(id)...)
	if _, err := conn.Write(b); err != nil {
		return err
	}
	reply := make([]byte, 20)
	if _, err := io.ReadFull(conn, reply); err != nil {
		return err
	}
	if int64(binary.BigEndian.Uint64(reply[12:])) != id {
		return errors.New("the server refuses the session's password")
	}
	const opClose = -11
	b = binary.BigEndian.AppendUint32(nil, 8)
	b = binary.BigEndian.AppendUint32(b, 1)
	b = binary.BigEndian.AppendUint32(b, uint32(0xffffffff+opClose+1))
	if _, err := conn.Write(b); err != nil {
		return err
	}
	_, err = io.ReadAll(conn) // until the server hangs up
	return err
}

// sessionPassword is what Java's random numbers give for the session's number and the servers' built-in secret.
func sessionPassword(id int64) []byte {
	const (
		secret     = 0xB3415C00
		multiplier = 0x5DEECE66D
		mask       = 1<<48 - 1
	)
	seed := (uint64(id) ^ secret ^ multiplier) & mask
	var p []byte
	for range 4 {
		seed = (seed*multiplier + 0xB) & mask
		p = binary.LittleEndian.AppendUint32(p, uint32(seed>>16))
	}
	return p
}
