package redis

import (
	"strings"

	"github.com/redis/go-redis/v9"
)

// slots is how many parts a cluster divides its keys into.
const slots = 16384

// slotOf returns a key's slot: CRC-16 (XMODEM) of the hash tag, or of the key if it has none.
func slotOf(key string) int {
	if _, after, ok := strings.Cut(key, "{"); ok {
		if tag, _, ok := strings.Cut(after, "}"); ok && tag != "" {
			key = tag
		}
	}
	var crc uint16
	for i := range len(key) {
		crc = crc<<8 ^ crcTable[byte(crc>>8)^key[i]]
	}
	return int(crc % slots)
}

var crcTable = func() (table [256]uint16) {
	for i := range table {
		crc := uint16(i) << 8
		for range 8 {
			carry := crc&0x8000 != 0
			if crc <<= 1; carry {
				crc ^= 0x1021
			}
		}
		table[i] = crc
	}
	return table
}()

// commandSlot returns the slot of a command's first key, or -1 if it has none. All keys of a script are in one slot.
func commandSlot(cmd redis.Cmder) int {
	at, args := 1, cmd.Args()
	switch cmd.Name() {
	case "eval", "evalsha":
		at = 3
	case "get", "pttl", "exists":
	default:
		return -1
	}
	if at >= len(args) {
		return -1
	}
	key, ok := args[at].(string)
	if !ok {
		return -1
	}
	return slotOf(key)
}
