package idempotent_test

import (
	"net/http"
	"strings"
	"testing"

	"github.com/retrip-go/retrip/idempotent"
	"github.com/stretchr/testify/require"
)

// TestKeysAreReadRawAndQuoted has the vectors of draft-ietf-httpapi-idempotency-key-header
// and of RFC 9651's strings; want is the raw form of the same key, and empty if there is none.
func TestKeysAreReadRawAndQuoted(t *testing.T) {
	t.Parallel()
	long, escaped := strings.Repeat("k", 1024), strings.Repeat(`\"`, 1023)
	for _, test := range []struct{ field, want string }{
		{`"8e03978e-40d5-43dd-bc93-6894a57f9324"`, "8e03978e-40d5-43dd-bc93-6894a57f9324"},
		{`8e03978e-40d5-43dd-bc93-6894a57f9324`, "8e03978e-40d5-43dd-bc93-6894a57f9324"},
		{`b2c-raw`, `"b2c-raw"`},
		{"  \"foo\"\t", "foo"},
		{`"a\"b"`, `"a\"b";p`},
		{`"a\\b"`, `"a\\b"  `},
		{`"a, b"`, `"a, b";x=1`},
		{`"k";p=1`, "k"},
		{`"k";p`, "k"},
		{`"k"; p="a;\"b, c"; *q=:aGk=:;r=?1`, "k"},
		{`'foo'`, `"'foo'"`},
		{long, `"` + long + `"`},
		{`"` + escaped + `x"`, `"` + escaped + `x";p=` + long},
		{``, ""}, {` `, ""}, {`""`, ""}, {`"`, ""}, {`"foo`, ""}, {`foo"`, ""}, {`"foo"x`, ""},
		{`"a\,b"`, ""}, {`"foo\`, ""}, {`"foo\"`, ""}, {`"füü"`, ""}, {`füü`, ""}, {"\"a\tb\"", ""}, {"a\tb", ""},
		{"\"a\nb\"", ""}, {"\"a\x7fb\"", ""}, {`a b`, ""}, {`a,b`, ""}, {`a\b`, ""},
		{`"a", "b"`, ""}, {`"a";p=1, "b"`, ""}, {`"a";p="`, ""}, {`"a";`, ""}, {`"a";P`, ""}, {`"a" ;p`, ""},
		{long + "k", ""}, {`"` + long + `k"`, ""}, {`a"b`, ""},
	} {
		charges := say("done")
		h := idempotent.Handler(charges, idempotent.Memory(10))
		r := post("", "")
		r.Header[idempotent.KeyHeader] = []string{test.field}
		if test.want == "" {
			refuses(t, serve(h, r), http.StatusBadRequest, "malformed")
			require.Zero(t, charges.runs.Load(), test.field)
			continue
		}
		require.Equal(t, http.StatusCreated, serve(h, r).StatusCode, test.field)
		replays(t, serve(h, post(test.want, "")), http.StatusCreated, "done")
	}
}

func TestTwoFieldLinesAreRefusedAlsoIfEqual(t *testing.T) {
	t.Parallel()
	charges := say("done")
	r := post("k", "")
	r.Header.Add(idempotent.KeyHeader, "k")
	refuses(t, serve(idempotent.Handler(charges, idempotent.Memory(10)), r), http.StatusBadRequest, "malformed")
	require.Zero(t, charges.runs.Load())
}
