package images

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// tree copies what stand-ins are made of.
func tree(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	for _, sub := range []string{"images", "etcd", "consul"} {
		if err := os.CopyFS(filepath.Join(dir, "testservers", sub), os.DirFS(filepath.Join("../../../testservers", sub))); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

// TestTag changes each thing that an image is made of, and wants another tag for it alone.
func TestTag(t *testing.T) {
	for _, tt := range []struct {
		file    string
		changes []string
	}{
		{"images/redis/Dockerfile", []string{"redis", "redis8"}},
		{"images/zookeeper/docker-entrypoint.sh", []string{"zookeeper", "zookeeper39"}},
		{"images/etcd/Dockerfile", []string{"etcd"}},
		{"etcd/go.sum", []string{"etcd"}},
		{"consul/go.mod", []string{"consul"}},
		{"images/base.sh", []string{"redis", "zookeeper", "tools", "postgres", "mariadb", "valkey", "redis8", "zookeeper39"}},
	} {
		root := tree(t)
		s := &Set{root: root}
		before := make(map[string]string)
		for _, im := range All {
			tag, err := s.Tag(im)
			if err != nil {
				t.Fatal(err)
			}
			before[im.Name] = tag
		}
		path := filepath.Join(root, "testservers", tt.file)
		data, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, append(data, "\n# changed\n"...), 0o644); err != nil {
			t.Fatal(err)
		}
		var changed []string
		for _, im := range All {
			tag, err := s.Tag(im)
			if err != nil {
				t.Fatal(err)
			}
			if tag != before[im.Name] {
				changed = append(changed, im.Name)
			}
		}
		if got, want := strings.Join(changed, " "), strings.Join(tt.changes, " "); len(changed) != len(tt.changes) || got != want {
			t.Errorf("%s: changes %q, want %q", tt.file, got, want)
		}
	}
}

func TestRef(t *testing.T) {
	redis, tools := ByName("redis"), ByName("tools")
	own, err := (&Set{root: "../../.."}).Tag(redis)
	if err != nil {
		t.Fatal(err)
	}
	for _, tt := range []struct {
		name, mode, variable string
		local                []string
		ref                  string
		present              bool
	}{
		{"nothing there", Auto, "", nil, redis.Official, false},
		{"stand-in there", Auto, "", []string{own}, own, true},
		{"official there", Auto, "", []string{redis.Official}, redis.Official, true},
		{"both there", Auto, "", []string{own, redis.Official}, redis.Official, true},
		{"official only", Official, "", []string{own}, redis.Official, false},
		{"stand-in only", StandIn, "", []string{redis.Official}, own, false},
		{"variable", StandIn, "mine", []string{own, "mine:latest"}, "mine", true},
		{"variable, not there", Auto, "mine:1", []string{own}, "mine:1", false},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Setenv("LOCKER_TEST_IMAGES", tt.mode)
			t.Setenv("REDIS_IMAGE", tt.variable)
			s := &Set{root: "../../..", local: make(map[string]bool)}
			for _, l := range tt.local {
				s.local[l] = true
			}
			ref, present, err := s.Ref(redis)
			if err != nil || ref != tt.ref || present != tt.present {
				t.Errorf("got %s, %t, %v, want %s, %t", ref, present, err, tt.ref, tt.present)
			}
		})
	}
	t.Setenv("LOCKER_TEST_IMAGES", Official)
	t.Setenv("TOOLS_IMAGE", "")
	if ref, _, err := (&Set{root: "../../.."}).Ref(tools); err != nil || !strings.HasPrefix(ref, "locker-test/tools:") {
		t.Errorf("the tools have no official image, but got %s, %v", ref, err)
	}
}

// TestOfficial wants the compose file's defaults to be the ones that are known here.
func TestOfficial(t *testing.T) {
	text, err := os.ReadFile("../../../docker-compose.yml")
	if err != nil {
		t.Fatal(err)
	}
	for _, im := range All {
		if im.Official != "" && !strings.Contains(string(text), "${"+im.Variable+":-"+im.Official+"}") {
			t.Errorf("docker-compose.yml has no ${%s:-%s}", im.Variable, im.Official)
		}
	}
}

func TestCacheDir(t *testing.T) {
	t.Setenv("LOCKER_TEST_CACHE", "")
	t.Setenv("XDG_CACHE_HOME", "/x")
	if got := CacheDir(); got != filepath.Join("/x", "locker-test") {
		t.Error(got)
	}
	t.Setenv("LOCKER_TEST_CACHE", "/y")
	if got := CacheDir(); got != "/y" {
		t.Error(got)
	}
}
