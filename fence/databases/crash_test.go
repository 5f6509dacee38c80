package databases

import (
	"bufio"
	"context"
	"database/sql"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/leasekit/locker"
	"github.com/leasekit/locker/fence"
	"github.com/leasekit/locker/internal/testserver"
)

// crashVariable tells the test binary to be a process that crashes.
const crashVariable = "FENCE_TEST_CRASH"

func TestMain(m *testing.M) {
	if text := os.Getenv(crashVariable); text != "" {
		if err := hold(text); err != nil {
			fmt.Println(err)
			os.Exit(1)
		}
	}
	os.Exit(testserver.Main(m))
}

// holding is a transaction that has checked and written, and isn't committed.
type holding struct {
	Guard, Writes, Name string
	Token               locker.Token
	Value               string
	Level               sql.IsolationLevel
}

// crashing has another process check and write, and kills it before it commits.
func crashing(t *testing.T, d database, h holding) {
	t.Helper()
	text, err := json.Marshal(map[string]any{"dialect": d.dialect, "driver": d.driver, "dsn": d.dsn, "holding": h})
	require.NoError(t, err)
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), crashVariable+"="+string(text))
	out, err := cmd.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, cmd.Start())
	line, err := bufio.NewReader(out).ReadString('\n')
	require.NoError(t, cmd.Process.Kill())
	cmd.Wait()
	require.NoError(t, err)
	require.Equal(t, "written\n", line)
}

// hold is the process that will be killed.
func hold(text string) error {
	var what struct {
		Dialect     fence.Dialect
		Driver, DSN string
		Holding     holding
	}
	if err := json.Unmarshal([]byte(text), &what); err != nil {
		return err
	}
	db, err := sql.Open(what.Driver, what.DSN)
	if err != nil {
		return err
	}
	ctx, h := context.Background(), what.Holding
	guard, err := fence.NewSQL(what.Dialect, h.Guard)
	if err != nil {
		return err
	}
	tx, err := db.BeginTx(ctx, &sql.TxOptions{Isolation: h.Level})
	if err != nil {
		return err
	}
	if err := guard.Check(ctx, tx, h.Name, h.Token); err != nil {
		return err
	}
	d := database{dialect: what.Dialect}
	if _, err := tx.ExecContext(ctx, d.insert(h.Writes), h.Name, int64(h.Token), h.Value); err != nil {
		return err
	}
	fmt.Println("written")
	time.Sleep(time.Hour) // it is killed
	return nil
}
