package driver

import "testing"

// RegisterForTest registers a scheme until the test ends.
func RegisterForTest(t *testing.T, scheme string, parse func(*URL) (Connector, error)) {
	Register(scheme, parse)
	t.Cleanup(func() {
		registry.Lock()
		defer registry.Unlock()
		delete(registry.parse, scheme)
	})
}
