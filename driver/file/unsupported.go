//go:build !linux && !darwin

package file

import (
	"context"
	"fmt"
	"runtime"

	"github.com/leasekit/locker/driver"
)

// Connect fails: the promises of this driver were not worked out for other systems.
func (c *connector) Connect(context.Context, driver.Config) (driver.Conn, error) {
	return nil, fmt.Errorf("%w: locks in files are not supported on %s", driver.ErrConfig, runtime.GOOS)
}
