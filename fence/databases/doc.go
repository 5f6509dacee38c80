// Package databases tests package fence on real databases: PostgreSQL, MariaDB, SQLite and Redis, all by the same suite.
// It is a module of its own, so that their clients reach nobody.
package databases
