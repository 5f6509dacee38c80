package etcd

import (
	"context"
	"errors"
	"strings"
	"sync"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	"google.golang.org/grpc"
)

// login keeps the token that stands for a user. The client library can log in by itself, but then its constructor waits
// for a server, it stores the password for good, and it logs in again for each keep-alive.
type login struct {
	credentials func(ctx context.Context) (user, password string, err error)
	auth        pb.AuthClient
	gate        chan struct{} // held by who logs in

	mu    sync.Mutex
	token string
	known bool // the token may be used; an empty one means that the server has no users
	count int  // of logins
}

// GetRequestMetadata implements credentials.PerRPCCredentials.
func (l *login) GetRequestMetadata(context.Context, ...string) (map[string]string, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.token == "" {
		return nil, nil
	}
	return map[string]string{rpctypes.TokenFieldNameGRPC: l.token}, nil
}

// RequireTransportSecurity implements credentials.PerRPCCredentials.
func (*login) RequireTransportSecurity() bool { return false }

func (l *login) logins() (count int, known bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.count, l.known
}

// renew gets a new token, unless another call gets one meanwhile.
func (l *login) renew(ctx context.Context) error {
	before, _ := l.logins()
	select {
	case l.gate <- struct{}{}:
		defer func() { <-l.gate }()
	case <-ctx.Done():
		return ctx.Err()
	}
	if now, _ := l.logins(); now != before {
		return nil
	}
	user, password, err := l.credentials(ctx)
	if err != nil {
		return err
	}
	resp, err := l.auth.Authenticate(ctx, &pb.AuthenticateRequest{Name: user, Password: password})
	if err != nil && !errors.Is(rpctypes.Error(err), rpctypes.ErrAuthNotEnabled) {
		return err
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.token, l.known = resp.GetToken(), true
	l.count++
	return nil
}

// ready logs in if that hasn't been done yet.
func (l *login) ready(ctx context.Context) error {
	if _, known := l.logins(); known {
		return nil
	}
	return l.renew(ctx)
}

// stale reports whether the server refused a request because of its token, and didn't look at it any further.
func stale(err error) bool {
	err = rpctypes.Error(err)
	return errors.Is(err, rpctypes.ErrInvalidAuthToken) || errors.Is(err, rpctypes.ErrUserEmpty) ||
		errors.Is(err, rpctypes.ErrAuthOldRevision)
}

// unary is a grpc.UnaryClientInterceptor that logs in before the first request and after a token was refused.
func (l *login) unary(ctx context.Context, method string, req, reply any, cc *grpc.ClientConn, invoke grpc.UnaryInvoker, opts ...grpc.CallOption) error {
	if strings.HasPrefix(method, "/etcdserverpb.Auth/") {
		return invoke(ctx, method, req, reply, cc, opts...)
	}
	if err := l.ready(ctx); err != nil {
		return err
	}
	err := invoke(ctx, method, req, reply, cc, opts...)
	if !stale(err) {
		return err
	}
	if err := l.renew(ctx); err != nil {
		return err
	}
	return invoke(ctx, method, req, reply, cc, opts...)
}

// stream is a grpc.StreamClientInterceptor that logs in before the first request. A refused token shows later.
func (l *login) stream(ctx context.Context, desc *grpc.StreamDesc, cc *grpc.ClientConn, method string, streamer grpc.Streamer, opts ...grpc.CallOption) (grpc.ClientStream, error) {
	if err := l.ready(ctx); err != nil {
		return nil, err
	}
	return streamer(ctx, desc, cc, method, opts...)
}
