package idempotent

import (
	"regexp"
	"strings"
)

// maxKey is how long a key may be, in bytes: RFC 9651 asks for as many of who reads
// strings, and package retrip sends as many. Stores see only a hash.
const maxKey = 1024

// parseKey reads the key, which comes raw, as deployed clients send it, or as a string
// of RFC 9651 section 3.3.3, as the draft asks. Both forms of a key are the same key.
func parseKey(values []string) (string, bool) {
	if len(values) != 1 {
		return "", false
	}
	v := strings.Trim(values[0], " \t")
	if strings.HasPrefix(v, `"`) {
		return parseString(v)
	}
	for i := range len(v) {
		// A quote or a comma would be the form of something else.
		if c := v[i]; c <= ' ' || c > '~' || c == '"' || c == ',' || c == '\\' {
			return "", false
		}
	}
	return v, v != "" && len(v) <= maxKey
}

// parseString reads a quoted key. Parameters may follow, and mean nothing.
func parseString(v string) (string, bool) {
	var key []byte
	for i := 1; i < len(v); i++ {
		switch c := v[i]; {
		case c == '\\':
			i++
			if i == len(v) || v[i] != '"' && v[i] != '\\' {
				return "", false
			}
			key = append(key, v[i])
		case c == '"':
			return string(key), len(key) > 0 && len(key) <= maxKey && parameters.MatchString(v[i+1:])
		case c < ' ' || c > '~':
			return "", false
		default:
			key = append(key, c)
		}
	}
	return "", false
}

// parameters are those of an item, as RFC 9651 section 3.1.2 has them but for the
// syntax of values. A comma would be a second key: fields that a proxy made one.
var parameters = regexp.MustCompile(`^(; *[a-z*][a-z0-9_.*-]*(=("([ !#-\[\]-~]|\\["\\])*"|[!#-+./0-:<-~-]+))?)*$`)
