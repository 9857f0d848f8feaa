package main

import (
	"io"
	"testing"
)

// seed of all tests; any other must do as well.
const seed = 1

func testLab(t *testing.T) *lab { return newLab(t, seed, nil, io.Discard) }

// inWorld runs one cell.
func inWorld[R any](t *testing.T, c cell[R]) R { return each(testLab(t), []cell[R]{c})[0] }
