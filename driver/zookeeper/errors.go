package zookeeper

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"

	"github.com/go-zookeeper/zk"

	"github.com/leasekit/locker/driver"
)

// Answers of servers for which the library has no error of its own.
const (
	unimplemented = "unknown error: -6"
	needsSASL     = "unknown error: -124"
)

// answer classifies an error of the library. needs says which right was missing if that is what the server says. What it
// doesn't know, a lost connection above all, is an unknown.
func answer(err error, needs, path string) error {
	switch {
	case err == nil:
		return nil
	case errors.Is(err, zk.ErrNoAuth):
		return fmt.Errorf("%w: zookeeper: to %s at %s: %w", driver.ErrDenied, needs, path, err)
	case errors.Is(err, zk.ErrAuthFailed), err.Error() == needsSASL:
		return fmt.Errorf("%w: zookeeper: the server refuses the credentials, or asks for others: %w", driver.ErrDenied, err)
	case errors.Is(err, zk.ErrInvalidACL):
		return fmt.Errorf("%w: zookeeper: the server refuses the ACL for %s: %w", driver.ErrConfig, path, err)
	case errors.Is(err, zk.ErrNoChildrenForEphemerals):
		return fmt.Errorf("%w: zookeeper: %s is an ephemeral node", driver.ErrConflict, path)
	case errors.Is(err, zk.ErrInvalidPath), errors.Is(err, zk.ErrBadArguments):
		return fmt.Errorf("%w: zookeeper: path %s: %w", driver.ErrConfig, path, err)
	}
	return err
}

// gone reports whether an answer about a node says that it isn't what was created: deleted, or overwritten.
func gone(err error) bool {
	return errors.Is(err, zk.ErrNoNode) || errors.Is(err, zk.ErrBadVersion)
}

// dialAnswer returns an error that matches driver.ErrConfig if all servers of a round failed for a reason that only a
// change of settings removes.
func dialAnswer(failures []error) error {
	for _, err := range failures {
		if !settings(err) {
			return nil
		}
	}
	return fmt.Errorf("%w: %w", driver.ErrConfig, errors.Join(failures...))
}

func settings(err error) bool {
	if errors.Is(err, driver.ErrConfig) {
		return true
	}
	if _, ok := errors.AsType[*tls.CertificateVerificationError](err); ok {
		return true
	}
	if _, ok := errors.AsType[x509.UnknownAuthorityError](err); ok {
		return true
	}
	if _, ok := errors.AsType[x509.HostnameError](err); ok {
		return true
	}
	if _, ok := errors.AsType[tls.RecordHeaderError](err); ok {
		return true
	}
	_, ok := errors.AsType[tls.AlertError](err)
	return ok
}
