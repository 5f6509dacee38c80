package main

import (
	"context"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/leasekit/locker/internal/testserver"
)

// test starts what does not run of the base group, runs go test with args, and stops what was started
// meanwhile, by itself or by the tests, unless KEEP is set. Without args it runs all tests of all
// modules, with the race detector; args are those of go test.
func test(ctx context.Context, args []string) (err error) {
	root, err := testserver.Root()
	if err != nil {
		return err
	}
	if missing := testserver.DockerMissing(); missing != nil {
		fmt.Printf("No servers are started: %v.\nTests that need a server run only with one that LOCKER_TEST_REDIS=HOST:PORT (and so on) names.\n"+
			"All others run; what was skipped is listed at the end.\n\n", missing)
	} else {
		before, err := testserver.Running(ctx)
		if err != nil {
			return err
		}
		if os.Getenv("KEEP") == "" {
			defer func() {
				// Also when the tests were interrupted.
				ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 2*time.Minute)
				defer cancel()
				if e := testserver.StopSince(ctx, before); e != nil && err == nil {
					err = e
				}
			}()
		}
		if err := startBase(ctx); err != nil {
			return err
		}
	}

	whole := len(args) == 0
	if whole {
		args = []string{"./..."}
	}
	dirs := []string{root}
	if whole {
		if dirs, err = modules(root); err != nil {
			return err
		}
	}
	var sum summary
	failed := false
	for _, dir := range dirs {
		if dir != root {
			rel, _ := filepath.Rel(root, dir)
			fmt.Printf("\n# %s\n", rel)
		}
		ok, err := goTest(ctx, dir, args, &sum)
		if err != nil {
			return err
		}
		failed = failed || !ok
	}
	sum.print(os.Stdout)
	if failed {
		return fmt.Errorf("the tests failed")
	}
	return ctx.Err()
}

// startBase starts what does not answer of the base group. That an image cannot be had is said and is no
// error: LOCKER_TEST_REQUIRE decides which tests may be skipped.
func startBase(ctx context.Context) error {
	for _, name := range testserver.Profile("") {
		if os.Getenv("LOCKER_TEST_"+strings.ToUpper(string(name))) != "" {
			fmt.Printf("%s: the one that LOCKER_TEST_%s names\n", name, strings.ToUpper(string(name)))
		} else if err := testserver.UpReady(ctx, "", []testserver.Name{name}); err != nil {
			if ctx.Err() != nil {
				return err
			}
			fmt.Printf("%s does not run: %v\nTests that need it are skipped.\n", name, err)
		}
	}
	return nil
}

// modules returns the repository's modules that hold packages, its root first.
func modules(root string) ([]string, error) {
	var dirs []string
	err := filepath.WalkDir(root, func(path string, e fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if e.IsDir() && path != root && (strings.HasPrefix(e.Name(), ".") || e.Name() == "testdata") {
			return fs.SkipDir
		}
		if e.Name() == "go.mod" {
			dirs = append(dirs, filepath.Dir(path))
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	slices.Sort(dirs) // the root first: WalkDir meets bench/go.mod before go.mod
	// The modules under testservers only say which programs are built.
	var list []string
	for _, dir := range dirs {
		cmd := exec.Command("go", "list", "./...")
		cmd.Dir = dir
		if out, err := cmd.Output(); err != nil {
			return nil, fmt.Errorf("go list in %s: %w", dir, err)
		} else if len(out) > 0 {
			list = append(list, dir)
		}
	}
	return list, nil
}
