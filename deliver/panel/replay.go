package panel

import (
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"errors"
	"net/http"
	"net/url"
	"strconv"

	"github.com/retrip-go/retrip/deliver"
)

func (p *panel) replay(w http.ResponseWriter, r *http.Request) {
	id, ok := number(r)
	if !ok {
		http.NotFound(w, r)
		return
	}
	r.Body = http.MaxBytesReader(w, r.Body, 4<<10)
	switch {
	case p.authorize == nil || !p.authorize(r):
		http.Error(w, "not allowed", http.StatusForbidden)
		return
	case p.cross.Check(r) != nil || !p.genuine(r):
		http.Error(w, "this form is not from here, or is too old: go back and reload", http.StatusForbidden)
		return
	}
	outcome, err := p.replayed(r, id)
	if err != nil {
		p.fail(w, r, err)
		return
	}
	back := chosen(r.URL.Query())
	back.Set("note", outcome)
	back.Set("of", strconv.FormatInt(id, 10))
	// http.Redirect would make it absolute by the path that http.StripPrefix left.
	w.Header().Set("Location", "../../dead?"+back.Encode())
	w.WriteHeader(http.StatusSeeOther)
}

// replayed replays one dead letter and returns what became of it, one of notes.
func (p *panel) replayed(r *http.Request, id int64) (string, error) {
	d, err := p.src.Dead().Get(r.Context(), id)
	if err != nil {
		return "", err
	}
	if d.Parked != nil && d.Parked.Lost != "" {
		return "lost", nil
	}
	all, err := p.src.Dead().Replay(r.Context(), []int64{id}, deliver.Replaying{})
	if err != nil {
		return "", err
	}
	if _, delivered := errors.AsType[*deliver.DeliveredError](all[0].Refused); delivered {
		return "delivered", nil
	}
	if all[0].Refused != nil {
		return "refused", nil
	}
	return "replayed", nil
}

// notes are what the page after a replay may say.
var notes = map[string]string{
	"replayed":  "is being delivered again.",
	"refused":   "was replayed before; nothing was sent.",
	"delivered": "was not replayed: its event has been delivered since.",
	"lost":      "cannot be replayed: its body was not kept.",
}

// note says what became of a replay. Nothing of it is the URL's, but for a number.
func note(q url.Values) string {
	id, err := strconv.ParseUint(q.Get("of"), 10, 63)
	text := notes[q.Get("note")]
	if err != nil || text == "" {
		return ""
	}
	return "Dead letter " + strconv.FormatUint(id, 10) + " " + text
}

// The token of a form is made from a cookie, so that a page elsewhere, which can read
// neither, can make no such form.
const cookie = "retrip_panel"

func (p *panel) token(session string) string {
	mac := hmac.New(sha256.New, p.key)
	mac.Write([]byte(session))
	return base64.RawURLEncoding.EncodeToString(mac.Sum(nil))
}

// tokenFor gives the browser the cookie too, unless it has it.
func (p *panel) tokenFor(w http.ResponseWriter, r *http.Request) string {
	c, err := r.Cookie(cookie)
	if err != nil {
		// Path is "/" because the browser's own path is not known behind a StripPrefix, and
		// the default would make one cookie for each directory.
		c = &http.Cookie{Name: cookie, Value: rand.Text(), Path: "/", HttpOnly: true, SameSite: http.SameSiteStrictMode, Secure: r.TLS != nil}
		http.SetCookie(w, c)
	}
	return p.token(c.Value)
}

func (p *panel) genuine(r *http.Request) bool {
	c, err := r.Cookie(cookie)
	return err == nil && hmac.Equal([]byte(p.token(c.Value)), []byte(r.PostFormValue("token")))
}

// A form is a button that replays.
type form struct {
	Root, Token string
	ID          int64
	Query       any
}

// Form is called by the templates.
func (v view) Form(id int64) form { return form{v.Root, v.Token, id, v.Query} }
