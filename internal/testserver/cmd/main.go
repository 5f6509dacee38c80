// Command cmd prepares, starts and stops the test servers, and runs the tests with them: what the
// Makefile's targets call.
//
//	cmd images [NAME…]        make sure that the images are there
//	cmd up [GROUP…]           start the base group, and these profiles of docker-compose.yml
//	cmd down                  stop and remove all of them
//	cmd test [ARGUMENT…]      start what is missing, run the tests, stop what was started
package main

import (
	"context"
	"fmt"
	"os"
	"os/signal"
	"syscall"
	"time"

	"github.com/leasekit/locker/internal/testserver"
	"github.com/leasekit/locker/internal/testserver/images"
)

func main() {
	// SIGPIPE too: what was started is stopped also when the output goes to a pager that was left.
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM, syscall.SIGPIPE)
	defer stop()
	if len(os.Args) < 2 {
		fmt.Fprintln(os.Stderr, "usage: cmd images|up|down|test …")
		os.Exit(2)
	}
	var err error
	switch args := os.Args[2:]; os.Args[1] {
	case "images":
		err = makeImages(ctx, args)
	case "up":
		err = up(ctx, args)
	case "down":
		err = testserver.Down(ctx)
	case "test":
		err = test(ctx, args)
	default:
		err = fmt.Errorf("unknown command %q", os.Args[1])
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

// makeImages ensures the named images; all if none is named.
func makeImages(ctx context.Context, names []string) error {
	if err := testserver.DockerMissing(); err != nil {
		return err
	}
	root, err := testserver.Root()
	if err != nil {
		return err
	}
	unlock, err := testserver.LockImages(ctx)
	if err != nil {
		return err
	}
	defer unlock()
	set, err := images.Load(ctx, root)
	if err != nil {
		return err
	}
	b := &images.Builder{Set: set, Log: os.Stderr}
	wanted := images.All
	if len(names) > 0 {
		wanted = nil
		for _, n := range names {
			im := images.ByName(n)
			if im == nil {
				return fmt.Errorf("there is no image called %q", n)
			}
			wanted = append(wanted, im)
		}
	}
	for _, im := range wanted {
		if err := b.Ensure(ctx, im); err != nil {
			return err
		}
		ref, _, err := set.Ref(im)
		if err != nil {
			return err
		}
		fmt.Printf("%-12s %s\n", im.Name, ref)
	}
	return nil
}

// up starts the base group and the named profiles, and waits until all of these answer.
func up(ctx context.Context, groups []string) error {
	if err := testserver.DockerMissing(); err != nil {
		return err
	}
	start := time.Now()
	for _, g := range append([]string{""}, groups...) {
		names := testserver.Profile(g)
		if len(names) == 0 {
			return fmt.Errorf("there is no group called %q", g)
		}
		if err := testserver.UpReady(ctx, g, names); err != nil {
			return err
		}
	}
	fmt.Printf("all answer after %.1f s\n", time.Since(start).Seconds())
	return nil
}
