package main

import (
	"bytes"
	"encoding/xml"
	"errors"
	"html/template"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"gonum.org/v1/plot/plotter"
)

var sample = picture{
	name: "sample", title: "Load & more", x: "clients", y: "attempts", logX: true,
	lines: []line{
		{name: "one", points: points(1, 4, 10, 3, 100, 2)},
		{name: "two < one", points: points(1, 1, 10, 1, 100, 1)},
	},
}

func points(xy ...float64) plotter.XYs {
	var l line
	for i := 0; i < len(xy); i += 2 {
		l.add(xy[i], xy[i+1])
	}
	return l.points
}

// An svg is what a test wants to know of one.
type svg struct {
	width, height string
	texts         []string
	strokes       map[string]int // colours of paths
}

func parseSVG(t *testing.T, in []byte) svg {
	t.Helper()
	s := svg{strokes: map[string]int{}}
	d := xml.NewDecoder(bytes.NewReader(in))
	for {
		token, err := d.Token()
		if errors.Is(err, io.EOF) {
			return s
		}
		require.NoError(t, err)
		start, ok := token.(xml.StartElement)
		if !ok {
			continue
		}
		attr := map[string]string{}
		for _, a := range start.Attr {
			attr[a.Name.Local] = a.Value
		}
		switch start.Name.Local {
		case "svg":
			s.width, s.height = attr["width"], attr["height"]
		case "text":
			var text string
			require.NoError(t, d.DecodeElement(&text, &start))
			s.texts = append(s.texts, text)
		case "path":
			if m := strokeOf.FindStringSubmatch(attr["style"]); m != nil {
				s.strokes[m[1]]++
			}
		}
	}
}

var strokeOf = regexp.MustCompile(`stroke:(#[0-9A-F]{6})`)

func TestAPictureShowsItsLinesAxesAndNames(t *testing.T) {
	t.Parallel()
	out, err := sample.svg()
	require.NoError(t, err)
	s := parseSVG(t, out)
	require.Equal(t, "800pt", s.width)
	require.Subset(t, s.texts, []string{"Load & more", "clients", "attempts", "one", "two < one", "1", "10", "100", "0", "2"})
	require.Equal(t, 2, s.strokes["#D55E00"], "the first line and its sample in the legend")
	require.Equal(t, 2, s.strokes["#0072B2"], "the second")
	require.NotContains(t, string(out), "Serif")
}

func TestWhatAnAxisCannotShowIsLeftOut(t *testing.T) {
	t.Parallel()
	p := picture{name: "zeros", logY: true, lines: []line{
		{name: "some", points: points(1, 0, 2, 5, 3, 7)}, {name: "none", points: points(1, 0, 2, 0)},
	}}
	require.False(t, p.empty())
	out, err := p.svg()
	require.NoError(t, err)
	require.NotContains(t, parseSVG(t, out).texts, "none")
	p.lines[0].points = points(1, 1, 2, 1, 3, 1)
	out, err = p.svg()
	require.NoError(t, err)
	require.Subset(t, parseSVG(t, out).texts, []string{"0.5", "1", "2"}, "a level line")
	p.lines[0].points = points(1, 0, 2, 5)
	require.True(t, p.empty(), "one point is no line")
	require.NoError(t, save(t.TempDir(), settings{}, []scenario{herd}, []report{{pictures: []picture{p}}}))
}

func TestAnAxisHasAFewRoundMarks(t *testing.T) {
	t.Parallel()
	labels := func(low, high float64) string {
		var all []string
		for _, tick := range steps(low, high) {
			all = append(all, tick.Label)
		}
		return strings.Join(all, " ")
	}
	require.Equal(t, "0 1 2 3 4", labels(0, 4))
	require.Equal(t, "0 100 200 300 400 500", labels(0, 500))
	require.Equal(t, "50 100 150", labels(1, 190))
	require.Equal(t, "0 0.5 1 1.5 2 2.5", labels(0, 2.7))
}

func TestThePageIsWholeAndRefersToNothingOutside(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(t.TempDir(), "made", "for", "it")
	l := testLab(t)
	r := runHerd(l, settings{clients: 20, outage: 30 * time.Second})
	r.tables[0].notes = append(r.tables[0].notes, "<script>alert(1)</script>")
	require.NoError(t, save(dir, settings{seed: 77}, []scenario{herd}, []report{r}))
	file, err := os.ReadFile(filepath.Join(dir, "herd.svg"))
	require.NoError(t, err)
	require.Contains(t, parseSVG(t, file).texts, "full jitter")
	in, err := os.ReadFile(filepath.Join(dir, "index.html"))
	require.NoError(t, err)
	page := string(in)
	require.Contains(t, page, "default-src 'none'")
	require.Contains(t, page, "Seed 77")
	require.Contains(t, page, "<svg")
	require.NotContains(t, page, "<?xml")
	require.NotContains(t, page, "<script")
	for _, cell := range r.tables[0].rows[3] {
		require.Contains(t, page, "<td>"+template.HTMLEscapeString(cell)+"</td>")
	}
	for _, reference := range regexp.MustCompile(`(src|href|url)\s*[=(]\s*"?[^">)]*`).FindAllString(page, -1) {
		require.True(t, strings.HasPrefix(reference, `href="#`), reference)
	}
}

func TestProgressIsOneLineThatCounts(t *testing.T) {
	t.Parallel()
	var out bytes.Buffer
	p := &progress{out: &out}
	p.more(2)
	p.done()
	require.True(t, strings.HasSuffix(out.String(), "\r\x1b[K1 of 2 worlds"), "%q", out.String())
	p.clear()
	require.True(t, strings.HasSuffix(out.String(), "\r\x1b[K"))
	require.NotContains(t, out.String(), "\n")
	(*progress)(nil).done() // nobody watches
}
