package etcd

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net"
	"strings"
	"sync"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"
	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/peer"

	"github.com/leasekit/locker/driver"
	"github.com/leasekit/locker/internal/tlsfiles"
)

// dial makes the client. It sends nothing: connections are made by the first request.
func (c *conn) dial(cn *connector) error {
	l := &link{endpoints: cn.endpoints, plain: cn.tls == nil, last: make(map[string]error)}
	opts := []grpc.DialOption{
		grpc.WithContextDialer(l.dial),
		// A server that comes back is found within a second, whatever time it was away, and sooner where a TTL is short:
		// a renewal after it must still be in time, and requests fail until then.
		grpc.WithConnectParams(grpc.ConnectParams{
			Backoff:           backoff.Config{BaseDelay: 50 * time.Millisecond, Multiplier: 1.6, Jitter: 0.2, MaxDelay: min(time.Second, max(50*time.Millisecond, c.cfg.TTL/30))},
			MinConnectTimeout: 2 * time.Second,
		}),
	}
	h := &handshaker{insecure.NewCredentials(), nil, l}
	if !l.plain {
		config, err := cn.tls.Config()
		if err != nil {
			return err
		}
		h.TransportCredentials, h.config = credentials.NewTLS(config), config
	}
	opts = append(opts, grpc.WithTransportCredentials(h))
	if cn.credentials != nil {
		c.login = &login{credentials: cn.credentials, gate: make(chan struct{}, 1)}
		opts = append(opts, grpc.WithPerRPCCredentials(c.login),
			grpc.WithChainUnaryInterceptor(c.login.unary), grpc.WithChainStreamInterceptor(c.login.stream))
	}
	client, err := clientv3.New(clientv3.Config{
		Endpoints:            cn.endpoints,
		DialOptions:          append(opts, grpc.WithChainUnaryInterceptor(failFast)), // the innermost
		DialKeepAliveTime:    10 * time.Second,
		DialKeepAliveTimeout: 3 * time.Second,
		MaxUnaryRetries:      2, // of reads, at once, when the member has closed the connection
		Logger:               zap.NewNop(),
	})
	if err != nil {
		return err
	}
	c.client, c.owned, c.link = client, true, l
	if c.login != nil {
		c.login.auth = pb.NewAuthClient(client.ActiveConnection())
	}
	return nil
}

// failFast lets a request fail while no server can be reached, with an error that says why. The client library would
// let it wait, and report no more than a deadline. A request that no server was picked for fails with errUnsent too.
func failFast(ctx context.Context, method string, req, reply any, cc *grpc.ClientConn, invoke grpc.UnaryInvoker, opts ...grpc.CallOption) error {
	var p peer.Peer
	err := invoke(ctx, method, req, reply, cc, append(opts, grpc.WaitForReady(false), grpc.Peer(&p))...)
	if err != nil && p.Addr == nil {
		err = fmt.Errorf("%w: %w", errUnsent, err)
	}
	return err
}

// link remembers how the last connection to each endpoint ended, since a request's error says it as text if at all.
type link struct {
	endpoints []string
	plain     bool // no TLS

	mu   sync.Mutex
	last map[string]error // by endpoint; nil while it works
}

func (l *link) note(endpoint string, err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.last[endpoint] = err
}

// dial connects to an endpoint. Environment variables that name a proxy are not read.
func (l *link) dial(ctx context.Context, endpoint string) (net.Conn, error) {
	var d net.Dialer
	raw, err := d.DialContext(ctx, "tcp", endpoint)
	if err != nil {
		l.note(endpoint, err)
		return nil, err
	}
	return &observed{Conn: raw, link: l, endpoint: endpoint}, nil
}

// observed is a connection that tells its link how it ends.
type observed struct {
	net.Conn
	link     *link
	endpoint string
	once     sync.Once // the first answer
}

func (o *observed) Read(p []byte) (int, error) {
	n, err := o.Conn.Read(p)
	if n > 0 {
		o.once.Do(func() { o.link.note(o.endpoint, nil) })
	}
	if err == nil || errors.Is(err, net.ErrClosed) {
		return n, err
	}
	if refusedCertificate(err) { // a server checks it after the client's part of the handshake
		o.link.note(o.endpoint, certificateError(o.endpoint, err))
		return n, err
	}
	o.once.Do(func() { // it hangs up without having said anything
		if o.link.plain && speaksTLS(o.endpoint) {
			err = fmt.Errorf("%w: %s speaks TLS: the scheme for that is etcds", driver.ErrConfig, o.endpoint)
		}
		o.link.note(o.endpoint, err)
	})
	return n, err
}

