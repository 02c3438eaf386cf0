package result

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"

	"sheaf.dev/sheaf/internal/storage/vfs"
)

// plotsDir is the folder of the pictures next to report.md.
const plotsDir = "plots"

// WriteDir writes report.json, report.md, report.html and plots/*.svg and *.png into a folder, which it creates. If a
// report is already in the folder, WriteDir overwrites its files.
func (r *Report) WriteDir(dir string) error {
	if err := r.Check(); err != nil {
		return fmt.Errorf("benchmark report: %w", err)
	}
	if err := os.MkdirAll(filepath.Join(dir, plotsDir), 0o755); err != nil {
		return fmt.Errorf("making a folder for the report: %w", err)
	}
	var errs []error
	put := func(name string, write func(io.Writer) error) {
		if err := vfs.ReplaceFile(filepath.Join(dir, name), write); err != nil {
			errs = append(errs, fmt.Errorf("%s: %w", name, err))
		}
	}
	put("report.json", r.WriteJSON)
	put("report.md", func(w io.Writer) error { return r.WriteMarkdown(w, plotsDir) })
	put("report.html", r.writeHTML)
	for i := range r.Tables {
		for j := range r.Tables[i].Plots {
			p := &r.Tables[i].Plots[j]
			put(filepath.Join(plotsDir, p.ID+".svg"), p.writeSVG)
			put(filepath.Join(plotsDir, p.ID+".png"), p.writePNG)
		}
	}
	return errors.Join(errs...)
}
