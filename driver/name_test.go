package driver_test

import (
	"errors"
	"strings"
	"testing"
	"unicode"
	"unicode/utf8"

	"github.com/leasekit/locker/driver"
)

func TestCheckName(t *testing.T) {
	for _, name := range []string{
		"a", "nightly", "a/b", "..", " ", "%", "\x00", "ключ", "🔒", "\ufffd",
		strings.Repeat("n", driver.MaxNameLen), strings.Repeat("🔒", driver.MaxNameLen/4),
	} {
		if err := driver.CheckName(name); err != nil {
			t.Errorf("%q: %v", name, err)
		}
	}
	for name, says := range map[string]string{
		"":                                       "empty",
		strings.Repeat("n", driver.MaxNameLen+1): "513 bytes, and 512",
		strings.Repeat("я", driver.MaxNameLen/2) + "n": "513 bytes",
		"\xff":         "UTF-8",
		"a\xc3":        "UTF-8",
		"\xed\xa0\x80": "UTF-8", // half of a surrogate pair
	} {
		err := driver.CheckName(name)
		if !errors.Is(err, driver.ErrInvalidName) || !errors.Is(err, driver.ErrConfig) || !strings.Contains(err.Error(), says) {
			t.Errorf("%q: %v", name, err)
		}
	}
}

// The safe sets of the tests: all, none, those of file names, letters only.
var safeSets = []func(int, rune) bool{
	func(int, rune) bool { return true },
	func(int, rune) bool { return false },
	func(i int, r rune) bool { return r != '/' && !unicode.IsControl(r) && !(i == 0 && r == '.') },
	func(_ int, r rune) bool { return 'a' <= r && r <= 'z' },
}

func TestEncodeName(t *testing.T) {
	for _, c := range []struct {
		name string
		want [4]string
	}{
		{"nightly", [4]string{"nightly", "%6E%69%67%68%74%6C%79", "nightly", "nightly"}},
		{"a/b", [4]string{"a/b", "%61%2F%62", "a%2Fb", "a%2Fb"}},
		{"..", [4]string{"..", "%2E%2E", "%2E.", "%2E%2E"}},
		{"a%2Fb", [4]string{"a%252Fb", "%61%25%32%46%62", "a%252Fb", "a%25%32%46b"}},
		{"ü", [4]string{"ü", "%C3%BC", "ü", "%C3%BC"}},
		{"\ufffd", [4]string{"\ufffd", "%EF%BF%BD", "\ufffd", "%EF%BF%BD"}},
	} {
		for i, safe := range safeSets {
			encoded := driver.EncodeName(c.name, safe)
			if encoded != c.want[i] {
				t.Errorf("%q with set %d: %q, want %q", c.name, i, encoded, c.want[i])
			}
			if back, ok := driver.DecodeName(encoded, safe); back != c.name || !ok {
				t.Errorf("%q with set %d comes back as %q, %v", c.name, i, back, ok)
			}
		}
	}
}

func TestDecodeNameRefusesForeignEntries(t *testing.T) {
	letters := safeSets[3]
	for _, entry := range []string{
		"", "%", "%4", "%4x", "a%", "%2f", "%61", "a/b", "a.lock", "%FF", "%00%", strings.Repeat("a", driver.MaxNameLen+1),
	} {
		if name, ok := driver.DecodeName(entry, letters); ok {
			t.Errorf("%q is taken for the entry of %q", entry, name)
		}
	}
}

func FuzzEncodeName(f *testing.F) {
	f.Add("nightly", "a%2Fb", uint64(0), uint64(0))
	f.Add("a/b", "a%2fb", ^uint64(0), ^uint64(0))
	f.Add("..", "%2E.", uint64(1)<<46, uint64(0))
	f.Add("\xff%", "\ufffd", uint64(5), uint64(7))
	f.Fuzz(func(t *testing.T, a, b string, low, high uint64) {
		// Two bit sets say which of ASCII is safe, the first bit also which of the rest, and the second whether a safe
		// rune is safe in the first place too.
		safe := func(i int, r rune) bool {
			switch {
			case i == 0 && low&2 != 0:
				return false
			case r < 64:
				return low>>r&1 != 0
			case r < 128:
				return high>>(r-64)&1 != 0
			}
			return low&1 != 0
		}
		encodedA, encodedB := driver.EncodeName(a, safe), driver.EncodeName(b, safe)
		if (encodedA == encodedB) != (a == b) {
			t.Errorf("%q and %q are encoded as %q and %q", a, b, encodedA, encodedB)
		}
		name, ok := driver.DecodeName(encodedA, safe)
		if valid := driver.CheckName(a) == nil; ok != valid || valid && name != a {
			t.Errorf("%q is encoded as %q and comes back as %q, %v", a, encodedA, name, ok)
		}
		if name, ok := driver.DecodeName(b, safe); ok && driver.EncodeName(name, safe) != b {
			t.Errorf("%q is taken for the entry of %q, which has another", b, name)
		}
		checkEncoded(t, encodedA, safe)
	})
}

// checkEncoded expects nothing but safe runes and %XX in an encoded name.
func checkEncoded(t *testing.T, encoded string, safe func(int, rune) bool) {
	t.Helper()
	const digits = "0123456789ABCDEF"
	if !utf8.ValidString(encoded) {
		t.Fatalf("%q isn't valid UTF-8", encoded)
	}
	offset := 0 // in the name
	for i := 0; i < len(encoded); {
		r, size := utf8.DecodeRuneInString(encoded[i:])
		switch {
		case r != '%' && safe(offset, r):
			i, offset = i+size, offset+size
		case r == '%' && i+2 < len(encoded) && strings.IndexByte(digits, encoded[i+1]) >= 0 && strings.IndexByte(digits, encoded[i+2]) >= 0:
			i, offset = i+3, offset+1
		default:
			t.Fatalf("%q holds %q at %d", encoded, r, i)
		}
	}
}
