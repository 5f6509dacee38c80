package testserver

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"fmt"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"time"

	"github.com/leasekit/locker/internal/testserver/images"
)

// TLS are the files that a client of a server with TLS needs.
type TLS struct {
	CA   string // certificate of the authority that the servers' certificates (for localhost and 127.0.0.1) are from
	Cert string // the client's certificate, from the same authority
	Key  string // its key
}

// Config is for a client that shows its certificate.
func (t *TLS) Config() (*tls.Config, error) {
	ca, err := os.ReadFile(t.CA)
	if err != nil {
		return nil, err
	}
	pair, err := tls.LoadX509KeyPair(t.Cert, t.Key)
	if err != nil {
		return nil, err
	}
	c := &tls.Config{RootCAs: x509.NewCertPool(), Certificates: []tls.Certificate{pair}, ServerName: "localhost"}
	c.RootCAs.AppendCertsFromPEM(ca)
	return c, nil
}

func tlsDir() string { return filepath.Join(images.CacheDir(), "tls") }

// Certificates returns the files in the cache directory, and makes them when they are not there: all
// servers and clients on the machine, of whatever clone, use the same.
func Certificates() (*TLS, error) {
	dir := tlsDir()
	files := &TLS{CA: filepath.Join(dir, "ca.crt"), Cert: filepath.Join(dir, "client.crt"), Key: filepath.Join(dir, "client.key")}
	if good(dir) {
		return files, nil
	}
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	lock, err := lockFile(ctx, "tls", true)
	if err != nil {
		return nil, err
	}
	defer lock.Close()
	if good(dir) { // another process was faster
		return files, nil
	}
	if err := makeCertificates(dir); err != nil {
		return nil, fmt.Errorf("testserver: making certificates: %w", err)
	}
	return files, nil
}

// good reports whether the certificates are there and last for another month.
func good(dir string) bool {
	for _, name := range []string{"server", "client"} { // the client's is written last
		pair, err := tls.LoadX509KeyPair(filepath.Join(dir, name+".crt"), filepath.Join(dir, name+".key"))
		if err != nil || time.Until(pair.Leaf.NotAfter) < 30*24*time.Hour {
			return false
		}
	}
	return true
}

func makeCertificates(dir string) error {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	caKey, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return err
	}
	template := func(serial int64, name string) *x509.Certificate {
		return &x509.Certificate{
			SerialNumber: big.NewInt(serial),
			Subject:      pkix.Name{CommonName: name},
			NotBefore:    time.Now().Add(-time.Hour),
			NotAfter:     time.Now().AddDate(5, 0, 0),
			KeyUsage:     x509.KeyUsageDigitalSignature,
		}
	}
	ca := template(time.Now().UnixNano(), "locker test CA")
	ca.IsCA, ca.BasicConstraintsValid, ca.KeyUsage = true, true, x509.KeyUsageCertSign
	caDER, err := x509.CreateCertificate(rand.Reader, ca, ca, &caKey.PublicKey, caKey)
	if err != nil {
		return err
	}
	if err := writePEM(filepath.Join(dir, "ca.crt"), block("CERTIFICATE", caDER)); err != nil {
		return err
	}
	for i, name := range []string{"server", "client"} {
		key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
		if err != nil {
			return err
		}
		c := template(time.Now().UnixNano()+int64(i)+1, name)
		c.DNSNames, c.IPAddresses = []string{"localhost"}, []net.IP{net.IPv4(127, 0, 0, 1)}
		// Servers use theirs as clients as well: etcd's HTTP gateway does, and Consul's servers do.
		c.ExtKeyUsage = []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth}
		der, err := x509.CreateCertificate(rand.Reader, c, ca, &key.PublicKey, caKey)
		if err != nil {
			return err
		}
		keyDER, err := x509.MarshalPKCS8PrivateKey(key)
		if err != nil {
			return err
		}
		cert, private := block("CERTIFICATE", der), block("PRIVATE KEY", keyDER)
		if err := writePEM(filepath.Join(dir, name+".pem"), private, cert); err != nil { // for ZooKeeper
			return err
		}
		if err := writePEM(filepath.Join(dir, name+".key"), private); err != nil {
			return err
		}
		if err := writePEM(filepath.Join(dir, name+".crt"), cert); err != nil {
			return err
		}
	}
	return nil
}

func block(kind string, der []byte) []byte {
	return pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der})
}

// writePEM makes the file readable for all: it is a key for tests, and the server in the container
// may run as another user.
func writePEM(path string, blocks ...[]byte) error {
	var data []byte
	for _, b := range blocks {
		data = append(data, b...)
	}
	if err := os.WriteFile(path, data, 0o644); err != nil {
		return err
	}
	return os.Chmod(path, 0o644)
}
