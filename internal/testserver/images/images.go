// Package images knows the container images that the test servers run from: the official ones and,
// where these cannot be pulled, stand-ins that this package builds from the Debian distribution's
// packages and from Go modules.
//
// A stand-in is tagged with a hash of everything in this repository that it is made of, so an image
// that is already there is known to be the right one without building anything, and clones of
// different versions share one Docker daemon without getting in each other's way.
package images

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
)

// Image is one image that servers run from.
type Image struct {
	Name     string // of the stand-in: locker-test/Name
	Variable string // of the environment and of docker-compose.yml; its value replaces the image
	Official string // the compose file's default; empty if there is none

	dir    string   // of the Dockerfile, under testservers/images
	suite  string   // Debian suite of the base image; empty: made from a Go module
	args   []string // build arguments of the Dockerfile
	module string   // Go module under testservers
	tools  []string // "BINARY=PACKAGE" that are built from the module
}

// All are the images, those of the base group first and the slowest to build last.
var All = []*Image{
	{Name: "redis", Variable: "REDIS_IMAGE", Official: "redis:7.2", dir: "redis", suite: "bookworm"},
	{Name: "zookeeper", Variable: "ZOOKEEPER_IMAGE", Official: "zookeeper:3.8", dir: "zookeeper", suite: "bookworm"},
	{Name: "etcd", Variable: "ETCD_IMAGE", Official: "gcr.io/etcd-development/etcd:v3.6.5", dir: "etcd", module: "etcd",
		tools: []string{"etcd=go.etcd.io/etcd/server/v3", "etcdctl=go.etcd.io/etcd/etcdctl/v3"}},
	{Name: "consul", Variable: "CONSUL_IMAGE", Official: "hashicorp/consul:1.21", dir: "consul", module: "consul",
		tools: []string{"consul=github.com/hashicorp/consul"}},
	{Name: "tools", Variable: "TOOLS_IMAGE", dir: "tools", suite: "bookworm"},
	{Name: "postgres", Variable: "POSTGRES_IMAGE", Official: "postgres:17", dir: "postgres", suite: "bookworm"},
	{Name: "mariadb", Variable: "MARIADB_IMAGE", Official: "mariadb:11.4", dir: "mariadb", suite: "bookworm"},
	{Name: "valkey", Variable: "VALKEY_IMAGE", Official: "valkey/valkey:8.1", dir: "valkey", suite: "trixie"},
	{Name: "redis8", Variable: "REDIS8_IMAGE", Official: "redis:8.0", dir: "redis", suite: "trixie",
		args: []string{"MALLOC=libmimalloc3"}},
	{Name: "zookeeper39", Variable: "ZOOKEEPER39_IMAGE", Official: "zookeeper:3.9", dir: "zookeeper", suite: "trixie",
		args: []string{"JRE=openjdk-21-jre-headless"}},
}

// ByName returns the image called name, or nil.
func ByName(name string) *Image {
	i := slices.IndexFunc(All, func(im *Image) bool { return im.Name == name })
	if i < 0 {
		return nil
	}
	return All[i]
}

// Modes of choosing between official images and stand-ins: the values of LOCKER_TEST_IMAGES.
const (
	Auto     = "auto"     // the default: official, else stand-in, whichever is there or can be had first
	Official = "official" // never a stand-in
	StandIn  = "standin"  // never an official image, and no try to pull one
)

// Mode is the value of LOCKER_TEST_IMAGES.
func Mode() string {
	if m := os.Getenv("LOCKER_TEST_IMAGES"); m != "" {
		return m
	}
	return Auto
}

// Set resolves images against what the Docker daemon has.
type Set struct {
	root  string // of the repository
	local map[string]bool
}

// Load asks the Docker daemon which images it has. root is the repository's root.
func Load(ctx context.Context, root string) (*Set, error) {
	out, err := exec.CommandContext(ctx, "docker", "image", "ls", "--format", "{{.Repository}}:{{.Tag}}").Output()
	if err != nil {
		return nil, fmt.Errorf("images: docker image ls: %w", err)
	}
	s := &Set{root: root, local: make(map[string]bool)}
	for line := range strings.Lines(string(out)) {
		s.local[strings.TrimSpace(line)] = true
	}
	return s, nil
}

// Ref returns the reference that im is to be run by, and whether the daemon has it already.
func (s *Set) Ref(im *Image) (ref string, present bool, err error) {
	if v := os.Getenv(im.Variable); v != "" {
		return v, s.Has(v), nil
	}
	own, err := s.Tag(im)
	if err != nil {
		return "", false, err
	}
	switch {
	case im.Official == "" || Mode() == StandIn:
		return own, s.local[own], nil
	case Mode() == Official || s.local[im.Official] || !s.local[own]:
		return im.Official, s.local[im.Official], nil
	}
	return own, true, nil
}

// Has reports whether the daemon has the image ref.
func (s *Set) Has(ref string) bool {
	return s.local[ref] || s.local[ref+":latest"]
}

// Environ returns "VARIABLE=REFERENCE" of every image, for the compose file.
func (s *Set) Environ() ([]string, error) {
	var env []string
	for _, im := range All {
		ref, _, err := s.Ref(im)
		if err != nil {
			return nil, err
		}
		env = append(env, im.Variable+"="+ref)
	}
	return env, nil
}

// Tag returns the stand-in's own reference, whether it exists or not.
func (s *Set) Tag(im *Image) (string, error) {
	h := sha256.New()
	fmt.Fprintln(h, im.suite, im.args, im.tools)
	dirs := []string{filepath.Join("testservers", "images", im.dir)}
	if im.suite != "" {
		dirs = append(dirs, filepath.Join("testservers", "images", "base.sh"))
	}
	if im.module != "" {
		dirs = append(dirs, filepath.Join("testservers", im.module))
	}
	for _, d := range dirs {
		err := filepath.WalkDir(filepath.Join(s.root, d), func(path string, e fs.DirEntry, err error) error {
			if err != nil || e.IsDir() {
				return err
			}
			data, err := os.ReadFile(path)
			if err != nil {
				return err
			}
			rel, err := filepath.Rel(s.root, path)
			fmt.Fprintf(h, "%s %d\n%s", filepath.ToSlash(rel), len(data), data)
			return err
		})
		if err != nil {
			return "", fmt.Errorf("images: %w", err)
		}
	}
	return "locker-test/" + im.Name + ":" + hex.EncodeToString(h.Sum(nil))[:12], nil
}

// CacheDir is where what was built is kept between clones of the repository: LOCKER_TEST_CACHE, else
// locker-test in the user's cache directory.
func CacheDir() string {
	if d := os.Getenv("LOCKER_TEST_CACHE"); d != "" {
		return d
	}
	if d := os.Getenv("XDG_CACHE_HOME"); d != "" {
		return filepath.Join(d, "locker-test")
	}
	if home, err := os.UserHomeDir(); err == nil {
		return filepath.Join(home, ".cache", "locker-test")
	}
	return filepath.Join(os.TempDir(), "locker-test")
}
