package idempotent

import (
	"bytes"
	"encoding/json"
	"errors"
	"net/http"
	"unicode/utf8"
)

// head is the part of a stored Record before its body.
type head struct {
	Status   int         `json:"status"`
	Header   http.Header `json:"header,omitempty"`
	Trailer  http.Header `json:"trailer,omitempty"`
	Added    http.Header `json:"added,omitempty"`
	Unstored bool        `json:"unstored,omitempty"`
}

// MarshalBinary encodes r for a store: a line of JSON, and the body as it is.
func (r Record) MarshalBinary() ([]byte, error) {
	line, err := json.Marshal(head{r.Status, recode(r.Header, widen), recode(r.Trailer, widen), recode(r.Added, widen), r.Unstored})
	if err != nil {
		return nil, err
	}
	return append(append(line, '\n'), r.Body...), nil
}

// UnmarshalBinary reads what MarshalBinary wrote. The body is not a copy.
func (r *Record) UnmarshalBinary(b []byte) error {
	line, body, ok := bytes.Cut(b, []byte{'\n'})
	if !ok {
		return errors.New("idempotent: a stored answer is cut off")
	}
	var h head
	if err := json.Unmarshal(line, &h); err != nil {
		return err
	}
	*r = Record{
		Status: h.Status, Header: recode(h.Header, narrow), Body: body, Trailer: recode(h.Trailer, narrow),
		Added: recode(h.Added, narrow), Unstored: h.Unstored,
	}
	return nil
}

// recode returns h with other values. Fields are bytes (RFC 9110 section 5.5), JSON is
// Unicode and would replace those that are not: each byte becomes the code point of its
// number, and is a byte again when it comes back.
func recode(h http.Header, code func(string) string) http.Header {
	if h == nil {
		return nil
	}
	to := make(http.Header, len(h))
	for name, values := range h {
		coded := make([]string, len(values))
		for i, v := range values {
			coded[i] = code(v)
		}
		to[code(name)] = coded
	}
	return to
}

func ascii(s string) bool {
	for i := range len(s) {
		if s[i] >= utf8.RuneSelf {
			return false
		}
	}
	return true
}

func widen(s string) string {
	if ascii(s) {
		return s
	}
	r := make([]rune, len(s))
	for i := range len(s) {
		r[i] = rune(s[i])
	}
	return string(r)
}

func narrow(s string) string {
	if ascii(s) {
		return s
	}
	b := make([]byte, 0, len(s))
	for _, r := range s {
		b = append(b, byte(r))
	}
	return string(b)
}
