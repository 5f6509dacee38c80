//go:build unix

package redis

import (
	"net"
	"syscall"
)

// connected looks, without waiting, whether the peer has closed an unused connection. Bytes that nobody asked for are no
// hang-up: they may belong to TLS.
func connected(conn net.Conn) bool {
	s, ok := conn.(syscall.Conn)
	if !ok {
		return true
	}
	raw, err := s.SyscallConn()
	if err != nil {
		return false
	}
	alive := false
	err = raw.Read(func(fd uintptr) bool {
		var b [1]byte
		n, _, err := syscall.Recvfrom(int(fd), b[:], syscall.MSG_PEEK|syscall.MSG_DONTWAIT)
		alive = n > 0 || err == syscall.EAGAIN || err == syscall.EINTR
		return true
	})
	return err == nil && alive
}
