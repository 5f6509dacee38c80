//go:build unix

package proxy

import (
	"net"
	"strconv"
	"syscall"
)

// reserve takes a free port of 127.0.0.1 and keeps it by a socket that is bound and never listens. Without it, another
// process could take the port while the proxy refuses connections, or a client that dials it again and again could be
// given that very port for its own side and connect to itself.
func reserve() (addr string, release func(), err error) {
	syscall.ForkLock.RLock()
	fd, err := syscall.Socket(syscall.AF_INET, syscall.SOCK_STREAM, 0)
	if err == nil {
		syscall.CloseOnExec(fd)
	}
	syscall.ForkLock.RUnlock()
	if err != nil {
		return "", nil, err
	}
	defer func() {
		if err != nil {
			syscall.Close(fd)
		}
	}()
	// Two sockets may be bound to one port if both have this option and none listened before; package net sets it too.
	if err := syscall.SetsockoptInt(fd, syscall.SOL_SOCKET, syscall.SO_REUSEADDR, 1); err != nil {
		return "", nil, err
	}
	if err := syscall.Bind(fd, &syscall.SockaddrInet4{Addr: [4]byte{127, 0, 0, 1}}); err != nil {
		return "", nil, err
	}
	name, err := syscall.Getsockname(fd)
	if err != nil {
		return "", nil, err
	}
	port := name.(*syscall.SockaddrInet4).Port
	return net.JoinHostPort("127.0.0.1", strconv.Itoa(port)), func() { syscall.Close(fd) }, nil
}
