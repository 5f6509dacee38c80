package migrate

import (
	"context"

	"github.com/leasekit/locker/driver"
)

// Check implements driver.Checker with the findings of both sides.
func (c *conn) Check(ctx context.Context) ([]driver.Finding, error) {
	var all []driver.Finding
	for _, s := range c.sides {
		check, ok := s.conn.(driver.Checker)
		if !ok {
			continue
		}
		findings, err := check.Check(ctx)
		if err != nil {
			return nil, s.said(err)
		}
		for _, f := range findings {
			f.Check = s.role + " " + f.Check
			all = append(all, f)
		}
	}
	return all, nil
}
