package idempotent

import (
	"encoding/json"
	"net/http"
	"strconv"
)

// A refusal is a problem of RFC 9457: its type is the page that Docs names and this
// fragment.
type refusal struct{ fragment, title, detail string }

var (
	missing = refusal{"missing", "Idempotency-Key is missing",
		"This operation needs an Idempotency-Key header field."}
	malformed = refusal{"malformed", "Idempotency-Key cannot be read",
		"The Idempotency-Key must be one field of 1 to 1024 visible ASCII characters, in double quotes if one is a quote, a comma or a backslash."}
	unreadable = refusal{"unreadable", "Request body cannot be read",
		"The connection failed before the whole request body was here. Nothing was done."}
	tooLarge = refusal{"too-large", "Request body is too large",
		"The body of a request with an Idempotency-Key must not be that large. Nothing was done."}
	reused = refusal{"reused", "Idempotency-Key was used for another request",
		"This Idempotency-Key came before with another method, path, query or body. Use a new key for a new request."}
	running = refusal{"running", "The first request is still running",
		"A request with this Idempotency-Key is being worked. Repeat it later to get its answer."}
	lost = refusal{"unknown-outcome", "The outcome of the first request is not known",
		"The first request with this Idempotency-Key was cut off on the server. Whether the work was done is not known, so it is not done again."}
	unstored = refusal{"not-stored", "The first answer was not stored",
		"The request with this Idempotency-Key was worked and answered, but its answer cannot be repeated."}
	storeFailed = refusal{"store-failed", "Idempotency cannot be assured now",
		"The store of idempotency keys cannot be asked. Repeat the request later with the same key."}
	notWhole = refusal{"not-whole", "The answer cannot be stored",
		"The answer was too large to be stored, or shorter than it said. Nothing was done."}
)

// refuse answers with a problem; retryAfter is in seconds, 0 for none.
func (m *middleware) refuse(w http.ResponseWriter, status int, p refusal, retryAfter int) {
	body, _ := json.Marshal(struct {
		Type   string `json:"type"`
		Title  string `json:"title"`
		Status int    `json:"status"`
		Detail string `json:"detail"`
	}{m.docs + "#" + p.fragment, p.title, status, p.detail})
	h := w.Header()
	h.Set("Content-Type", "application/problem+json")
	h.Set("Content-Length", strconv.Itoa(len(body)))
	h.Set("Cache-Control", "no-store")
	h.Del(ReplayedHeader)
	if retryAfter > 0 {
		h.Set("Retry-After", strconv.Itoa(retryAfter))
	}
	w.WriteHeader(status)
	_, _ = w.Write(body)
}
