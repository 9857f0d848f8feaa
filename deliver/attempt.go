package deliver

import (
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/riverqueue/river/rivertype"
)

// An Attempt is one time that a delivery was sent, or was meant to be.
type Attempt struct {
	Number   int           `json:"number"`
	At       time.Time     `json:"at"`
	Status   int           `json:"status,omitempty"` // 0 without an answer
	Duration time.Duration `json:"duration,omitempty"`
	Err      string        `json:"error,omitempty"`
	Answer   string        `json:"answer,omitempty"` // its first bytes
	Reason   Reason        `json:"reason,omitempty"` // if this attempt made it a dead letter
}

func (a Attempt) String() string {
	if a.Err != "" {
		return a.Err
	}
	return statusText(a.Status)
}

func statusText(code int) string {
	if text := http.StatusText(code); text != "" {
		return fmt.Sprintf("%d %s", code, text)
	}
	return fmt.Sprint(code)
}

// A Reason is why a delivery is a dead letter.
type Reason string

const (
	ReasonExhausted  Reason = "exhausted"   // its schedule is used up
	ReasonExpired    Reason = "expired"     // it waited longer than WithMaxAge, most of it for a destination that was paused
	ReasonPermanent  Reason = "permanent"   // the destination refused it for a reason that stays: a 4xx
	ReasonGone       Reason = "gone"        // 410: the destination does not want any more
	ReasonDisabled   Reason = "disabled"    // the destination is, or is not there any more
	ReasonWorkerLost Reason = "worker_lost" // the process died in the last attempt: it may have arrived
	ReasonParked     Reason = "parked"      // given up by a retrip.Transport
)

// answerSize is how much of an answer is kept.
const answerSize = 512

// failure is the error of an attempt. Its text is what the queue keeps of it.
type failure struct{ Attempt }

func (f failure) Error() string {
	text, err := json.Marshal(f.record())
	if err != nil {
		return f.Attempt.String()
	}
	return string(text)
}

// A record is an Attempt without what the queue knows itself.
type record struct {
	Status int    `json:"status,omitempty"`
	MS     int64  `json:"ms"`
	Err    string `json:"error,omitempty"`
	Answer string `json:"answer,omitempty"`
	Reason Reason `json:"reason,omitempty"`
}

func (a Attempt) record() record {
	return record{a.Status, a.Duration.Milliseconds(), a.Err, clip(a.Answer, answerSize), a.Reason}
}

// clip cuts s to n bytes, and to what JSON and both engines can hold.
func clip(s string, n int) string {
	if len(s) > n {
		s = s[:n]
		for s != "" && !utf8.RuneStart(s[len(s)-1]) {
			s = s[:len(s)-1]
		}
		s = strings.TrimSuffix(s, s[max(len(s)-1, 0):]) + "…"
	}
	return strings.ReplaceAll(strings.ToValidUTF8(s, "\ufffd"), "\x00", "\ufffd")
}

// rescued is what the queue writes when a process died.
const rescued = "Stuck job rescued by JobRescuer"

// attempts are those of a job, the successful one included.
func attempts(row *rivertype.JobRow) []Attempt {
	var all []Attempt
	for _, e := range row.Errors {
		a := Attempt{Number: e.Attempt, At: e.At.Local()}
		var r record
		switch text := e.Error; {
		case text == rescued:
			a.Err = "the process died during the attempt"
		case strings.Contains(text, "{") && json.Unmarshal([]byte(text[strings.Index(text, "{"):]), &r) == nil:
			a.fill(r)
		default:
			a.Err = clip(text, answerSize)
		}
		all = append(all, a)
	}
	if row.State == rivertype.JobStateCompleted {
		a := Attempt{Number: row.Attempt, At: row.CreatedAt.Local()}
		if row.AttemptedAt != nil {
			a.At = row.AttemptedAt.Local()
		}
		var r record
		if json.Unmarshal(row.Output(), &r) == nil {
			a.fill(r)
		}
		all = append(all, a)
	}
	return all
}

func (a *Attempt) fill(r record) {
	a.Status, a.Duration, a.Err, a.Answer, a.Reason = r.Status, time.Duration(r.MS)*time.Millisecond, r.Err, r.Answer, r.Reason
}

// reason is why a job is a dead letter.
func reason(row *rivertype.JobRow, all []Attempt) Reason {
	if len(all) == 0 {
		return ReasonDisabled
	}
	last := all[len(all)-1]
	switch {
	case last.Reason != "":
		return last.Reason
	case row.Errors[len(row.Errors)-1].Error == rescued:
		return ReasonWorkerLost
	}
	return ReasonExhausted
}
