package databases

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"math/rand/v2"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/go-sql-driver/mysql"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/stdlib"
	"github.com/stretchr/testify/require"
	"modernc.org/sqlite"
	sqlite3 "modernc.org/sqlite/lib"

	"github.com/leasekit/locker"
	"github.com/leasekit/locker/fence"
	"github.com/leasekit/locker/internal/testserver"
)

// database is a connection pool and what its SQL calls things.
type database struct {
	*sql.DB
	dialect fence.Dialect
	driver  string // of database/sql
	dsn     string
	auto    string // column type of a counter
	text    string
	again   func(error) bool // the database asks to try the transaction again
}

func postgres(t *testing.T, tracer pgx.QueryTracer) database {
	s := testserver.Need(t, testserver.Postgres)
	dsn := fmt.Sprintf("postgres://%s:%s@%s/locker?sslmode=disable", s.Username, s.Password, s.Addr)
	cfg, err := pgx.ParseConfig(dsn)
	require.NoError(t, err)
	cfg.Tracer = tracer
	db := stdlib.OpenDB(*cfg)
	t.Cleanup(func() { db.Close() })
	return database{db, fence.PostgreSQL, "pgx", dsn, "bigserial PRIMARY KEY", "text", func(err error) bool {
		pg, ok := errors.AsType[*pgconn.PgError](err)
		return ok && (pg.Code == "40001" || pg.Code == "40P01")
	}}
}

func mariadb(t *testing.T) database {
	s := testserver.Need(t, testserver.MariaDB)
	dsn := fmt.Sprintf("%s:%s@tcp(%s)/locker", s.Username, s.Password, s.Addr)
	db, err := sql.Open("mysql", dsn)
	require.NoError(t, err)
	t.Cleanup(func() { db.Close() })
	return database{db, fence.MySQL, "mysql", dsn, "bigint AUTO_INCREMENT PRIMARY KEY", "varbinary(600)", func(err error) bool {
		my, ok := errors.AsType[*mysql.MySQLError](err)
		return ok && (my.Number == 1213 || my.Number == 1205 || my.Number == 1020)
	}}
}

func openSQLite(t *testing.T) database {
	dsn := "file:" + filepath.Join(t.TempDir(), "db") + "?_pragma=busy_timeout(20000)&_pragma=journal_mode(WAL)"
	db, err := sql.Open("sqlite", dsn)
	require.NoError(t, err)
	t.Cleanup(func() { db.Close() })
	return database{db, fence.SQLite, "sqlite", dsn, "integer PRIMARY KEY AUTOINCREMENT", "text", func(err error) bool {
		lite, ok := errors.AsType[*sqlite.Error](err)
		return ok && lite.Code()&0xff == sqlite3.SQLITE_BUSY
	}}
}

func (d database) parameter(i int) string {
	if d.dialect == fence.MySQL {
		return "?"
	}
	return fmt.Sprintf("$%d", i)
}

func (d database) insert(writes string) string {
	return fmt.Sprintf("INSERT INTO %s (name, token, value) VALUES (%s, %s, %s)", writes, d.parameter(1), d.parameter(2), d.parameter(3))
}

func (d database) exec(t *testing.T, query string, args ...any) {
	t.Helper()
	_, err := d.ExecContext(t.Context(), query, args...)
	require.NoError(t, err, query)
}

// tables makes a fence and a table of writes, with names of their own.
func (d database) tables(t *testing.T) (guard, writes string) {
	t.Helper()
	suffix := fmt.Sprint(rand.Uint64())
	guard = "fence_" + suffix
	f, err := fence.NewSQL(d.dialect, guard)
	require.NoError(t, err)
	d.exec(t, f.Schema())
	writes = "writes_" + suffix
	d.exec(t, fmt.Sprintf("CREATE TABLE %s (id %s, name %s NOT NULL, token bigint NOT NULL, value %s NOT NULL)", writes, d.auto, d.text, d.text))
	t.Cleanup(func() {
		d.Exec("DROP TABLE " + guard)
		d.Exec("DROP TABLE " + writes)
	})
	return guard, writes
}

