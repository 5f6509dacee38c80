package locker

import "fmt"

// Kind says what a lock may be used for.
type Kind uint8

const (
	// Efficiency is the kind of Redis and Redlock: two holders are possible when clocks jump, a server fails over or
	// evicts keys. It is good for not doing work twice, most of the time.
	Efficiency Kind = iota + 1
	// Correctness is the kind of etcd, ZooKeeper and Consul, whose grants are backed by consensus and whose tokens only
	// rise; and of memory and file within their one process or host. A holder that was paused can still believe for a
	// moment that it holds the name: see Lease.Token.
	Correctness
)

// String returns "efficiency" or "correctness".
func (k Kind) String() string {
	switch k {
	case Efficiency:
		return "efficiency"
	case Correctness:
		return "correctness"
	}
	return fmt.Sprintf("Kind(%d)", uint8(k))
}

// MarshalText returns what String returns, and an error if k is neither kind.
func (k Kind) MarshalText() ([]byte, error) {
	if k != Efficiency && k != Correctness {
		return nil, fmt.Errorf("%w: %v is neither efficiency nor correctness", ErrConfig, k)
	}
	return []byte(k.String()), nil
}

// UnmarshalText accepts "efficiency" and "correctness".
func (k *Kind) UnmarshalText(text []byte) error {
	switch string(text) {
	case "efficiency":
		*k = Efficiency
	case "correctness":
		*k = Correctness
	default:
		return fmt.Errorf("%w: %q is neither efficiency nor correctness", ErrConfig, text)
	}
	return nil
}
