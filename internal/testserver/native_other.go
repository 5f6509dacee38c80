//go:build !unix

package testserver

import (
	"errors"
	"os"
)

func freeze(*os.Process, bool) error { return errors.ErrUnsupported }
