package images

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
)

// archive is where the cache keeps the image ref.
func archive(ref string) string {
	name := strings.ReplaceAll(strings.TrimPrefix(ref, "locker-test/"), ":", "-")
	return filepath.Join(CacheDir(), "images", name+".tar.zst")
}

// load gets ref out of the cache, and reports whether that succeeded. An archive that cannot be
// loaded counts as absent: the image is then built again and replaces it.
func (b *Builder) load(ctx context.Context, ref string) bool {
	if _, err := os.Stat(archive(ref)); err != nil {
		return false
	}
	if err := b.install(ctx, "zstd"); err != nil {
		b.logf("%v", err)
		return false
	}
	err := pipe(ctx, exec.CommandContext(ctx, "zstd", "-dcq", archive(ref)), exec.CommandContext(ctx, "docker", "load", "--quiet"))
	if err != nil {
		b.logf("%s: %v", archive(ref), err)
		return false
	}
	b.local[ref] = true
	return true
}

// save puts ref into the cache.
func (b *Builder) save(ctx context.Context, ref string) error {
	if err := b.install(ctx, "zstd"); err != nil {
		return err
	}
	file := archive(ref)
	if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
		return err
	}
	// Under another name first: a half-written archive must never be found by the next load.
	tmp := fmt.Sprintf("%s.%d", file, os.Getpid())
	defer os.Remove(tmp)
	err := pipe(ctx, exec.CommandContext(ctx, "docker", "save", ref), exec.CommandContext(ctx, "zstd", "-3", "-T0", "-qf", "-o", tmp))
	if err != nil {
		return fmt.Errorf("images: saving %s: %w", ref, err)
	}
	return os.Rename(tmp, file)
}

// pipe runs from | to.
func pipe(ctx context.Context, from, to *exec.Cmd) error {
	var fromErr, toErr strings.Builder
	from.Stderr, to.Stderr = &fromErr, &toErr
	out, err := from.StdoutPipe()
	if err != nil {
		return err
	}
	to.Stdin = out
	if err := from.Start(); err != nil {
		return err
	}
	err = to.Run()
	if err != nil {
		from.Process.Kill() // nobody reads it any more
		from.Wait()
		return fmt.Errorf("%s: %w: %s", to.Path, err, toErr.String())
	}
	if err := from.Wait(); err != nil {
		return fmt.Errorf("%s: %w: %s", from.Path, err, fromErr.String())
	}
	return ctx.Err()
}

func fileHash(path string) (string, error) {
	data, err := os.ReadFile(path)
	if err != nil {
		return "", err
	}
	sum := sha256.Sum256(data)
	return hex.EncodeToString(sum[:])[:12], nil
}

func copyFile(dst, src string) error {
	in, err := os.Open(src)
	if err != nil {
		return err
	}
	defer in.Close()
	out, err := os.OpenFile(dst, os.O_CREATE|os.O_WRONLY|os.O_TRUNC, 0o755)
	if err != nil {
		return err
	}
	if _, err := io.Copy(out, in); err != nil {
		out.Close()
		return err
	}
	return out.Close()
}
