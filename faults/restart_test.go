package faults_test

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/retrip-go/retrip"
	"github.com/retrip-go/retrip/faults"
	"github.com/stretchr/testify/require"
)

// What makes the test binary a server, and nothing else.
const (
	childAddr   = "FAULTS_CHILD_ADDR"
	childLedger = "FAULTS_CHILD_LEDGER"
)

// serveUntilKilled serves a Ledger that is kept in a file. It says on its standard
// output where it listens, and ends with its standard input, should the test die
// first.
func serveUntilKilled(addr, path string) {
	fail := func(err error) {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	ledger, err := faults.OpenLedger(path)
	if err != nil {
		fail(err)
	}
	var ln net.Listener
	// The one before may not be all gone.
	if !eventually(func() bool { ln, err = net.Listen("tcp", addr); return err == nil }) {
		fail(err)
	}
	fmt.Println(ln.Addr())
	go func() {
		_, _ = io.Copy(io.Discard, os.Stdin)
		os.Exit(0)
	}()
	protocols := http1.protocols()
	protocols.SetUnencryptedHTTP2(true)
	fail((&http.Server{Handler: ledger, Protocols: protocols}).Serve(ln))
}

// A child is a server in a process of its own.
type child struct {
	addr, ledger string
	cmd          *exec.Cmd
}

func (c *child) start() error {
	c.cmd = exec.Command(os.Args[0])
	c.cmd.Env = append(os.Environ(), childAddr+"="+c.addr, childLedger+"="+c.ledger)
	out, err := c.cmd.StdoutPipe()
	if err != nil {
		return err
	}
	if _, err := c.cmd.StdinPipe(); err != nil { // closed by Wait, and when this process ends
		return err
	}
	if err := c.cmd.Start(); err != nil {
		return err
	}
	line, err := bufio.NewReader(out).ReadString('\n')
	if err != nil {
		return errors.Join(err, c.kill())
	}
	c.addr = strings.TrimSpace(line)
	return nil
}

// kill does not let the child know.
func (c *child) kill() error {
	if err := c.cmd.Process.Kill(); err != nil {
		return err
	}
	if err := c.cmd.Wait(); err != nil && c.cmd.ProcessState == nil {
		return err
	}
	return nil
}

func TestAServerThatIsKilledUnderLoadDoesTheWorkOnce(t *testing.T) {
	t.Parallel()
	for _, w := range []wire{http1, h2c} {
		t.Run(string(w), func(t *testing.T) {
			t.Parallel()
			const goroutines, kills = 20, 3
			c := &child{addr: "127.0.0.1:0", ledger: filepath.Join(t.TempDir(), "ledger")}
			require.NoError(t, c.start())
			stop := c.kill
			t.Cleanup(func() { _ = stop() })
			base := newBase(w, nil)
			t.Cleanup(base.CloseIdleConnections)
			client := newClient(base, retrip.WithMaxAttempts(1000), retrip.WithBudget(patience),
				retrip.WithBackoff(retrip.FullJitter(time.Millisecond, 50*time.Millisecond)))
			ks, url := kinds(2<<10, 8<<10), "http://"+c.addr

			type fate struct {
				k   kind
				c   faults.Call
				out faults.Outcome
			}
			var (
				fates [goroutines][]fate
				over  atomic.Bool // no more kills
				count atomic.Int64
			)
			killed := make(chan error, 1)
			go func() {
				defer over.Store(true)
				killed <- func() error {
					for range kills {
						from := count.Load()
						if !eventually(func() bool { return count.Load() >= from+3*goroutines }) {
							return errors.New("there is no load")
						}
						if err := c.kill(); err != nil {
							return err
						}
						time.Sleep(20 * time.Millisecond) // for connections to be refused
						if err := c.start(); err != nil {
							return err
						}
					}
					return nil
				}()
			}()
			_ = each(goroutines, goroutines, func(g int) error {
				for i := range 1000 {
					last := over.Load()
					k := ks[(g+i)%len(ks)]
					out, call := k.send(t, client, url, fmt.Sprintf("%d-%d", g, i))
					fates[g] = append(fates[g], fate{k, call, out})
					count.Add(1)
					if last {
						break
					}
				}
				return nil
			})
			require.NoError(t, <-killed)
			require.NoError(t, c.kill())
			stop = func() error { return nil }

			ledger, err := faults.OpenLedger(c.ledger)
			require.NoError(t, err)
			defer func() { _ = ledger.Close() }()
			var errs []error
			recovered := 0
			for g := range fates {
				for i, f := range fates[g] {
					e := ledger.Of(f.c.ID)
					errs = append(errs, ledger.Check(f.c, f.out), need(f.k.name, f.out, e,
						claim{succeeded(f.out) || f.out.Broken || !f.k.again, "a right answer, or one that was cut"},
						claim{f.k.call.Method != http.MethodPost || !succeeded(f.out) || e.Work == 1, "worked once"},
						claim{i < len(fates[g])-1 || succeeded(f.out) || !f.k.again, "served after the last kill"}))
					if f.out.Attempts > 1 && succeeded(f.out) {
						recovered++
					}
				}
			}
			require.NoError(t, errors.Join(errs...))
			require.Positive(t, recovered)
			t.Logf("%d calls, %d of them recovered", count.Load(), recovered)
		})
	}
}
