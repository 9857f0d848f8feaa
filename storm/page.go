package main

import (
	"bytes"
	_ "embed"
	"fmt"
	"html/template"
	"io"
	"os"
	"path/filepath"
	"strings"
)

// page.html is all of the report: it refers to nothing outside, and allows nothing.
//
//go:embed page.html
var pageHTML string

var pageTemplate = template.Must(template.New("page").Parse(pageHTML))

// A chapter is a scenario in the HTML report.
type chapter struct {
	Name, Title, About string
	Tables             []chapterTable
	Pictures           []template.HTML
}

type chapterTable struct {
	Title       string
	Head, Notes []string
	Rows        [][]string
}

func newChapter(sc scenario, r report) (chapter, error) {
	c := chapter{Name: sc.name, Title: sc.title, About: strings.TrimSpace(sc.about)}
	for _, t := range r.tables {
		c.Tables = append(c.Tables, chapterTable{t.title, t.head, t.notes, t.rows})
	}
	for _, p := range r.pictures {
		if p.empty() {
			continue
		}
		svg, err := p.svg()
		if err != nil {
			return c, err
		}
		// What comes before it is for a file of its own.
		c.Pictures = append(c.Pictures, template.HTML(svg[bytes.Index(svg, []byte("<svg")):]))
	}
	return c, nil
}

func writePage(out io.Writer, seed uint64, chapters []chapter) error {
	return pageTemplate.Execute(out, struct {
		Seed     uint64
		Chapters []chapter
	}{seed, chapters})
}

// save writes the pictures and the page to a directory, which it makes.
func save(dir string, s settings, ran []scenario, reports []report) error {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return fmt.Errorf("no place for the report: %w", err)
	}
	var chapters []chapter
	for i, r := range reports {
		c, err := newChapter(ran[i], r)
		if err != nil {
			return err
		}
		chapters = append(chapters, c)
		if err := savePictures(dir, r.pictures); err != nil {
			return err
		}
	}
	var page bytes.Buffer
	if err := writePage(&page, s.seed, chapters); err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(dir, "index.html"), page.Bytes(), 0o644)
}

func savePictures(dir string, pictures []picture) error {
	for _, p := range pictures {
		if p.empty() {
			continue
		}
		svg, err := p.svg()
		if err != nil {
			return err
		}
		if err := os.WriteFile(filepath.Join(dir, p.name+".svg"), svg, 0o644); err != nil {
			return err
		}
	}
	return nil
}
