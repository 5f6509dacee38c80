package testserver

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/leasekit/locker/internal/testserver/images"
)

// errBusy says that somebody else holds a lock that was only tried.
var errBusy = errors.New("held by another test")

// A heldFile is a lock on a file between processes; the kernel frees it when its process dies.
type heldFile struct {
	file *os.File
}

// lockFile takes the lock called name, exclusively or together with others. It waits until ctx ends.
func lockFile(ctx context.Context, name string, exclusive bool) (*heldFile, error) {
	for {
		h, err := tryLockFile(name, exclusive)
		if !errors.Is(err, errBusy) {
			return h, err
		}
		select {
		case <-time.After(20 * time.Millisecond):
		case <-ctx.Done():
			return nil, fmt.Errorf("testserver: waiting for the lock %s, held by %s: %w", name, holder(name), ctx.Err())
		}
	}
}

func lockPath(name string) string {
	return filepath.Join(images.CacheDir(), "locks", project()+"-"+name)
}

// tryLockFile is lockFile without waiting: errBusy.
func tryLockFile(name string, exclusive bool) (*heldFile, error) {
	path := lockPath(name)
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return nil, err
	}
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o644)
	if err != nil {
		return nil, err
	}
	if err := flock(f, exclusive); err != nil {
		f.Close()
		return nil, err
	}
	if exclusive { // says who it is, for those whose wait runs out
		f.Truncate(0)
		fmt.Fprintf(f, "%s (process %d)", filepath.Base(os.Args[0]), os.Getpid())
	}
	return &heldFile{f}, nil
}

// Close frees the lock. The file stays: removing it would let two processes lock two files of one name.
func (h *heldFile) Close() error { return h.file.Close() }

func holder(name string) string {
	text, err := os.ReadFile(lockPath(name))
	if err != nil || len(text) == 0 {
		return "unknown"
	}
	return strings.TrimSpace(string(text))
}
