package testserver

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"github.com/leasekit/locker/internal/testserver/images"
)

// project is the compose project. It is the same for every clone of the repository, since the ports
// and the names of the containers are, too.
func project() string {
	if p := os.Getenv("COMPOSE_PROJECT_NAME"); p != "" {
		return p
	}
	return "locker"
}

// docker runs the docker command and returns what it printed, without the last newline.
func docker(ctx context.Context, args ...string) (string, error) {
	cmd := exec.CommandContext(ctx, "docker", args...)
	cmd.WaitDelay = 5 * time.Second
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	if err := cmd.Run(); err != nil {
		return stdout.String(), fmt.Errorf("docker %s: %w: %s", args[0], err, strings.TrimSpace(stderr.String()))
	}
	return strings.TrimSuffix(stdout.String(), "\n"), nil
}

// dockerMissing is nil if there is a Docker daemon to talk to.
var dockerMissing = sync.OnceValue(func() error {
	if _, err := exec.LookPath("docker"); err != nil {
		return errors.New("there is no docker command")
	}
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	if _, err := docker(ctx, "version", "--format", "{{.Server.Version}}"); err != nil {
		return fmt.Errorf("there is no Docker daemon to talk to (%w)", err)
	}
	return nil
})

// DockerMissing says why no container can be started; nil if some can.
func DockerMissing() error { return dockerMissing() }

// Root is the root of the repository: the nearest folder above the working directory that has the
// compose file.
func Root() (string, error) {
	dir, err := os.Getwd()
	if err != nil {
		return "", err
	}
	for {
		_, err1 := os.Stat(filepath.Join(dir, "docker-compose.yml"))
		_, err2 := os.Stat(filepath.Join(dir, "testservers", "images"))
		if err1 == nil && err2 == nil {
			return dir, nil
		}
		up := filepath.Dir(dir)
		if up == dir {
			return "", errors.New("testserver: not inside the repository: no docker-compose.yml above")
		}
		dir = up
	}
}

// imageSet is what the Docker daemon had when it was first asked.
var imageSet = sync.OnceValues(func() (*images.Set, error) {
	root, err := Root()
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	return images.Load(ctx, root)
})

// imageFor returns a reference that the daemon has.
func imageFor(name string) (string, error) {
	set, err := imageSet()
	if err != nil {
		return "", err
	}
	ref, present, err := set.Ref(images.ByName(name))
	if err == nil && !present {
		err = fmt.Errorf("the image %s is not there (run: make images)", ref)
	}
	return ref, err
}

// states returns the state ("running", "paused", "exited", …) of the project's containers by service.
func states(ctx context.Context) (map[Name]string, error) {
	out, err := docker(ctx, "ps", "--all", "--filter", "label=com.docker.compose.project="+project(),
		"--format", `{{.Label "com.docker.compose.service"}} {{.State}}`)
	if err != nil {
		return nil, err
	}
	m := make(map[Name]string)
	for line := range strings.Lines(out) {
		if service, state, ok := strings.Cut(strings.TrimSpace(line), " "); ok {
			m[Name(service)] = state
		}
	}
	return m, nil
}

// compose runs docker-compose, or "docker compose" where that is what there is.
func compose(ctx context.Context, args ...string) error {
	root, err := Root()
	if err != nil {
		return err
	}
	set, err := imageSet()
	if err != nil {
		return err
	}
	env, err := set.Environ()
	if err != nil {
		return err
	}
	command, err := composeCommand()
	if err != nil {
		return err
	}
	if _, err := Certificates(); err != nil {
		return err
	}
	if err := os.MkdirAll(socketDir(), 0o777); err != nil {
		return err
	}
	os.Chmod(socketDir(), 0o777) // the server in the container may run as another user, whatever the umask
	args = append(command[1:], append([]string{"--file", filepath.Join(root, "docker-compose.yml"), "--project-name", project()}, args...)...)
	cmd := exec.CommandContext(ctx, command[0], args...)
	cmd.WaitDelay = 5 * time.Second
	cmd.Dir = root
	cmd.Env = append(os.Environ(), env...)
	// Who starts servers through this package polls them: the image's own checks would only cost time.
	cmd.Env = append(cmd.Env, "CHECK_INTERVAL=600s", "TLS_DIR="+tlsDir(), "SOCKET_DIR="+socketDir())
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("%s %s: %w\n%s", command[0], strings.Join(args, " "), err, out)
	}
	return nil
}

var composeCommand = sync.OnceValues(func() ([]string, error) {
	if exec.Command("docker", "compose", "version").Run() == nil {
		return []string{"docker", "compose"}, nil
	}
	if _, err := exec.LookPath("docker-compose"); err == nil {
		return []string{"docker-compose"}, nil
	}
	return nil, errors.New(`there is neither "docker compose" nor docker-compose`)
})

// socketDir is where redis-unix puts its socket.
func socketDir() string { return filepath.Join(images.CacheDir(), "sockets") }