// handshaker is a transport's security that tells the link about handshakes that failed.
type handshaker struct {
	credentials.TransportCredentials
	config *tls.Config // nil: no TLS
	link   *link
}

// ClientHandshake implements credentials.TransportCredentials.
func (h *handshaker) ClientHandshake(ctx context.Context, authority string, raw net.Conn) (net.Conn, credentials.AuthInfo, error) {
	o, creds := raw.(*observed), h.TransportCredentials
	if h.config != nil {
		host, _, err := net.SplitHostPort(o.endpoint)
		if err != nil {
			return nil, nil, err
		}
		creds = credentials.NewTLS(tlsfiles.ForHost(h.config, host))
	}
	secured, info, err := creds.ClientHandshake(ctx, authority, o.Conn)
	if err != nil {
		h.link.note(o.endpoint, handshakeError(o.endpoint, err))
		return nil, nil, err
	}
	return &observed{Conn: secured, link: h.link, endpoint: o.endpoint}, info, nil
}

// Clone implements credentials.TransportCredentials.
func (h *handshaker) Clone() credentials.TransportCredentials {
	return &handshaker{h.TransportCredentials.Clone(), h.config, h.link}
}

// handshakeError tells what has to be changed from what may pass.
func handshakeError(endpoint string, err error) error {
	_, noTLS := errors.AsType[tls.RecordHeaderError](err)
	if noTLS || errors.Is(err, io.EOF) && speaksPlain(endpoint) {
		return fmt.Errorf("%w: %s doesn't speak TLS: the scheme for that is etcd: %w", driver.ErrConfig, endpoint, err)
	}
	_, unknown := errors.AsType[x509.UnknownAuthorityError](err)
	_, name := errors.AsType[x509.HostnameError](err)
	_, invalid := errors.AsType[x509.CertificateInvalidError](err)
	if unknown || name || invalid {
		return fmt.Errorf("%w: the certificate of %s isn't valid for ca= and server-name=: %w", driver.ErrConfig, endpoint, err)
	}
	if refusedCertificate(err) {
		return certificateError(endpoint, err)
	}
	return err
}

// refusedCertificate looks at the text, since crypto/tls has no type for an alert that the other side sent.
func refusedCertificate(err error) bool {
	text := err.Error()
	return strings.Contains(text, "remote error: tls:") && (strings.Contains(text, "certificate") || strings.Contains(text, "unknown ca"))
}

func certificateError(endpoint string, err error) error {
	return fmt.Errorf("%w: %s refused the client's certificate, or the lack of one (cert= and key=): %w", driver.ErrConfig, endpoint, err)
}

// explain adds to the error of a request why no endpoint could be reached. It is an answer if something has to be changed
// for each of them.
func (l *link) explain(err error) error {
	if l == nil {
		return err
	}
	l.mu.Lock()
	last := make([]error, len(l.endpoints))
	for i, e := range l.endpoints {
		last[i] = l.last[e]
	}
	l.mu.Unlock()
	permanent := true
	for _, e := range last {
		permanent = permanent && driver.IsPermanent(e)
	}
	if permanent {
		return errors.Join(last...)
	}
	for i, e := range last { // not all of them: it may get better
		if driver.IsPermanent(e) {
			last[i] = errors.New(e.Error())
		}
	}
	if why := errors.Join(last...); why != nil {
		return fmt.Errorf("%w (%w)", err, why)
	}
	return err
}

// speaksPlain asks a server that hangs up on a TLS handshake for one of HTTP/2 without TLS.
func speaksPlain(endpoint string) bool {
	raw, err := net.DialTimeout("tcp", endpoint, 500*time.Millisecond)
	if err != nil {
		return false
	}
	defer raw.Close()
	raw.SetDeadline(time.Now().Add(500 * time.Millisecond))
	const settings = 4 // the type of the frame that either side begins with
	io.WriteString(raw, "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\x00\x00\x00\x04\x00\x00\x00\x00\x00")
	var head [9]byte
	_, err = io.ReadFull(raw, head[:])
	return err == nil && head[3] == settings
}

// speaksTLS asks a server that says nothing to plain text for a TLS handshake.
func speaksTLS(endpoint string) bool {
	raw, err := net.DialTimeout("tcp", endpoint, 500*time.Millisecond)
	if err != nil {
		return false
	}
	defer raw.Close()
	raw.SetDeadline(time.Now().Add(500 * time.Millisecond))
	greeted := false
	tls.Client(raw, &tls.Config{
		InsecureSkipVerify: true, // nothing is sent: whether there is a certificate at all is the question
		VerifyConnection:   func(tls.ConnectionState) error { greeted = true; return nil },
	}).Handshake()
	return greeted
}
