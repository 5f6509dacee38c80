package testserver

import (
	"context"
	"crypto/sha1"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
)

// probePostgres begins to log in. The server asks for the password of a user only when it takes
// connections; before, it says that it is starting up.
func probePostgres(ctx context.Context, t target) error {
	c, done, err := t.dial(ctx)
	if err != nil {
		return err
	}
	defer done()
	params := "user\x00" + t.username + "\x00database\x00" + t.username + "\x00\x00"
	msg := binary.BigEndian.AppendUint32(nil, uint32(8+len(params)))
	msg = binary.BigEndian.AppendUint32(msg, 3<<16) // protocol 3.0
	if _, err := c.Write(append(msg, params...)); err != nil {
		return err
	}
	head := make([]byte, 5)
	if _, err := io.ReadFull(c, head); err != nil {
		return err
	}
	if head[0] != 'R' {
		text := make([]byte, min(binary.BigEndian.Uint32(head[1:])-4, 1000))
		io.ReadFull(c, text)
		return fmt.Errorf("postgres: %q", text)
	}
	return nil
}

// probeMariaDB logs in, since the server greets before its first user is there.
func probeMariaDB(ctx context.Context, t target) error {
	c, done, err := t.dial(ctx)
	if err != nil {
		return err
	}
	defer done()
	greeting, err := mysqlPacket(c)
	if err != nil {
		return err
	}
	// version, 10 first, is a string; then 4 bytes of connection id, 8 of the nonce, 10 of other things
	// with 8 and 10 reserved, and the other 12 of the nonce.
	end := 1
	for end < len(greeting) && greeting[end] != 0 {
		end++
	}
	if greeting[0] != 10 || len(greeting) < end+1+4+8+1+18+12 {
		return fmt.Errorf("mariadb: %q", greeting)
	}
	rest := greeting[end+1+4:]
	nonce := append(append([]byte{}, rest[:8]...), rest[8+1+18:8+1+18+12]...)

	const longPassword, connectWithDB, protocol41, secureConnection, pluginAuth = 1, 1 << 3, 1 << 9, 1 << 15, 1 << 19
	msg := binary.LittleEndian.AppendUint32(nil, longPassword|connectWithDB|protocol41|secureConnection|pluginAuth)
	msg = binary.LittleEndian.AppendUint32(msg, 1<<24-1) // largest packet
	msg = append(msg, 45)                                // utf8mb4
	msg = append(msg, make([]byte, 23)...)
	msg = append(msg, t.username+"\x00"...)
	msg = append(msg, 20)
	msg = append(msg, nativePassword(t.password, nonce)...)
	msg = append(msg, t.username+"\x00mysql_native_password\x00"...)
	head := []byte{byte(len(msg)), byte(len(msg) >> 8), 0, 1}
	if _, err := c.Write(append(head, msg...)); err != nil {
		return err
	}
	reply, err := mysqlPacket(c)
	if err != nil {
		return err
	}
	if reply[0] != 0 {
		return fmt.Errorf("mariadb: %q", reply)
	}
	return nil
}

// nativePassword is SHA1(password) XOR SHA1(nonce + SHA1(SHA1(password))).
func nativePassword(password string, nonce []byte) []byte {
	once := sha1.Sum([]byte(password))
	twice := sha1.Sum(once[:])
	mask := sha1.Sum(append(append([]byte{}, nonce...), twice[:]...))
	for i := range once {
		once[i] ^= mask[i]
	}
	return once[:]
}

func mysqlPacket(r io.Reader) ([]byte, error) {
	head := make([]byte, 4)
	if _, err := io.ReadFull(r, head); err != nil {
		return nil, err
	}
	body := make([]byte, int(head[0])|int(head[1])<<8|int(head[2])<<16)
	if _, err := io.ReadFull(r, body); err != nil {
		return nil, err
	}
	if len(body) == 0 {
		return nil, errors.New("mariadb: empty packet")
	}
	return body, nil
}