// resource writes under a guard, each time in a transaction of the given isolation level.
func (d database) resource(t *testing.T, level sql.IsolationLevel) resource {
	guard, writes := d.tables(t)
	f, err := fence.NewSQL(d.dialect, guard)
	require.NoError(t, err)
	insert := d.insert(writes)
	body := func(ctx context.Context, tx *sql.Tx, name string, token locker.Token, value string) error {
		if err := f.Check(ctx, tx, name, token); err != nil {
			return err
		}
		_, err := tx.ExecContext(ctx, insert, name, int64(token), value)
		return err
	}
	once := func(ctx context.Context, name string, token locker.Token, value string) error {
		tx, err := d.BeginTx(ctx, &sql.TxOptions{Isolation: level})
		if err != nil {
			return err
		}
		if err := body(ctx, tx, name, token, value); err != nil {
			tx.Rollback()
			return err
		}
		return tx.Commit()
	}
	return resource{
		write: func(ctx context.Context, name string, token locker.Token, value string) error {
			for {
				err := once(ctx, name, token, value)
				if err == nil || !d.again(err) {
					return err
				}
				time.Sleep(rand.N(5 * time.Millisecond))
			}
		},
		read: func(ctx context.Context, name string) (value string) {
			query := fmt.Sprintf("SELECT value FROM %s WHERE name = %s ORDER BY id DESC LIMIT 1", writes, d.parameter(1))
			require.NoError(t, d.QueryRowContext(ctx, query, name).Scan(&value))
			return value
		},
		log: func(ctx context.Context, name string) (tokens []locker.Token) {
			rows, err := d.QueryContext(ctx, fmt.Sprintf("SELECT token FROM %s WHERE name = %s ORDER BY id", writes, d.parameter(1)), name)
			require.NoError(t, err)
			defer rows.Close()
			for rows.Next() {
				var token int64
				require.NoError(t, rows.Scan(&token))
				tokens = append(tokens, locker.Token(token))
			}
			require.NoError(t, rows.Err())
			return tokens
		},
		abandon: func(ctx context.Context, name string, token locker.Token, value string, crash bool) {
			if crash {
				crashing(t, d, holding{guard, writes, name, token, value, level})
				return
			}
			tx, err := d.BeginTx(ctx, &sql.TxOptions{Isolation: level})
			require.NoError(t, err)
			require.NoError(t, body(ctx, tx, name, token, value))
			require.NoError(t, tx.Rollback())
		},
	}
}

// levels are all that the standard has.
var levels = []sql.IsolationLevel{sql.LevelReadUncommitted, sql.LevelReadCommitted, sql.LevelRepeatableRead, sql.LevelSerializable}

func TestPostgreSQL(t *testing.T) {
	statements := &counting{}
	d := postgres(t, statements)
	for _, level := range levels {
		t.Run(level.String(), func(t *testing.T) { guarded(t, d.resource(t, level)) })
	}
	t.Run("one statement", func(t *testing.T) { oneStatement(t, d, statements) })
	t.Run("pgx", func(t *testing.T) { withPgx(t, d) })
	tables(t, d)
}

func TestMariaDB(t *testing.T) {
	d := mariadb(t)
	for _, level := range levels {
		t.Run(level.String(), func(t *testing.T) { guarded(t, d.resource(t, level)) })
	}
	tables(t, d)
}

func TestSQLite(t *testing.T) {
	d := openSQLite(t)
	guarded(t, d.resource(t, sql.LevelSerializable)) // the only one that it has
	tables(t, d)
}

// tables tests what depends on tables and not on levels.
func tables(t *testing.T, d database) {
	t.Run("setup", func(t *testing.T) { setup(t, d) })
	t.Run("bad tokens", func(t *testing.T) { schemaRefusesBadTokens(t, d) })
	t.Run("own fence", func(t *testing.T) { ownFence(t, d) })
}

// A table that is missing or wrong is an error of its own sort, and nothing is written.
func setup(t *testing.T, d database) {
	table := fmt.Sprintf("other_%d", rand.Uint64())
	guard, err := fence.NewSQL(d.dialect, table)
	require.NoError(t, err)
	try := func() error {
		tx, err := d.BeginTx(t.Context(), nil)
		require.NoError(t, err)
		defer tx.Rollback()
		return guard.Check(t.Context(), tx, "a", 1)
	}
	err = try()
	require.ErrorIs(t, err, fence.ErrSetup)
	require.Contains(t, err.Error(), table)

	text := "text"
	if d.dialect == fence.MySQL {
		text = "varchar(20)"
	}
	d.exec(t, fmt.Sprintf("CREATE TABLE %s (name %s NOT NULL PRIMARY KEY, token %s NOT NULL)", table, strings.Replace(text, "text", "varchar(20)", 1), text))
	t.Cleanup(func() { d.Exec("DROP TABLE " + table) })
	err = try()
	require.ErrorIs(t, err, fence.ErrSetup, "a token column of texts compares 9 above 10")
	require.Contains(t, err.Error(), "bigint")
	var n int
	require.NoError(t, d.QueryRowContext(t.Context(), "SELECT count(*) FROM "+table).Scan(&n))
	require.Zero(t, n)

	// The schema is a statement for the program: it says so if it can't be executed twice.
	other, err := fence.NewSQL(d.dialect, table+"b")
	require.NoError(t, err)
	d.exec(t, other.Schema())
	t.Cleanup(func() { d.Exec("DROP TABLE " + table + "b") })
	_, err = d.ExecContext(t.Context(), other.Schema())
	require.Error(t, err)
}

