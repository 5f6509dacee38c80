package images

import (
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"
)

// Builder makes sure that images are there.
type Builder struct {
	*Set
	NoBuild bool      // report what would have to be built as an error
	Log     io.Writer // one line for each image that needed work, and the output of what fails

	unreachable map[string]bool // registries that did not answer
}

// Ensure makes im available to the Docker daemon: it is there, or it is pulled, or its stand-in is
// loaded from the cache, or that is built and put into the cache.
func (b *Builder) Ensure(ctx context.Context, im *Image) error {
	ref, present, err := b.Ref(im)
	if err != nil || present {
		return err
	}
	if os.Getenv(im.Variable) != "" || Mode() == Official {
		return b.pull(ctx, ref)
	}
	own, err := b.Tag(im)
	if err != nil {
		return err
	}
	if ref != own { // nothing is there yet, and an official image would do
		registry := "docker.io"
		if host, _, ok := strings.Cut(ref, "/"); ok && strings.Contains(host, ".") {
			registry = host
		}
		if !b.unreachable[registry] {
			if err := b.pull(ctx, ref); err == nil {
				return nil
			} else if ctx.Err() != nil {
				return err
			}
			if b.unreachable == nil {
				b.unreachable = make(map[string]bool)
			}
			b.unreachable[registry] = true
		}
	}
	return b.standIn(ctx, im, own)
}

func (b *Builder) pull(ctx context.Context, ref string) error {
	start := time.Now()
	if err := b.run(ctx, nil, "docker", "pull", "--quiet", ref); err != nil {
		return err
	}
	b.local[ref] = true
	b.logf("%s: pulled in %.1f s", ref, time.Since(start).Seconds())
	return nil
}

// standIn loads or builds im as ref.
func (b *Builder) standIn(ctx context.Context, im *Image, ref string) error {
	start := time.Now()
	if b.load(ctx, ref) {
		b.logf("%s: loaded from the cache in %.1f s", ref, time.Since(start).Seconds())
		return nil
	}
	if b.NoBuild {
		return fmt.Errorf("images: there is no image for %s here, nor can one be pulled; make images builds one (Debian, root)", im.Name)
	}
	if err := b.build(ctx, im, ref); err != nil {
		return fmt.Errorf("images: %s: %w", ref, err)
	}
	built := time.Since(start)
	if err := b.save(ctx, ref); err != nil {
		return err
	}
	b.local[ref] = true
	b.logf("%s: built in %.1f s, put into the cache in %.1f s", ref, built.Seconds(), (time.Since(start) - built).Seconds())
	return nil
}

func (b *Builder) build(ctx context.Context, im *Image, ref string) error {
	dir, err := os.MkdirTemp("", "locker-test-image-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	if err := os.CopyFS(dir, os.DirFS(filepath.Join(b.root, "testservers", "images", im.dir))); err != nil {
		return err
	}
	args := []string{"build", "--quiet", "--tag", ref}
	if im.module != "" {
		if err := b.binaries(ctx, im, dir); err != nil {
			return err
		}
	} else {
		base, err := b.base(ctx, im.suite)
		if err != nil {
			return err
		}
		args = append(args, "--build-arg", "BASE="+base)
	}
	for _, a := range im.args {
		args = append(args, "--build-arg", a)
	}
	return b.run(ctx, nil, "docker", append(args, dir)...)
}

// binaries puts the programs of a Go module into dir, from the cache if they are there.
func (b *Builder) binaries(ctx context.Context, im *Image, dir string) error {
	tag, err := b.Tag(im)
	if err != nil {
		return err
	}
	cache := filepath.Join(CacheDir(), "bin", strings.ReplaceAll(strings.TrimPrefix(tag, "locker-test/"), ":", "-"))
	if err := os.MkdirAll(cache, 0o755); err != nil {
		return err
	}
	for _, tool := range im.tools {
		name, pkg, _ := strings.Cut(tool, "=")
		bin := filepath.Join(cache, name)
		if _, err := os.Stat(bin); err != nil {
			tmp := bin + ".new"
			cmd := exec.CommandContext(ctx, "go", "build", "-trimpath", "-ldflags=-s -w", "-o", tmp, pkg)
			cmd.Dir = filepath.Join(b.root, "testservers", im.module)
			// Static, since the image holds nothing else; and the module stands for itself, whatever
			// flags or workspace the caller's environment has.
			cmd.Env = append(os.Environ(), "CGO_ENABLED=0", "GOFLAGS=-buildvcs=false", "GOWORK=off", "GOOS=linux")
			if out, err := cmd.CombinedOutput(); err != nil {
				return fmt.Errorf("go build %s: %w\n%s", pkg, err, out)
			}
			if err := os.Rename(tmp, bin); err != nil {
				return err
			}
		}
		if err := copyFile(filepath.Join(dir, name), bin); err != nil {
			return err
		}
	}
	return nil
}

// base returns a Debian base image of the suite, which takes root and mmdebstrap to make.
func (b *Builder) base(ctx context.Context, suite string) (string, error) {
	script := filepath.Join(b.root, "testservers", "images", "base.sh")
	sum, err := fileHash(script)
	if err != nil {
		return "", err
	}
	ref := "locker-test/base-" + suite + ":" + sum
	if b.local[ref] || b.load(ctx, ref) {
		return ref, nil
	}
	if err := b.install(ctx, "mmdebstrap"); err != nil {
		return "", err
	}
	start := time.Now()
	if err := b.run(ctx, nil, "sh", script, suite, ref); err != nil {
		return "", err
	}
	b.local[ref] = true
	b.logf("%s: made in %.1f s", ref, time.Since(start).Seconds())
	return ref, b.save(ctx, ref)
}

// install makes sure that a program is there, through the distribution's packages of the same name.
func (b *Builder) install(ctx context.Context, program string) error {
	if _, err := exec.LookPath(program); err == nil {
		return nil
	}
	if _, err := exec.LookPath("apt-get"); err != nil || os.Geteuid() != 0 {
		return fmt.Errorf("%s is missing: install it, or run this as root on Debian", program)
	}
	b.logf("installing %s", program)
	if err := b.run(ctx, nil, "apt-get", "update", "-qq"); err != nil {
		return err
	}
	return b.run(ctx, []string{"DEBIAN_FRONTEND=noninteractive"}, "apt-get", "install", "-y", "-qq", "--no-install-recommends", program)
}

// run runs a program and shows what it printed only if it fails.
func (b *Builder) run(ctx context.Context, env []string, name string, args ...string) error {
	cmd := exec.CommandContext(ctx, name, args...)
	cmd.Env = append(os.Environ(), env...)
	out, err := cmd.CombinedOutput()
	if err != nil {
		return fmt.Errorf("%s %s: %w\n%s", name, strings.Join(args, " "), err, out)
	}
	return nil
}

func (b *Builder) logf(format string, args ...any) {
	fmt.Fprintf(b.Log, format+"\n", args...)
}
