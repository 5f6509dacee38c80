package fence

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"regexp"
	"strings"
	"sync/atomic"

	"github.com/leasekit/locker"
)

// Dialect is the SQL of one kind of database.
type Dialect string

const (
	PostgreSQL Dialect = "postgresql"
	MySQL      Dialect = "mysql" // and MariaDB
	SQLite     Dialect = "sqlite"
)

// SQL guards what is in the same database as its table. It is safe for concurrent use.
type SQL struct {
	dialect  Dialect
	table    string // quoted
	parts    []string
	verified atomic.Bool // the table's columns have been looked at
}

var identifier = regexp.MustCompile(`^[A-Za-z_][A-Za-z0-9_]{0,62}(\.[A-Za-z_][A-Za-z0-9_]{0,62})?$`)

// NewSQL returns a guard that remembers tokens in a table, which the program creates with what Schema returns. The
// table's name may be qualified by a schema: letters, digits and underscores, with at most one dot. Errors match ErrSetup.
func NewSQL(dialect Dialect, table string) (*SQL, error) {
	quote := `"`
	switch dialect {
	case PostgreSQL, SQLite:
	case MySQL:
		quote = "`"
	default:
		return nil, fmt.Errorf("%w: unknown SQL dialect %q: it has to be %s, %s or %s", ErrSetup, dialect, PostgreSQL, MySQL, SQLite)
	}
	if !identifier.MatchString(table) {
		return nil, fmt.Errorf("%w: %q isn't the name of a table: letters, digits and underscores, with at most one dot", ErrSetup, table)
	}
	parts := strings.Split(table, ".")
	return &SQL{dialect: dialect, table: quote + strings.Join(parts, quote+"."+quote) + quote, parts: parts}, nil
}

// Schema returns the statement that creates the table. Nothing in this package executes it. Rows are one for each name that
// was ever guarded; one that is removed is forgotten, and with it what a late holder may not do.
func (s *SQL) Schema() string {
	name := map[Dialect]string{
		PostgreSQL: `text COLLATE "C"`,
		MySQL:      "varbinary(512)", // every other type would fold case or ignore trailing spaces somewhere
		SQLite:     "text",
	}[s.dialect]
	engine := ""
	if s.dialect == MySQL {
		engine = " ENGINE=InnoDB" // one without transactions would keep the token of a write that was rolled back
	}
	return fmt.Sprintf("CREATE TABLE %s (name %s NOT NULL PRIMARY KEY, token bigint NOT NULL CHECK (token > 0))%s", s.table, name, engine)
}

// Check refuses a token that is lower than the greatest one that was committed for the name, and remembers it together
// with the transaction's writes. Call it before them: it takes a lock on the name's row that lasts until the transaction
// ends, so that transactions of one name follow each other, and is correct at every isolation level of the three
// databases (docs/fencing.md has the argument). It is one statement; the first call also looks at the table's columns.
//
// Roll the transaction back if it returns an error: one matching ErrStale, ErrNoToken or ErrSetup, or the database's, which
// says nothing about the token: the transaction may be tried again if the database says so (a deadlock, a serialization
// failure).
func (s *SQL) Check(ctx context.Context, tx *sql.Tx, name string, token locker.Token) error {
	if err := check(token); err != nil {
		return err
	}
	if name == "" {
		return fmt.Errorf("%w: the name is empty", ErrNoToken)
	}
	if s.dialect == PostgreSQL && strings.ContainsRune(name, 0) {
		return fmt.Errorf("%w: PostgreSQL's text can't hold the NUL character of the name %q", ErrSetup, name)
	}
	if !s.verified.Load() {
		if err := s.verify(ctx, tx); err != nil {
			return err
		}
		s.verified.Store(true)
	}
	result, err := tx.ExecContext(ctx, s.Statement(), s.key(name), int64(token))
	if err != nil {
		return fmt.Errorf("fence: %w", err)
	}
	if s.dialect == MySQL {
		seen, err := result.LastInsertId()
		switch {
		case err != nil:
			return fmt.Errorf("fence: %w", err)
		case seen != int64(token):
			return &StaleError{name, locker.Token(seen), token}
		}
		return nil
	}
	rows, err := result.RowsAffected()
	switch {
	case err != nil:
		return fmt.Errorf("fence: %w", err)
	case rows != 1:
		return &StaleError{name, s.seen(ctx, tx, name), token}
	}
	return nil
}

