package file

import (
	"strings"

	"github.com/leasekit/locker/driver"
)

// maxComponent is the length of a file name up to which an encoded name stays in one piece. File systems allow 255
// bytes; the difference is room for what is put around it.
const maxComponent = 240

// The names of all files but the locked ones begin with a dot, which no encoded name does.
const (
	counterSuffix   = ".token"
	temporarySuffix = ".new"
	directorySuffix = ".d"
)

// spelling says which runes stand for themselves in the file names of a directory.
type spelling struct {
	narrow bool // the file system may take two spellings for one
}

// encode returns the directories below the lock directory, mostly none, and the file name of a name's lock. Different
// names give different paths, none of which is a directory of another or one of the driver's own files.
func (s spelling) encode(name string) (dirs []string, base string) {
	e := driver.EncodeName(name, s.short)
	if len(e) <= maxComponent {
		return nil, e
	}
	// Here a piece could begin with any dot, so that all of them are encoded.
	e = driver.EncodeName(name, s.long)
	for ; len(e) > maxComponent; e = e[maxComponent:] {
		dirs = append(dirs, "."+e[:maxComponent]+directorySuffix)
	}
	return dirs, e
}

// decode reverses encode. It reports false for a path that encode never returns.
func (s spelling) decode(dirs []string, base string) (name string, ok bool) {
	var b strings.Builder
	for _, d := range dirs {
		piece, ok := piece(d)
		if !ok {
			return "", false
		}
		b.WriteString(piece)
	}
	b.WriteString(base)
	safe := s.short
	if len(dirs) > 0 {
		safe = s.long
	}
	name, ok = driver.DecodeName(b.String(), safe)
	if !ok {
		return "", false
	}
	wantDirs, wantBase := s.encode(name)
	return name, len(wantDirs) == len(dirs) && wantBase == base
}

// piece returns the part of an encoded name that a directory stands for.
func piece(dir string) (string, bool) {
	p, ok := strings.CutSuffix(dir, directorySuffix)
	if !ok || len(p) != maxComponent+1 || p[0] != '.' {
		return "", false
	}
	return p[1:], true
}

// short is the safe set of names that stay in one piece.
func (s spelling) short(offset int, r rune) bool {
	return s.long(offset, r) || r == '.' && offset > 0
}

// long is the safe set of names that are split into pieces.
func (s spelling) long(_ int, r rune) bool {
	switch {
	case r == '/' || r == '.' || r < ' ' || r == 0x7f:
		return false
	case s.narrow:
		return r < 0x80 && !('A' <= r && r <= 'Z')
	}
	return !(0x80 <= r && r < 0xa0) // C1 control characters, which a terminal may obey
}

// counterName returns the name of the file beside a lock that holds its token and holder.
func counterName(base string) string { return "." + base + counterSuffix }
