package memory

import (
	"context"

	"github.com/leasekit/locker/driver"
)

// Check implements driver.Checker. There is one thing to say.
func (c *conn) Check(context.Context) ([]driver.Finding, error) {
	return []driver.Finding{{
		Check: "scope", Severity: driver.Note, Detail: "locks are in the memory of one process, and nobody else sees them",
		Advice: "choose another backend for anything but tests and a single process",
	}}, nil
}
