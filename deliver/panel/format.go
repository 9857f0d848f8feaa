package panel

import (
	"encoding/hex"
	"fmt"
	"html/template"
	"math"
	"net/url"
	"strconv"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/retrip-go/retrip/deliver"
)

// functions are those of the templates.
var functions = template.FuncMap{
	"percent": percent,
	"clock":   clock,
	"stamp":   func(t time.Time) string { return t.Format(time.RFC3339) },
	"zone":    func(t time.Time) string { return t.Local().Format("MST") },
	"took":    took,
	"line":    line,
	"payload": payload,
	"host":    host,
	"recent":  recent,
	"style":   func() string { return styleVersion },
}

// percent rounds down: all is 100 % only if nothing is missing.
func percent(f float64) string {
	return strconv.FormatFloat(math.Floor(1000*f+1e-9)/10, 'f', 1, 64) + " %"
}

// clock leaves the date out today.
func clock(t time.Time) string {
	t, now := t.Local(), time.Now()
	switch {
	case t.IsZero():
		return ""
	case t.Year() == now.Year() && t.YearDay() == now.YearDay():
		return t.Format(time.TimeOnly)
	}
	return t.Format(time.DateTime)
}

// took is empty for what is not known.
func took(d time.Duration) string {
	switch {
	case d <= 0:
		return ""
	case d < time.Second:
		return strconv.FormatInt(d.Milliseconds(), 10) + " ms"
	}
	return strconv.FormatFloat(d.Seconds(), 'f', 1, 64) + " s"
}

// line is the beginning of a text, for a table.
func line(s string) string {
	if short := cut([]byte(s), 200); len(short) < len(s) {
		return string(short) + "…"
	}
	return s
}

const shown = 4 << 10

// payload is the beginning of a payload: as text if all of that is text, else as hex.
func payload(b []byte) string {
	start := cut(b, shown)
	text := string(start)
	if !printable(start) {
		start = b[:min(len(b), shown)]
		text = hex.Dump(start)
	}
	if len(start) < len(b) {
		text += fmt.Sprintf("\n… the first %d of %d bytes", len(start), len(b))
	}
	return text
}

func printable(b []byte) bool {
	return utf8.Valid(b) && !strings.ContainsFunc(string(b), func(r rune) bool {
		return unicode.IsControl(r) && r != '\n' && r != '\r' && r != '\t'
	})
}

// cut returns the first n bytes of b, less if that goes through a rune.
func cut(b []byte, n int) []byte {
	if len(b) <= n {
		return b
	}
	b = b[:n]
	for i := len(b) - 1; i >= 0 && i >= len(b)-utf8.UTFMax; i-- {
		if utf8.RuneStart(b[i]) {
			if !utf8.FullRune(b[i:]) {
				return b[:i]
			}
			break
		}
	}
	return b
}

// host is all that is shown of a URL.
func host(raw string) string {
	u, err := url.Parse(raw)
	if err != nil {
		return ""
	}
	return u.Host
}

// recent are the last attempts: a file that was imported may tell of any number.
func recent(all []deliver.Attempt) []deliver.Attempt { return all[max(0, len(all)-100):] }
