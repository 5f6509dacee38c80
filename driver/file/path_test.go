//go:build linux || darwin

package file

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/stretchr/testify/require"

	"github.com/leasekit/locker/driver"
)

// hazards are names that stand in each other's way if they are used as paths.
var hazards = []string{
	"a", "a/", "a/b", "a/b/c", "ab", "a.b", "a%2Fb", "a%b", "/", "//", "a//b", "/a", ".", "..", "...", "a/../b", ".a", "~",
	".a.token", ".a.token.new", "a.token", "-", "-rf", "*", "zookeeper", "file:///var/x", " ", "a b", "\x00", "\x01", "\n",
	"\x7f", "\u0085", "\ud7ff", "\u00e9", "e\u0301", "\U0001f512", "Job", "job", "JOB", "%", "%25", "\\", "a\\b", "con", "a:b",
	strings.Repeat("x", 200), strings.Repeat("x", 240), strings.Repeat("x", 241), strings.Repeat("x", 512),
	strings.Repeat(".", 240), strings.Repeat(".", 241), strings.Repeat(".", 512), strings.Repeat("/", 512),
	strings.Repeat("\U0001f512", 128), strings.Repeat("x", 240) + ".token", strings.Repeat("x", 240) + ".d",
	strings.Repeat("x", 239) + "é", strings.Repeat("x", 250) + "/" + strings.Repeat("x", 250),
	"." + strings.Repeat("x", 240) + ".d", strings.Repeat("x", 240) + "/" + "y",
}

func TestNAME01NAME03EveryNameHasItsOwnFile(t *testing.T) {
	for _, narrow := range []bool{false, true} {
		s := spelling{narrow: narrow}
		seen := make(map[string]string)
		for _, name := range hazards {
			dirs, base := s.encode(name)
			path := filepath.Join(append(dirs, base)...)
			if narrow {
				path = strings.ToLower(path)
			}
			require.Empty(t, seen[path], "%q", name)
			seen[path] = name
			for _, part := range append(dirs, base) {
				require.LessOrEqual(t, len(part), 251)
				require.NotContains(t, part, "/")
			}
			require.NotEqual(t, byte('.'), base[0])
			back, ok := s.decode(dirs, base)
			require.True(t, ok, "%q", name)
			require.Equal(t, name, back)
		}
	}
}

func TestNAME01NAME03NamesAreIndependent(t *testing.T) {
	dir := t.TempDir()
	a, b := connect(t, dir), connect(t, dir)
	holds := make([]driver.Hold, len(hazards))
	for i, name := range hazards {
		holds[i] = lock(t, a, name)
	}
	for i, r := range renew(a, holds...) {
		require.NoError(t, r.Err, "%q", hazards[i])
	}
	for i, name := range hazards {
		_, err := b.TryLock(t.Context(), request(name))
		require.ErrorIs(t, err, driver.ErrHeld, "%q", name)
		release(t, holds[i])
		release(t, lock(t, b, name))
	}
	entries, err := os.ReadDir(filepath.Dir(dir))
	require.NoError(t, err)
	require.Len(t, entries, 1, "nothing outside the directory")
}

func TestFamiliarNamesStayAsTheyAre(t *testing.T) {
	for _, name := range []string{"nightly", "backup.lock", "Db-1_x", "a b", "é", "x@host:1", "+"} {
		dirs, base := spelling{}.encode(name)
		require.Empty(t, dirs)
		require.Equal(t, name, base)
	}
	_, base := spelling{narrow: true}.encode("Job é")
	require.Equal(t, "%4Aob %C3%A9", base)
}

func FuzzPath(f *testing.F) {
	for _, name := range hazards {
		f.Add(name, name+".", false)
	}
	f.Fuzz(func(t *testing.T, a, b string, narrow bool) {
		s := spelling{narrow: narrow}
		path := func(name string) string {
			dirs, base := s.encode(name)
			back, ok := s.decode(dirs, base)
			if !ok || back != name {
				t.Fatalf("%q is %q, %q and comes back as %q, %v", name, dirs, base, back, ok)
			}
			return filepath.Join(append(dirs, base)...)
		}
		if driver.CheckName(a) != nil || driver.CheckName(b) != nil || !utf8.ValidString(a+b) {
			t.Skip()
		}
		if pa, pb := path(a), path(b); a != b && (pa == pb || narrow && strings.EqualFold(pa, pb) || strings.HasPrefix(pb, pa+"/")) {
			t.Fatalf("%q is %q and %q is %q", a, pa, b, pb)
		}
	})
}
