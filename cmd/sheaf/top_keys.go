package main

import (
	"context"
	"io"
	"os"

	"golang.org/x/sys/unix"
)

// onQuit calls cancel() when q is typed. Until restore() is called, the terminal passes on each key at once and shows
// none. Ctrl-C and Ctrl-Z work as before. If standard input is not a terminal, onQuit does nothing.
func onQuit(cancel context.CancelFunc) (restore func()) {
	fd := int(os.Stdin.Fd())
	before, err := unix.IoctlGetTermios(fd, unix.TCGETS)
	if err != nil {
		return func() {}
	}
	keys := *before
	keys.Lflag &^= unix.ICANON | unix.ECHO
	keys.Cc[unix.VMIN], keys.Cc[unix.VTIME] = 1, 0
	if err := unix.IoctlSetTermios(fd, unix.TCSETS, &keys); err != nil {
		return func() {}
	}
	go func() { // ends with the process: nothing wakes a read of a terminal
		if quits(os.Stdin) {
			cancel()
		}
	}()
	return func() { _ = unix.IoctlSetTermios(fd, unix.TCSETS, before) }
}

// quits reads keys until q is typed, and then returns true. It returns false if the input ends before.
func quits(keys io.Reader) bool {
	var key [1]byte
	for {
		if _, err := io.ReadFull(keys, key[:]); err != nil {
			return false
		}
		if key[0] == 'q' || key[0] == 'Q' {
			return true
		}
	}
}