// Statement returns what Check executes, for clients that aren't database/sql. Its parameters are the name and the token,
// in this order, and it has to be executed in the transaction of the writes, before them.
//
// On PostgreSQL and SQLite the token passes if the statement affects one row, and is stale if it affects none. On MySQL and
// MariaDB the number of rows depends on the connection's settings; the token passes if the last insert ID that the
// statement returns equals it, and is stale if that is greater. The caller has to refuse tokens below 1.
func (s *SQL) Statement() string {
	if s.dialect == MySQL {
		return "INSERT INTO " + s.table + " (name, token) VALUES (?, LAST_INSERT_ID(?)) " +
			"ON DUPLICATE KEY UPDATE token = LAST_INSERT_ID(GREATEST(token, VALUES(token)))"
	}
	first, second := "$1", "$2"
	if s.dialect == SQLite {
		first, second = "?1", "?2"
	}
	return "INSERT INTO " + s.table + " AS fence (name, token) VALUES (" + first + ", " + second + ") " +
		"ON CONFLICT (name) DO UPDATE SET token = EXCLUDED.token WHERE fence.token <= EXCLUDED.token"
}

// key returns a name as a parameter.
func (s *SQL) key(name string) any {
	if s.dialect == MySQL {
		return []byte(name)
	}
	return name
}

// seen returns the token that was in the way, for the message. It doesn't decide anything.
func (s *SQL) seen(ctx context.Context, tx *sql.Tx, name string) locker.Token {
	parameter := "$1"
	if s.dialect == SQLite {
		parameter = "?1"
	}
	var token int64
	if tx.QueryRowContext(ctx, "SELECT token FROM "+s.table+" WHERE name = "+parameter, name).Scan(&token) != nil {
		return 0
	}
	return locker.Token(token)
}

// verify looks at the columns: with a token column of another type a database might compare texts, or round.
func (s *SQL) verify(ctx context.Context, tx *sql.Tx) error {
	var typ string
	err := tx.QueryRowContext(ctx, s.columnType()).Scan(&typ)
	switch {
	case errors.Is(err, sql.ErrNoRows):
		return fmt.Errorf("%w: there is no table %s with a column token; create it with what Schema returns", ErrSetup, s.table)
	case err != nil:
		return fmt.Errorf("fence: %w", err)
	}
	if t := strings.ToLower(typ); t != "bigint" && t != "int8" && !(s.dialect == SQLite && t == "integer") {
		return fmt.Errorf("%w: column token of table %s has the type %s, and has to be bigint", ErrSetup, s.table, typ)
	}
	return nil
}

// columnType returns a query for the type of the token column. Names of tables are checked by NewSQL.
func (s *SQL) columnType() string {
	table := s.parts[len(s.parts)-1]
	switch s.dialect {
	case PostgreSQL:
		return "SELECT format_type(atttypid, NULL) FROM pg_attribute WHERE attrelid = to_regclass('" + s.table + "') AND attname = 'token' AND NOT attisdropped"
	case MySQL:
		schema := "DATABASE()"
		if len(s.parts) == 2 {
			schema = "'" + s.parts[0] + "'"
		}
		return "SELECT DATA_TYPE FROM information_schema.COLUMNS WHERE TABLE_SCHEMA = " + schema + " AND TABLE_NAME = '" + table + "' AND COLUMN_NAME = 'token'"
	}
	from := "pragma_table_info('" + table + "')"
	if len(s.parts) == 2 {
		from = "pragma_table_info('" + table + "', '" + s.parts[0] + "')"
	}
	return "SELECT type FROM " + from + " WHERE name = 'token'"
}
