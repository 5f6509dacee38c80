//go:build linux || darwin

package file

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"

	"golang.org/x/sys/unix"

	"github.com/leasekit/locker/driver"
)

// Check implements driver.Checker. It creates nothing: of a directory that is missing it looks at what is above.
func (c *conn) Check(ctx context.Context) (findings []driver.Finding, err error) {
	err = c.do(ctx, func() error {
		d, err := c.directory(false)
		switch {
		case errors.Is(err, fs.ErrNotExist):
			findings = c.checkMissing()
			return nil
		case driver.IsPermanent(err):
			findings = []driver.Finding{{Check: "directory", Severity: driver.Fail, Detail: err.Error(),
				Advice: "see the documentation of package file for what a directory of locks needs"}}
			return nil
		case err != nil:
			return err
		}
		fsys, err := checkFileSystem(d.file, c.statfs)
		if err != nil {
			return classify(err)
		}
		findings = d.findings(fsys)
		return nil
	})
	return findings, err
}

// checkMissing says whether the first lock could create the directory.
func (c *conn) checkMissing() []driver.Finding {
	parent := filepath.Dir(c.path)
	for unix.Access(parent, unix.F_OK) == unix.ENOENT && parent != "/" {
		parent = filepath.Dir(parent)
	}
	if err := unix.Access(parent, unix.W_OK|unix.X_OK); err != nil {
		return []driver.Finding{{Check: "directory", Severity: driver.Fail,
			Detail: fmt.Sprintf("%s is missing, and may not be created in %s: %v", c.path, parent, err),
			Advice: "create it for the users of its locks"}}
	}
	return []driver.Finding{{Check: "directory", Severity: driver.Note, Detail: c.path + " is missing; the first lock creates it"}}
}

// findings says what is known of a directory that is fit for locks.
func (d *directory) findings(fsys fileSystem) []driver.Finding {
	findings := []driver.Finding{{Check: "directory", Detail: d.file.Name() + " belongs to this user or root, and nobody else may replace its locks"}}
	if !d.private {
		findings[0].Severity = driver.Note
		findings[0].Detail = d.file.Name() + " is shared with a group, whose members can remove each other's locks"
		findings[0].Advice = "let only those be in the group who share the locks"
	}
	switch err := unix.Access(d.file.Name(), unix.W_OK|unix.X_OK); {
	case err == nil:
		findings = append(findings, driver.Finding{Check: "rights", Detail: "locks may be created in it"})
	default:
		findings = append(findings, driver.Finding{Check: "rights", Severity: driver.Fail,
			Detail: fmt.Sprintf("locks may not be created in it: %v", err), Advice: "let the user that locks write to it"})
	}
	f := driver.Finding{Check: "file system", Detail: fsys.name + ", which only this machine mounts"}
	switch fsys.name {
	case "tmpfs", "ramfs":
		f.Severity = driver.Note
		f.Detail += "; the tokens' counters are gone after a restart of the machine, and begin again with the clock"
	case "overlayfs":
		f.Severity = driver.Note
		f.Detail += "; in a container others see these locks only through a volume that they share"
	}
	return append(findings, f)
}
