package driver

import (
	"fmt"
	"strings"
	"unicode/utf8"
)

// MaxNameLen is the greatest length of a name in bytes.
const MaxNameLen = 512

// CheckName returns an error that matches ErrInvalidName unless name is a non-empty, valid UTF-8 string of at most
// MaxNameLen bytes. It is the one rule for all backends; the engine applies it before it calls a driver.
func CheckName(name string) error {
	switch {
	case name == "":
		return fmt.Errorf("%w: it is empty", ErrInvalidName)
	case len(name) > MaxNameLen:
		return fmt.Errorf("%w: it has %d bytes, and %d are allowed", ErrInvalidName, len(name), MaxNameLen)
	case !utf8.ValidString(name):
		return fmt.Errorf("%w: it isn't valid UTF-8", ErrInvalidName)
	}
	return nil
}

const upperHex = "0123456789ABCDEF"

// EncodeName replaces each rune for which safe returns false by the percent-encoding of its UTF-8 bytes, as in RFC 3986
// with capital digits; the percent sign itself and bytes that aren't UTF-8 are always encoded. Different names give different encodings, and
// DecodeName reverses them. safe may look at the byte offset, for instance to refuse a leading dot.
func EncodeName(name string, safe func(offset int, r rune) bool) string {
	var b strings.Builder
	done := 0 // what was copied or encoded so far
	for i, size := 0, 0; i < len(name); i += size {
		var r rune
		r, size = utf8.DecodeRuneInString(name[i:])
		invalid := r == utf8.RuneError && size == 1
		if r != '%' && !invalid && safe(i, r) {
			continue
		}
		b.WriteString(name[done:i])
		done = i + size
		for _, c := range []byte(name[i:done]) {
			b.WriteByte('%')
			b.WriteByte(upperHex[c>>4])
			b.WriteByte(upperHex[c&15])
		}
	}
	if done == 0 {
		return name
	}
	b.WriteString(name[done:])
	return b.String()
}

// DecodeName reverses EncodeName. It reports false for a string that no valid name encodes to with the given safe set,
// such as an entry which somebody else put beside the locks.
func DecodeName(encoded string, safe func(offset int, r rune) bool) (name string, ok bool) {
	name, ok = percentDecode(encoded)
	if !ok || CheckName(name) != nil || EncodeName(name, safe) != encoded {
		return "", false
	}
	return name, true
}

// percentDecode decodes RFC 3986 percent-encoding. Every other character, the plus sign too, stands for itself.
func percentDecode(s string) (string, bool) {
	if !strings.Contains(s, "%") {
		return s, true
	}
	var b strings.Builder
	for i := 0; i < len(s); i++ {
		if s[i] != '%' {
			b.WriteByte(s[i])
			continue
		}
		if i+2 >= len(s) {
			return "", false
		}
		hi, lo := unhex(s[i+1]), unhex(s[i+2])
		if hi < 0 || lo < 0 {
			return "", false
		}
		b.WriteByte(byte(hi<<4 | lo))
		i += 2
	}
	return b.String(), true
}

func unhex(c byte) int {
	switch {
	case '0' <= c && c <= '9':
		return int(c - '0')
	case 'a' <= c && c <= 'f':
		return int(c-'a') + 10
	case 'A' <= c && c <= 'F':
		return int(c-'A') + 10
	}
	return -1
}
