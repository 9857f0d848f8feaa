package main

import (
	"bytes"
	"fmt"
	"image/color"
	"math"
	"slices"
	"strconv"

	"gonum.org/v1/plot"
	"gonum.org/v1/plot/plotter"
	"gonum.org/v1/plot/vg"
	"gonum.org/v1/plot/vg/draw"
	"gonum.org/v1/plot/vg/vgsvg"
)

// A picture is a chart of lines. It is written to a file of its own, and is a part of the
// HTML report.
type picture struct {
	name       string // of the file, without .svg
	title      string
	x, y       string // what the axes show
	logX, logY bool
	lines      []line
}

// A line is drawn through its points.
type line struct {
	name   string
	points plotter.XYs
}

func (l *line) add(x, y float64) { l.points = append(l.points, plotter.XY{X: x, Y: y}) }

// palette is Okabe and Ito's, which the colour-blind can tell apart; dashes help print.
var palette = []color.Color{
	color.RGBA{R: 0xd5, G: 0x5e, A: 0xff},
	color.RGBA{G: 0x72, B: 0xb2, A: 0xff},
	color.RGBA{G: 0x9e, B: 0x73, A: 0xff},
	color.RGBA{R: 0xcc, G: 0x79, B: 0xa7, A: 0xff},
	color.RGBA{R: 0xe6, G: 0x9f, A: 0xff},
	color.RGBA{A: 0xff},
	color.RGBA{R: 0x56, G: 0xb4, B: 0xe9, A: 0xff},
}

var dashes = [][]vg.Length{nil, {6, 3}, {2, 2}, {8, 2, 2, 2}}

const (
	pictureWidth  = 800
	pictureHeight = 320
	legendWidth   = 250
)

// svg draws the picture.
func (p *picture) svg() ([]byte, error) {
	chart := p.chart()
	legend := plot.NewLegend()
	legend.Top, legend.Left = true, true
	legend.YOffs = -28
	legend.Padding = 4
	legend.ThumbnailWidth = 26
	legend.TextStyle.Font.Variant, legend.TextStyle.Font.Size = "Sans", 11
	for i, l := range p.lines {
		points := p.visible(l)
		if len(points) == 0 {
			continue
		}
		drawn, err := plotter.NewLine(points)
		if err != nil {
			return nil, fmt.Errorf("picture %s, line %s: %w", p.name, l.name, err)
		}
		drawn.Color = palette[i%len(palette)]
		drawn.Width = 1.6
		drawn.Dashes = dashes[i%len(dashes)]
		chart.Add(drawn)
		legend.Add(l.name, drawn)
	}
	for _, axis := range []*plot.Axis{&chart.X, &chart.Y} {
		if axis.Min == axis.Max && axis.Min > 0 { // a logarithmic axis has no room below 1
			axis.Min, axis.Max = axis.Min/2, axis.Max*2
		}
	}
	canvas := vgsvg.New(pictureWidth, pictureHeight)
	all := draw.New(canvas)
	all.SetColor(color.White)
	all.Fill(all.Rectangle.Path())
	chart.Draw(draw.Crop(all, 8, -legendWidth, 8, -8))
	legend.Draw(draw.Crop(all, pictureWidth-legendWidth+12, 0, 0, 0))
	var out bytes.Buffer
	_, err := canvas.WriteTo(&out)
	return bytes.ReplaceAll(out.Bytes(), []byte("font-family:Liberation Sans;"), []byte("font-family:Liberation Sans,Arial,sans-serif;")), err
}

// visible returns the points of a line that the axes can show.
func (p *picture) visible(l line) plotter.XYs {
	return slices.DeleteFunc(slices.Clone(l.points), func(at plotter.XY) bool {
		return p.logX && at.X <= 0 || p.logY && at.Y <= 0
	})
}

// empty reports whether there is nothing to draw: no line has two points.
func (p *picture) empty() bool {
	return !slices.ContainsFunc(p.lines, func(l line) bool { return len(p.visible(l)) > 1 })
}

// chart returns the picture without its lines.
func (p *picture) chart() *plot.Plot {
	chart := plot.New()
	for _, style := range []*draw.TextStyle{
		&chart.Title.TextStyle, &chart.X.Label.TextStyle, &chart.Y.Label.TextStyle, &chart.X.Tick.Label, &chart.Y.Tick.Label,
	} {
		style.Font.Variant, style.Font.Size = "Sans", 11
	}
	chart.Title.TextStyle.Font.Size = 13
	chart.Title.Text = p.title
	chart.Title.Padding = 8
	chart.X.Label.Text, chart.Y.Label.Text = p.x, p.y
	chart.Add(grid())
	chart.X.Tick.Marker, chart.Y.Tick.Marker = plot.TickerFunc(steps), plot.TickerFunc(steps)
	if p.logX {
		chart.X.Scale, chart.X.Tick.Marker = plot.LogScale{}, plot.TickerFunc(powers)
	}
	if p.logY {
		chart.Y.Scale, chart.Y.Tick.Marker = plot.LogScale{}, plot.TickerFunc(powers)
	} else {
		chart.Y.Min = 0
	}
	return chart
}

func grid() *plotter.Grid {
	g := plotter.NewGrid()
	g.Vertical.Color, g.Horizontal.Color = color.Gray{0xe4}, color.Gray{0xe4}
	return g
}

// steps marks an axis at most six times, at multiples of 1, 2 or 5 times a power of ten.
func steps(low, high float64) []plot.Tick {
	power := math.Pow(10, math.Floor(math.Log10((high-low)/6)))
	step := power
	for _, factor := range []float64{2, 5, 10} {
		if (high-low)/step > 5.5 {
			step = factor * power
		}
	}
	var ticks []plot.Tick
	for i := math.Ceil(low / step); i*step <= high*1.0001; i++ {
		ticks = append(ticks, plot.Tick{Value: i * step, Label: strconv.FormatFloat(i*step, 'g', 6, 64)})
	}
	return ticks
}

// powers marks a logarithmic axis at 1, 2, 5, 10 and so on, or only at 1, 10, 100 if it
// is long.
func powers(low, high float64) []plot.Tick {
	steps := []float64{1, 2, 5}
	if high/low > 1000 {
		steps = steps[:1]
	}
	var ticks []plot.Tick
	for e := math.Floor(math.Log10(low)); e <= math.Log10(high); e++ {
		for _, step := range steps {
			v := step * math.Pow(10, e)
			if v >= low*0.999 && v <= high*1.001 {
				ticks = append(ticks, plot.Tick{Value: v, Label: strconv.FormatFloat(v, 'g', 6, 64)})
			}
		}
	}
	return ticks
}

// rows draws what a function makes of each second from one on, taking some together.
func rows(name string, all []second, from, every int, value func(second) float64) line {
	l := line{name: name}
	for ; from+every <= len(all); from += every {
		var sum second
		for _, s := range all[from : from+every] {
			sum = sum.plus(s)
		}
		l.add(float64(from)+float64(every)/2, value(sum))
	}
	return l
}
