package consul

import (
	"context"
	"crypto/tls"
	"net"
	"net/http"
	"strings"
	"sync/atomic"
	"time"

	"github.com/hashicorp/consul/api"

	"github.com/leasekit/locker/internal/tlsfiles"
)

// unset stands where the client library would otherwise put what an environment variable says.
const unset = "locker-unset"

// newClient makes a client for the connector's addresses. The transport is returned to have its connections closed.
func (c *connector) newClient() (*api.Client, *transport, error) {
	e := &agents{addrs: c.addrs}
	t := &transport{agents: e, settings: &c.settings}
	t.http = &http.Transport{
		Proxy:               nil, // it would come from the environment
		DialContext:         e.dial,
		MaxConnsPerHost:     maxGrants + maxUpkeep + maxFollowed,
		MaxIdleConnsPerHost: maxGrants + maxUpkeep + maxFollowed,
		IdleConnTimeout:     15 * time.Second, // an agent counts idle connections too, 200 for each client host
		TLSHandshakeTimeout: 5 * time.Second,
	}
	scheme := "http"
	if c.secure {
		scheme = "https"
		config, err := c.tls.Config()
		if err != nil {
			return nil, nil, err
		}
		t.http.DialTLSContext = func(ctx context.Context, network, addr string) (net.Conn, error) {
			return e.dialTLS(ctx, network, config)
		}
	}
	client, err := api.NewClient(&api.Config{
		Address:    c.addrs[0],
		Scheme:     scheme,
		HttpClient: &http.Client{Transport: t},
		Token:      unset,
		Namespace:  unset,
		Partition:  unset,
	})
	return client, t, err
}

// transport takes out of a request what stands for nothing, and leaves an agent that doesn't answer.
type transport struct {
	http     *http.Transport
	agents   *agents
	settings *settings
}

func (t *transport) RoundTrip(r *http.Request) (*http.Response, error) {
	r = r.Clone(r.Context())
	if r.Header.Get("X-Consul-Token") == unset {
		r.Header.Del("X-Consul-Token")
	}
	if strings.Contains(r.URL.RawQuery, unset) {
		q := r.URL.Query()
		for _, p := range []string{"ns", "partition"} {
			if q.Get(p) == unset {
				q.Del(p)
			}
		}
		r.URL.RawQuery = q.Encode()
	}
	at := t.agents.current.Load()
	resp, err := t.http.RoundTrip(r)
	if err != nil && r.Context().Err() != context.Canceled || err == nil && resp.StatusCode >= 500 {
		t.agents.leave(at)
		if len(t.agents.addrs) > 1 {
			t.http.CloseIdleConnections()
		}
	}
	return resp, err
}

// agents are the addresses of agents, one of which is used as long as it answers.
type agents struct {
	addrs   []string
	current atomic.Uint64 // modulo their number
}

// leave goes on to the next agent, unless somebody else has done so since.
func (a *agents) leave(at uint64) {
	if len(a.addrs) > 1 {
		a.current.CompareAndSwap(at, at+1)
	}
}

// dial connects to the current agent, or to the first of the others that can be reached.
func (a *agents) dial(ctx context.Context, network, _ string) (net.Conn, error) {
	conn, _, err := a.dialAny(ctx, network)
	return conn, err
}

func (a *agents) dialAny(ctx context.Context, network string) (net.Conn, string, error) {
	var first error
	d := net.Dialer{Timeout: 5 * time.Second}
	if len(a.addrs) > 1 {
		d.Timeout = time.Second
	}
	for range a.addrs {
		at := a.current.Load()
		addr := a.addrs[at%uint64(len(a.addrs))]
		conn, err := d.DialContext(ctx, network, addr)
		if err == nil {
			return conn, addr, nil
		}
		if first == nil {
			first = err
		}
		a.leave(at)
		if ctx.Err() != nil {
			break
		}
	}
	return nil, "", first
}

func (a *agents) dialTLS(ctx context.Context, network string, config *tls.Config) (net.Conn, error) {
	conn, addr, err := a.dialAny(ctx, network)
	if err != nil {
		return nil, err
	}
	host, _, err := net.SplitHostPort(addr)
	if err != nil {
		conn.Close()
		return nil, err
	}
	secure := tls.Client(conn, tlsfiles.ForHost(config, host))
	ctx, stop := context.WithTimeout(ctx, 5*time.Second)
	defer stop()
	if err := secure.HandshakeContext(ctx); err != nil {
		conn.Close()
		return nil, err
	}
	return secure, nil
}
