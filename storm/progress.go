package main

import (
	"fmt"
	"io"
	"sync"
)

// A progress is a line that tells how far a lab is. A nil one tells nothing.
type progress struct {
	out io.Writer

	mu          sync.Mutex
	ended, many int
}

// more says that n worlds are to come.
func (p *progress) more(n int) {
	if p == nil {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.many += n
	p.showLocked()
}

// done says that a world has ended.
func (p *progress) done() {
	if p == nil {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.ended++
	p.showLocked()
}

// clear takes the line away until the next world ends.
func (p *progress) clear() {
	if p == nil {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	fmt.Fprint(p.out, "\r\x1b[K")
}

func (p *progress) showLocked() {
	fmt.Fprintf(p.out, "\r\x1b[K%d of %d worlds", p.ended, p.many)
}
