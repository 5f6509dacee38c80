package consul

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"regexp"
	"strings"

	"github.com/hashicorp/consul/api"

	"github.com/leasekit/locker/driver"
)

// errSilent is why a request was given up that nobody answered.
var errSilent = errors.New("no answer in time")

// errGone says that the session is gone. It stays inside this package.
var errGone = errors.New("the session is gone")

// What Consul says has no codes, so its texts are looked at. They have been the same since its transactions exist.
const (
	saysDenied     = "Permission denied"
	saysNoACL      = "ACL not found"
	saysNoTLS      = "Client sent an HTTP request to an HTTPS server"
	saysSession    = "invalid session"
	saysDelay      = "due to lock delay"
	saysHeld       = "lock is already held"
	saysMissing    = "doesn't exist"
	saysOtherTTL   = "Invalid Session TTL"
	saysFewer      = "too many concurrent connections"
	saysEnterprise = "Consul Enterprise"
)

var ttlBounds = regexp.MustCompile(`between \[([^=\]]+)=([^\]]+)\]`)

// explain says what an error of a request means. right names what the request needs, for the case that it is missing.
func (c *conn) explain(err error, right string) error {
	if u, ok := errors.AsType[*url.Error](err); ok {
		err = u.Err // without the request's address, which says nothing to the user
	}
	if err == nil || driver.IsAnswer(err) || errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded) {
		return err
	}
	text := c.redact(err.Error())
	var unknownCA x509.UnknownAuthorityError
	var hostname x509.HostnameError
	var invalid x509.CertificateInvalidError
	var alert tls.AlertError
	switch {
	case strings.Contains(text, saysDenied):
		return fmt.Errorf("%w: consul: the ACL token needs %s: %s", driver.ErrDenied, right, text)
	case strings.Contains(text, saysNoACL):
		return fmt.Errorf("%w: consul: the server doesn't know the ACL token", driver.ErrDenied)
	case strings.Contains(text, saysOtherTTL):
		if b := ttlBounds.FindStringSubmatch(text); b != nil && c.cfg.TTL < maxTTL {
			return fmt.Errorf("%w: consul: the TTL %v is below the server's minimum of %s (its setting session_ttl_min)",
				driver.ErrConfig, c.cfg.TTL, b[1])
		}
		return fmt.Errorf("%w: consul: %s", driver.ErrConfig, text)
	case strings.Contains(text, saysNoTLS):
		return fmt.Errorf("%w: consul: the port expects TLS: the scheme is consuls", driver.ErrConfig)
	case strings.Contains(text, "server gave HTTP response to HTTPS client"), errors.As(err, new(tls.RecordHeaderError)):
		return fmt.Errorf("%w: consul: the port has no TLS: the scheme is consul", driver.ErrConfig)
	case strings.Contains(text, saysEnterprise):
		return fmt.Errorf("%w: consul: %s", driver.ErrConfig, text)
	case errors.As(err, &unknownCA), errors.As(err, &hostname), errors.As(err, &invalid):
		return fmt.Errorf("%w: consul: the server's certificate: %s (parameters ca and server-name)", driver.ErrConfig, text)
	case errors.As(err, &alert), strings.Contains(text, "remote error: tls:"):
		return fmt.Errorf("%w: consul: the server refuses the client certificate, or wants one (parameters cert and key): %s",
			driver.ErrDenied, text)
	case text == err.Error():
		return fmt.Errorf("consul: %w", err)
	}
	return fmt.Errorf("consul: %s", text)
}

// redact takes the ACL token out of a text, should a server or library have put it there.
func (c *conn) redact(text string) string {
	if token := c.token(); token != "" {
		return strings.ReplaceAll(text, token, "[token]")
	}
	return text
}

// status returns the HTTP status that an error stands for, 0 if it stands for none.
func status(err error) int {
	if s, ok := errors.AsType[api.StatusError](err); ok {
		return s.Code
	}
	return 0
}

// unsent reports whether a request that failed with err can't have reached a leader: it was never sent, or refused
// before it was looked at. Any other failure leaves it open whether it was applied, or will be.
func unsent(err error) bool {
	if driver.IsAnswer(err) || errors.Is(err, errBusy) {
		return true
	}
	if op, ok := errors.AsType[*net.OpError](err); ok && op.Op == "dial" {
		return true
	}
	if _, ok := errors.AsType[*net.DNSError](err); ok {
		return true
	}
	return strings.Contains(err.Error(), saysFewer) || status(err) == http.StatusTooManyRequests
}

// refusal is what a transaction failed with.
type refusal struct {
	errs api.TxnErrors
}

// says reports whether one of the operations failed with a text.
func (r refusal) says(text string) bool {
	for _, e := range r.errs {
		if strings.Contains(e.What, text) {
			return true
		}
	}
	return false
}

// of returns what operation i failed with, "" if it didn't.
func (r refusal) of(i int) string {
	for _, e := range r.errs {
		if e.OpIndex == i {
			return e.What
		}
	}
	return ""
}

// err makes the refusal an error, for the case that it isn't one that was reckoned with.
func (r refusal) err() error {
	texts := make([]string, len(r.errs))
	for i, e := range r.errs {
		texts[i] = e.What
	}
	return fmt.Errorf("the transaction was refused: %s", strings.Join(texts, "; "))
}

// denied reports whether operation i failed for lack of a right.
func (r refusal) denied(i int) bool { return strings.Contains(r.of(i), saysDenied) }
