package file

import (
	"path/filepath"
	"strings"

	"github.com/leasekit/locker/driver"
)

func init() { driver.Register(scheme, parse) }

// parse reads file:///DIRECTORY. There are no parameters of its own: the directory is the prefix.
func parse(u *driver.URL) (driver.Connector, error) {
	switch {
	case u.HasUser || len(u.Hosts) > 0:
		u.Errorf("there is no host: a directory is written with three slashes, file:///DIRECTORY")
	case u.Opaque || u.Path == "":
		u.Errorf("the directory is missing: file:///DIRECTORY")
	case strings.ContainsRune(u.Path, 0):
		u.Errorf("the directory's path contains a zero byte")
	}
	return &connector{dir: filepath.Clean(u.Path)}, nil
}
