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
	name        string
	ended, many int
}

func (p *progress) begin(name string) {
	if p == nil {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.name, p.ended, p.many = name, 0, 0
	p.showLocked()
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

// clear takes the line away.
func (p *progress) clear() {
	if p == nil {
		return
	}
	fmt.Fprint(p.out, "\r\x1b[K")
}

func (p *progress) showLocked() {
	fmt.Fprintf(p.out, "\r\x1b[K%s: %d of %d worlds", p.name, p.ended, p.many)
}
