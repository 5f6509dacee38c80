//go:build !unix

package proxy

import "net"

// reserve finds a free port of 127.0.0.1. It can't be kept while the proxy refuses connections.
func reserve() (addr string, release func(), err error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return "", nil, err
	}
	defer l.Close()
	return l.Addr().String(), func() {}, nil
}
