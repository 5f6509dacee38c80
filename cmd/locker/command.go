package main

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
)

// resolve finds the file of a command by the rules of execvp(3). It is done before the lock is taken, so that a command
// that can't run takes no lock. The error has the code that shells give.
func resolve(command, path string) (file string, err error) {
	if command == "" {
		return "", &exitError{exitNotFound, errors.New("locker: the command is empty")}
	}
	if strings.ContainsRune(command, os.PathSeparator) {
		if err := runnable(command); err != nil {
			return "", notRunnable(command, err)
		}
		return command, nil
	}
	var denied error
	for _, dir := range filepath.SplitList(path) {
		if dir == "" {
			dir = "."
		}
		file := dir + string(os.PathSeparator) + command // not cleaned: "./x" must not become "x"
		err := runnable(file)
		if err == nil {
			return file, nil
		}
		if denied == nil && !missing(err) {
			denied = err
		}
	}
	if denied != nil {
		return "", notRunnable(command, denied)
	}
	return "", &exitError{exitNotFound, fmt.Errorf("locker: %s: command not found", command)}
}

func notRunnable(command string, err error) error {
	code := exitCannotRun
	if missing(err) {
		code = exitNotFound
	}
	if pathErr, ok := errors.AsType[*fs.PathError](err); ok {
		err = pathErr.Err
	}
	return &exitError{code, fmt.Errorf("locker: %s: %w", command, err)}
}