// The table itself refuses what no lease can have, whoever writes.
func schemaRefusesBadTokens(t *testing.T, d database) {
	table := fmt.Sprintf("strict_%d", rand.Uint64())
	guard, err := fence.NewSQL(d.dialect, table)
	require.NoError(t, err)
	d.exec(t, guard.Schema())
	t.Cleanup(func() { d.Exec("DROP TABLE " + table) })
	for _, token := range []int64{0, -1} {
		_, err := d.ExecContext(t.Context(), fmt.Sprintf("INSERT INTO %s (name, token) VALUES ('a', %d)", table, token))
		require.Error(t, err, "token %d", token)
	}
}

// counting counts the statements that reach PostgreSQL.
type counting struct{ n atomic.Int64 }

func (c *counting) TraceQueryStart(ctx context.Context, _ *pgx.Conn, data pgx.TraceQueryStartData) context.Context {
	if !strings.HasPrefix(strings.ToLower(data.SQL), "begin") && !strings.HasPrefix(strings.ToLower(data.SQL), "commit") {
		c.n.Add(1)
	}
	return ctx
}
func (c *counting) TraceQueryEnd(context.Context, *pgx.Conn, pgx.TraceQueryEndData) {}

// The guard is one statement in the transaction, once it knows the table.
func oneStatement(t *testing.T, d database, c *counting) {
	r := d.resource(t, sql.LevelDefault)
	require.NoError(t, r.write(t.Context(), "a", 1, "first")) // looks at the table as well
	c.n.Store(0)
	for i := range 10 {
		require.NoError(t, r.write(t.Context(), "a", locker.Token(i+1), "x"))
	}
	require.EqualValues(t, 2*10, c.n.Load(), "the write and one more")
}

// Statement is for clients that aren't database/sql, such as pgx itself.
func withPgx(t *testing.T, d database) {
	table, writes := d.tables(t)
	guard, err := fence.NewSQL(fence.PostgreSQL, table)
	require.NoError(t, err)
	c, err := pgx.Connect(t.Context(), d.dsn)
	require.NoError(t, err)
	t.Cleanup(func() { c.Close(context.Background()) })
	write := func(token int64, value string) (stale bool) {
		tx, err := c.Begin(t.Context())
		require.NoError(t, err)
		defer tx.Rollback(t.Context())
		tag, err := tx.Exec(t.Context(), guard.Statement(), "job", token)
		require.NoError(t, err)
		if tag.RowsAffected() == 0 {
			return true
		}
		_, err = tx.Exec(t.Context(), "INSERT INTO "+writes+" (name, token, value) VALUES ($1, $2, $3)", "job", token, value)
		require.NoError(t, err)
		require.NoError(t, tx.Commit(t.Context()))
		return false
	}
	require.False(t, write(33, "A"))
	require.False(t, write(34, "B"))
	require.True(t, write(33, "A, late"))
	require.False(t, write(34, "B again"))
	var n int
	require.NoError(t, d.QueryRowContext(t.Context(), "SELECT count(*) FROM "+writes).Scan(&n))
	require.Equal(t, 3, n)
}

// The form in one statement, for a row that has its own fence: the holder may write twice, which "<" would refuse.
func ownFence(t *testing.T, d database) {
	table := fmt.Sprintf("report_%d", rand.Uint64())
	d.exec(t, fmt.Sprintf("CREATE TABLE %s (id bigint PRIMARY KEY, body %s NOT NULL, fence bigint NOT NULL)", table, d.text))
	t.Cleanup(func() { d.Exec("DROP TABLE " + table) })
	d.exec(t, "INSERT INTO "+table+" VALUES (1, '', 0)")
	write := func(token int64, body string) int64 {
		args := []any{body, token, token}
		query := fmt.Sprintf("UPDATE %s SET body = %s, fence = %s WHERE id = 1 AND fence <= %s", table, d.parameter(1), d.parameter(2), d.parameter(3))
		result, err := d.ExecContext(t.Context(), query, args...)
		require.NoError(t, err)
		n, err := result.RowsAffected()
		require.NoError(t, err)
		return n
	}
	require.EqualValues(t, 1, write(33, "by A"))
	require.EqualValues(t, 1, write(34, "by B"))
	require.EqualValues(t, 0, write(33, "by A, late"))
	require.EqualValues(t, 1, write(34, "by B again"))
	var body string
	require.NoError(t, d.QueryRowContext(t.Context(), "SELECT body FROM "+table).Scan(&body))
	require.Equal(t, "by B again", body)
}
