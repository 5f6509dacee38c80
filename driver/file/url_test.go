package file

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/leasekit/locker/driver"
)

func TestURL(t *testing.T) {
	for url, dir := range map[string]string{
		"file:///var/lib/app/locks":  "/var/lib/app/locks",
		"file:///var/lib/app/locks/": "/var/lib/app/locks",
		"file:///a%20b%25/+":         "/a b%/+",
		"file:///":                   "/",
	} {
		c, err := driver.Parse(url)
		require.NoError(t, err, url)
		require.Equal(t, dir, c.(*connector).dir)
		require.True(t, c.Info().Correctness)
		require.Equal(t, "file", c.Info().Backend)
	}
	for url, text := range map[string]string{
		"file:":                  "directory is missing",
		"file://":                "directory is missing",
		"file:?x=1":              "directory is missing",
		"file:/var/locks":        `"//"`,
		"file://var/locks":       "three slashes",
		"file://me@/var/locks":   "three slashes",
		"file:///a%00b":          "zero byte",
		"file:///a%2":            "percent-encoding",
		"file:///a?prefix=b":     `"prefix"`,
		"file:///a?ttl=1s&mode=": `"mode"`,
		"file:///a#b":            "%23",
	} {
		_, err := driver.Parse(url)
		require.ErrorIs(t, err, driver.ErrConfig, url)
		require.ErrorContains(t, err, text, url)
	}
}

func TestNew(t *testing.T) {
	wd, err := os.Getwd()
	require.NoError(t, err)
	require.Equal(t, filepath.Join(wd, "locks"), New("locks", nil).(*connector).dir)
	_, err = New("", &Options{}).Connect(t.Context(), driver.Config{})
	require.ErrorIs(t, err, driver.ErrConfig)
}
