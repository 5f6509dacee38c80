// Package tlsfiles makes a tls.Config from the parameters that all URLs with TLS share: ca=, cert=, key= and
// server-name=. The files are read again for each connection, so that certificates can be replaced under a running
// program.
package tlsfiles

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"os"

	"github.com/leasekit/locker/driver"
)

// Files names the files, each a path to PEM data, "" where there is none.
type Files struct {
	CA         string // certificates that servers must be signed by; "": the system's
	Cert, Key  string // the client's certificate and key; both or neither
	ServerName string // the name that the server's certificate must have; "": the host's
}

// FromURL takes the TLS parameters from u. They are an error unless the scheme is one with TLS.
func FromURL(u *driver.URL, secure bool) *Files {
	f := &Files{}
	for _, p := range []struct {
		key   string
		value *string
	}{{"ca", &f.CA}, {"cert", &f.Cert}, {"key", &f.Key}, {"server-name", &f.ServerName}} {
		v, ok := u.Param(p.key)
		switch {
		case !ok:
		case !secure:
			u.Errorf("parameter %q needs a scheme with TLS", p.key)
		case v == "":
			u.Errorf("parameter %q is empty", p.key)
		default:
			*p.value = v
		}
	}
	if (f.Cert == "") != (f.Key == "") {
		u.Errorf("parameters %q and %q go together", "cert", "key")
	}
	if !secure {
		return nil
	}
	return f
}

// Config reads the files once, so that a missing or malformed one is noticed early, and returns a configuration that
// reads them again for each handshake. Errors match driver.ErrConfig.
func (f *Files) Config() (*tls.Config, error) {
	if _, err := f.roots(); err != nil {
		return nil, fmt.Errorf("%w: %w", driver.ErrConfig, err)
	}
	c := &tls.Config{MinVersion: tls.VersionTLS12, ServerName: f.ServerName}
	if f.Cert != "" {
		if _, err := f.certificate(nil); err != nil {
			return nil, fmt.Errorf("%w: %w", driver.ErrConfig, err)
		}
		c.GetClientCertificate = f.certificate
	}
	if f.CA != "" {
		// There is no callback for the roots: the standard verification is switched off and done in VerifyConnection,
		// against what the file holds then.
		c.InsecureSkipVerify = true
		c.VerifyConnection = f.verify
	}
	return c, nil
}

func (f *Files) certificate(*tls.CertificateRequestInfo) (*tls.Certificate, error) {
	cert, err := tls.LoadX509KeyPair(f.Cert, f.Key)
	if err != nil {
		return nil, fmt.Errorf("client certificate: %w", err)
	}
	return &cert, nil
}

func (f *Files) roots() (*x509.CertPool, error) {
	if f.CA == "" {
		return nil, nil
	}
	pem, err := os.ReadFile(f.CA)
	if err != nil {
		return nil, fmt.Errorf("certificate authority: %w", err)
	}
	pool := x509.NewCertPool()
	if !pool.AppendCertsFromPEM(pem) {
		return nil, fmt.Errorf("certificate authority: no certificate in %s", f.CA)
	}
	return pool, nil
}

// verify does what crypto/tls does by default, with roots that are read now.
func (f *Files) verify(state tls.ConnectionState) error {
	roots, err := f.roots()
	if err != nil {
		return err
	}
	if len(state.PeerCertificates) == 0 {
		return errors.New("the server sent no certificate")
	}
	if state.ServerName == "" {
		return errors.New("no server name to verify the certificate against")
	}
	opts := x509.VerifyOptions{Roots: roots, DNSName: state.ServerName, Intermediates: x509.NewCertPool()}
	for _, cert := range state.PeerCertificates[1:] {
		opts.Intermediates.AddCert(cert)
	}
	_, err = state.PeerCertificates[0].Verify(opts)
	return err
}

// ForHost returns a copy of a configuration for a connection to host, a name or an IP address without brackets. A server
// that is addressed by its IP address can only be verified by such a copy: crypto/tls reports no server name then.
func ForHost(c *tls.Config, host string) *tls.Config {
	c = c.Clone()
	if c.ServerName == "" {
		c.ServerName = host
	}
	if verify, name := c.VerifyConnection, c.ServerName; verify != nil {
		c.VerifyConnection = func(state tls.ConnectionState) error {
			state.ServerName = name
			return verify(state)
		}
	}
	return c
}
