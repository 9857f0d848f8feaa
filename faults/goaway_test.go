package faults_test

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/retrip-go/retrip/faults"
	"github.com/stretchr/testify/require"
	frames "golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"
)

// A leaver is a listener whose first connection it serves itself, frame by frame, to
// leave it in the middle. All others are accepted by whoever listens.
type leaver struct {
	net.Listener
	handler http.Handler
	after   int            // requests; with the last of them the GOAWAY is sent
	last    int            // of these are answered, and the GOAWAY names the last of them
	code    frames.ErrCode // why
	abrupt  bool           // nothing is answered after the GOAWAY: the connection is closed

	ctx   context.Context // of the test
	first sync.Once
	wg    sync.WaitGroup
	away  atomic.Bool // the GOAWAY was sent
}

func (l *leaver) Accept() (net.Conn, error) {
	for {
		conn, err := l.Listener.Accept()
		if err != nil {
			return nil, err
		}
		mine := false
		l.first.Do(func() { mine = true })
		if !mine {
			return conn, nil
		}
		l.wg.Go(func() {
			// net/http forgets a connection that was left without closing it.
			defer context.AfterFunc(l.ctx, func() { _ = conn.Close() })()
			_ = l.serve(conn)
			_ = conn.Close()
		})
	}
}

// A stream is a request that is coming in.
type stream struct {
	id   uint32
	req  *http.Request
	body bytes.Buffer
}

func (l *leaver) serve(conn net.Conn) error {
	if _, err := io.ReadFull(conn, make([]byte, len(frames.ClientPreface))); err != nil {
		return err
	}
	fr := frames.NewFramer(conn, conn)
	fr.ReadMetaHeaders = hpack.NewDecoder(4<<10, nil)
	if err := fr.WriteSettings(frames.Setting{ID: frames.SettingMaxConcurrentStreams, Val: 200}); err != nil {
		return err
	}
	open := make(map[uint32]*stream)
	var done []*stream // whole requests, as they came to their end
	last := uint32(1)  // of the streams that are answered as they come
	for {
		f, err := fr.ReadFrame()
		if err != nil {
			return err
		}
		ended := false
		switch f := f.(type) {
		case *frames.SettingsFrame:
			if !f.IsAck() {
				err = fr.WriteSettingsAck()
			}
		case *frames.PingFrame:
			if !f.IsAck() {
				err = fr.WritePing(true, f.Data)
			}
		case *frames.MetaHeadersFrame:
			open[f.StreamID] = &stream{id: f.StreamID, req: request(f)}
			ended = f.StreamEnded()
		case *frames.DataFrame:
			if s := open[f.StreamID]; s != nil {
				s.body.Write(f.Data())
				ended = f.StreamEnded()
			}
		}
		if err != nil {
			return err
		}
		s := open[f.Header().StreamID]
		switch {
		case !ended:
			continue
		case s.id <= last: // it opens the connection, or was still on its way at the GOAWAY
			if err := l.answer(fr, s); err != nil {
				return err
			}
			continue
		case l.away.Load():
			continue // as the GOAWAY says
		}
		done = append(done, s)
		if len(done) < l.after {
			continue
		}
		if last, err = l.leave(fr, done); err != nil || l.abrupt {
			return err
		}
	}
}

// leave sends the GOAWAY and answers the requests up to the last that it names.
func (l *leaver) leave(fr *frames.Framer, done []*stream) (last uint32, err error) {
	slices.SortFunc(done, func(a, b *stream) int { return int(a.id) - int(b.id) })
	last = done[l.last-1].id
	l.away.Store(true)
	// Work is done before the connection goes, which is when the client cannot know.
	if l.abrupt {
		for _, s := range done[:l.last] {
			l.work(s)
		}
	}
	if err := fr.WriteGoAway(last, l.code, nil); err != nil || l.abrupt {
		return last, err
	}
	for _, s := range done[:l.last] {
		if err := l.answer(fr, s); err != nil {
			return last, err
		}
	}
	return last, nil
}

func request(f *frames.MetaHeadersFrame) *http.Request {
	r := httptest.NewRequest(f.PseudoValue("method"), f.PseudoValue("path"), nil)
	for _, field := range f.RegularFields() {
		r.Header.Add(field.Name, field.Value)
	}
	return r
}

