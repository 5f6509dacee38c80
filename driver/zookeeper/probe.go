package zookeeper

import (
	"bytes"
	"context"
	"crypto/tls"
	"fmt"
	"net"
	"time"

	"github.com/leasekit/locker/driver"
)

// A server that expects TLS hangs up on a client without it, and the other way round, without a word: like a server that
// is just starting. So when a server hangs up, the driver tries whether it would talk the other way.

// mismatched returns an error that matches driver.ErrConfig if a server that hung up speaks TLS though it shouldn't, or
// doesn't though it should. nil means that it can't be told.
func (s *session) mismatched(addr string) error {
	s.c.mu.Lock()
	served := s.c.served
	s.c.mu.Unlock()
	if served {
		return nil
	}
	ctx, stop := context.WithTimeout(s.ctx, 500*time.Millisecond)
	defer stop()
	raw, err := s.c.o.dial(ctx, "tcp", addr)
	if err != nil {
		return nil
	}
	defer raw.Close()
	raw.SetDeadline(time.Now().Add(500 * time.Millisecond))
	if s.c.tls != nil {
		if plainServer(raw) {
			return fmt.Errorf("%w: %s speaks no TLS: use scheme zk", driver.ErrConfig, addr)
		}
		return nil
	}
	if tlsServer(ctx, raw) {
		return fmt.Errorf("%w: %s speaks TLS: use scheme zks", driver.ErrConfig, addr)
	}
	return nil
}

// plainServer asks for the server's state. Both the answer and the refusal to give it are text.
func plainServer(raw net.Conn) bool {
	if _, err := raw.Write([]byte("srvr")); err != nil {
		return false
	}
	reply := make([]byte, 64)
	n, _ := raw.Read(reply)
	return bytes.HasPrefix(reply[:n], []byte("Zookeeper version")) || bytes.HasPrefix(reply[:n], []byte("srvr is not executed")) ||
		bytes.HasPrefix(reply[:n], []byte("This ZooKeeper instance"))
}

// tlsServer begins a handshake and looks whether the server goes along. Nothing is sent or trusted beyond it.
func tlsServer(ctx context.Context, raw net.Conn) bool {
	spoke := false
	client := tls.Client(raw, &tls.Config{
		InsecureSkipVerify: true,
		VerifyConnection:   func(tls.ConnectionState) error { spoke = true; return nil },
	})
	err := client.HandshakeContext(ctx)
	return spoke || err == nil
}
