package idempotent_test

import (
	"net/http"
	"testing"

	"github.com/retrip-go/retrip/idempotent"
	"github.com/stretchr/testify/require"
)

func FuzzARecordComesBackAsItWas(f *testing.F) {
	f.Add(201, "X-Latin", "caf\xe9", "\n\x00\xff", true)
	f.Add(204, "x-odd\xfe", "é\u2028\"<&>", "", false)
	f.Fuzz(func(t *testing.T, status int, name, value, body string, unstored bool) {
		want := idempotent.Record{
			Status: status, Header: http.Header{name: {value, ""}, name + "2": {}}, Body: []byte(body), Trailer: http.Header{name: {value}}, Added: http.Header{name: {value}}, Unstored: unstored,
		}
		b, err := want.MarshalBinary()
		require.NoError(t, err)
		var got idempotent.Record
		require.NoError(t, got.UnmarshalBinary(b))
		require.Equal(t, want, got)
	})
}

func FuzzAStoredAnswerIsReadOrAnError(f *testing.F) {
	for _, s := range []string{"", "{}", "{}\n", "null\nbody", `{"status":"x"}` + "\n", `{"header":{"a":[1]}}` + "\n", `{"header":{"\u0100":null}}` + "\n"} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		var r, again idempotent.Record
		if r.UnmarshalBinary(b) != nil {
			return
		}
		b, err := r.MarshalBinary()
		require.NoError(t, err)
		require.NoError(t, again.UnmarshalBinary(b))
		require.Equal(t, string(r.Body), string(again.Body))
		require.Equal(t, r.Status, again.Status)
	})
}

func TestACutOffAnswerIsAnError(t *testing.T) {
	t.Parallel()
	var r idempotent.Record
	require.ErrorContains(t, r.UnmarshalBinary([]byte(`{"status":201}`)), "cut off")
	require.Error(t, r.UnmarshalBinary([]byte("{\"status\":\n")))
}