func (l *leaver) work(s *stream) *httptest.ResponseRecorder {
	s.req.Body = io.NopCloser(&s.body)
	w := httptest.NewRecorder()
	l.handler.ServeHTTP(w, s.req)
	return w
}

func (l *leaver) answer(fr *frames.Framer, s *stream) error {
	w := l.work(s)
	var block bytes.Buffer
	enc := hpack.NewEncoder(&block)
	enc.SetMaxDynamicTableSize(0) // so that each block stands by itself
	_ = enc.WriteField(hpack.HeaderField{Name: ":status", Value: fmt.Sprint(w.Code)})
	for name, values := range w.Header() {
		_ = enc.WriteField(hpack.HeaderField{Name: strings.ToLower(name), Value: values[0]})
	}
	if err := fr.WriteHeaders(frames.HeadersFrameParam{StreamID: s.id, BlockFragment: block.Bytes(), EndHeaders: true}); err != nil {
		return err
	}
	return fr.WriteData(s.id, true, w.Body.Bytes())
}

func TestAHundredStreamsOutliveAGOAWAY(t *testing.T) {
	t.Parallel()
	const streams = 100
	for name, l := range map[string]*leaver{
		"InPeace":                   {after: 60, last: 40, code: frames.ErrCodeNo},
		"BeforeMostStreams":         {after: 60, last: 1, code: frames.ErrCodeNo},
		"WithNearlyAllServed":       {after: 90, last: 90, code: frames.ErrCodeNo},
		"AndTheConnectionIsClosed":  {after: 60, last: 40, code: frames.ErrCodeNo, abrupt: true},
		"BecauseOfAnInternalError":  {after: 60, last: 40, code: frames.ErrCodeInternal, abrupt: true},
		"WithACallForCalm":          {after: 60, last: 40, code: frames.ErrCodeEnhanceYourCalm},
		"InPeaceRightAfterTheFirst": {after: 1, last: 1, code: frames.ErrCodeNo},
	} {
		for _, w := range []wire{h2c, http2} {
			t.Run(name+"/"+string(w), func(t *testing.T) {
				t.Parallel()
				var ledger faults.Ledger
				l := &leaver{handler: &ledger, after: l.after, last: l.last, code: l.code, abrupt: l.abrupt, ctx: t.Context()}
				base, url := l.start(t, w)
				client := newClient(base)
				ks := kinds(200, 500)

				// The first request makes the connection that the hundred share.
				out, err := ks[0].do(t, client, &ledger, url, "opens it")
				require.NoError(t, err)
				require.True(t, succeeded(out), "%+v", out)
				require.NoError(t, each(streams, streams, func(i int) error {
					k := ks[i%len(ks)]
					out, err := k.do(t, client, &ledger, url, id(i))
					e := ledger.Of(id(i))
					return errors.Join(err, need(k.name, out, e,
						claim{!out.Broken, "one answer or one error"},
						claim{succeeded(out) || !k.again && out.Err != nil, "a right answer"},
						// A stream that is not served is sent again, but for a body that is gone:
						// nobody has it.
						claim{succeeded(out) || l.abrupt || k.call.Stream, "a right answer, since what was sent was served or refused"},
						claim{succeeded(out) || l.abrupt || e.Work == 0, "left undone"},
						claim{k.call.Method != http.MethodPost || !succeeded(out) || e.Work == 1, "worked once"}))
				}))
				require.True(t, l.away.Load())
			})
		}
	}
}

// start serves what the leaver leaves, and returns a base that trusts it.
func (l *leaver) start(t *testing.T, w wire) (*http.Transport, string) {
	s := httptest.NewUnstartedServer(l.handler)
	s.Config.ErrorLog = log.New(io.Discard, "", 0)
	s.Config.Protocols = w.protocols()
	l.Listener = s.Listener
	s.Listener = l
	var base *http.Transport
	if w == http2 {
		ours := newAuthority(t)
		l.Listener = tls.NewListener(l.Listener, &tls.Config{
			Certificates: []tls.Certificate{*ours.leaf(t, func(*x509.Certificate) {})}, NextProtos: []string{"h2"},
		})
		base = newBase(w, ours.pool())
	} else {
		base = newBase(w, nil)
	}
	s.Start()
	t.Cleanup(l.wg.Wait)
	t.Cleanup(s.Close)
	t.Cleanup(base.CloseIdleConnections)
	if w == http2 {
		return base, "https://" + s.Listener.Addr().String()
	}
	return base, s.URL
}
