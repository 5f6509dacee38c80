package etcd

import (
	"context"
	"errors"
	"fmt"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/leasekit/locker/driver"
)

var (
	// errNoSession says that a lease doesn't exist: nothing is attached to it, and nothing will be.
	errNoSession = errors.New("no etcd lease")
	// errUnsent says that no member was asked.
	errUnsent = errors.New("no member of the cluster can be reached")
	errClosed = errors.New("etcd: the connection is closed")
)

// classify tells answers from unknowns. What isn't listed is an unknown: the request may have been applied. That goes for
// a full database too, which etcd reports after it has applied the request.
func (c *conn) classify(err error) error {
	if err == nil || errors.Is(err, errNoSession) || driver.IsAnswer(err) {
		return err
	}
	server := err // what the server or the client library has said, without what was put around it
	if s, ok := errors.AsType[interface {
		error
		GRPCStatus() *status.Status
	}](err); ok {
		server = rpctypes.Error(s.GRPCStatus().Err())
	}
	switch err := server; {
	case errors.Is(err, rpctypes.ErrLeaseNotFound):
		return fmt.Errorf("%w: %w", errNoSession, err)
	case errors.Is(err, rpctypes.ErrPermissionDenied):
		return fmt.Errorf("%w: the user needs the right %q on %s: %w", driver.ErrDenied, "readwrite", c.realm(), err)
	case errors.Is(err, rpctypes.ErrAuthFailed):
		return fmt.Errorf("%w: wrong user or password: %w", driver.ErrDenied, err)
	case errors.Is(err, rpctypes.ErrUserEmpty):
		return fmt.Errorf("%w: the server wants a user and a password: %w", driver.ErrDenied, err)
	case errors.Is(err, rpctypes.ErrUserNotFound), errors.Is(err, rpctypes.ErrRoleNotFound):
		return fmt.Errorf("%w: %w", driver.ErrDenied, err)
	case errors.Is(err, rpctypes.ErrLeaseTTLTooLarge):
		return fmt.Errorf("%w: the TTL: %w", driver.ErrConfig, err)
	}
	switch status.Code(err) {
	case codes.Unimplemented:
		return fmt.Errorf("%w: the server has no etcd v3 API: %w", driver.ErrConfig, err)
	case codes.Unavailable:
		return c.link.explain(err)
	}
	if errors.Is(err, context.DeadlineExceeded) || status.Code(err) == codes.DeadlineExceeded {
		return c.link.explain(err)
	}
	return err
}

// realm names the keys that a user needs rights on.
func (c *conn) realm() string {
	if c.prefix == "" {
		return "all keys"
	}
	return fmt.Sprintf("the keys that begin with %q", c.prefix)
}
