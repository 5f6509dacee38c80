package consul

import (
	"bytes"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"
)

// proxy stands between a Conn and the server, notes requests, and does what hook says with each.
type proxy struct {
	server *httptest.Server

	mu   sync.Mutex
	log  []seenRequest
	hook func(r seenRequest) action

	open, most atomic.Int32 // connections from clients
}

type seenRequest struct {
	method, path, query, body string
	token, auth               string
}

// action is what a hook wants.
type action struct {
	status  int             // answer this and don't forward
	drop    bool            // forward, and drop the connection instead of answering
	forward <-chan struct{} // forward only then, although the client may have gone
	done    chan<- struct{} // closed once the server has answered
}

func (r seenRequest) isGrant() bool { return r.path == "/v1/txn" && strings.Contains(r.body, `"lock"`) }
func (r seenRequest) isWatch() bool { return strings.HasPrefix(r.path, "/v1/kv/") }

func newProxy(t testing.TB, addr string) *proxy {
	p := &proxy{}
	target, err := url.Parse("http://" + addr)
	require.NoError(t, err)
	forward := httputil.NewSingleHostReverseProxy(target)
	forward.ErrorHandler = func(w http.ResponseWriter, r *http.Request, err error) { panic(http.ErrAbortHandler) }
	p.server = httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		seen := seenRequest{r.Method, r.URL.Path, r.URL.RawQuery, string(body),
			r.Header.Get("X-Consul-Token"), r.Header.Get("Authorization")}
		p.mu.Lock()
		p.log = append(p.log, seen)
		hook := p.hook
		p.mu.Unlock()
		var a action
		if hook != nil {
			a = hook(seen)
		}
		if a.status != 0 {
			w.WriteHeader(a.status)
			return
		}
		r.Body = io.NopCloser(bytes.NewReader(body))
		if a.forward == nil && !a.drop {
			forward.ServeHTTP(w, r)
			return
		}
		if a.forward != nil {
			<-a.forward
		}
		again, err := http.NewRequest(r.Method, "http://"+addr+r.URL.RequestURI(), bytes.NewReader(body))
		if err == nil {
			again.Header = r.Header
			resp, err := http.DefaultClient.Do(again)
			if err == nil {
				io.Copy(io.Discard, resp.Body)
				resp.Body.Close()
			}
		}
		if a.done != nil {
			close(a.done)
		}
		panic(http.ErrAbortHandler)
	}))
	p.server.Config.ConnState = func(_ net.Conn, state http.ConnState) {
		switch state {
		case http.StateNew:
			if n := p.open.Add(1); n > p.most.Load() {
				p.most.Store(n)
			}
		case http.StateClosed, http.StateHijacked:
			p.open.Add(-1)
		}
	}
	p.server.Start()
	t.Cleanup(p.server.Close)
	return p
}

func (p *proxy) addr() string { return p.server.Listener.Addr().String() }

// set makes f decide about all further requests.
func (p *proxy) set(f func(r seenRequest) action) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.hook = f
}

// requests returns what was seen since the last call.
func (p *proxy) requests() []seenRequest {
	p.mu.Lock()
	defer p.mu.Unlock()
	log := p.log
	p.log = nil
	return log
}
