//go:build linux || darwin

package file

import (
	"errors"
	"fmt"

	"golang.org/x/sys/unix"

	"github.com/leasekit/locker/driver"
)

// classify makes answers of the errors that somebody has to change something about. Every other one, such as a full
// disk or too many open files, stays an unknown: nothing is locked, and it may pass.
func classify(err error) error {
	switch {
	case err == nil || driver.IsAnswer(err):
		return err
	case errors.Is(err, unix.EACCES), errors.Is(err, unix.EPERM), errors.Is(err, unix.EROFS):
		return fmt.Errorf("%w: %w", driver.ErrDenied, err)
	case errors.Is(err, unix.ENOTDIR), errors.Is(err, unix.ELOOP), errors.Is(err, unix.ENAMETOOLONG):
		return fmt.Errorf("%w: %w", driver.ErrConfig, err)
	}
	return err
}

// retry calls f again as long as it is interrupted by a signal.
func retry(f func() error) error {
	for {
		if err := f(); err != unix.EINTR {
			return err
		}
	}
}
