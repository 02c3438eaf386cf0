package dev

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"sheaf.dev/sheaf/internal/test/must"
)

// TestInvalidSettingsAreRefused checks that a start refuses settings that no program writes, with an error that names
// the settings file. The folder is on a real file system, because dev requires one.
func TestInvalidSettingsAreRefused(t *testing.T) {
	const sound = `"format":1,"storeUUID":"11111111-1111-4111-8111-111111111111","routing":{"mode":"Hash","groups":4}`
	for _, content := range []string{
		"", "{", `{"format":1}`, `{` + sound + `}`, `{` + sound + `,"shards":-1}`, `{` + sound + `,"shards":2000000000}`,
		`{` + sound + `,"shards":3,"copies":2000000000}`,
		`{"format":1,"storeUUID":"11111111-1111-4111-8111-111111111111","shards":3,"routing":{"mode":"x"}}`,
		`{"format":1,"storeUUID":"11111111-1111-4111-8111-111111111111","shards":3,"routing":{"mode":"Hash","groups":-4}}`,
	} {
		dir := t.TempDir()
		must.OK(t, os.WriteFile(filepath.Join(dir, settingsName), []byte(content), 0o600))
		f, err := openFolder(Config{Dir: dir})
		if err == nil {
			t.Errorf("%s is taken as %+v", content, f.settings)
			continue
		}
		if said := err.Error(); !strings.Contains(said, filepath.Join(dir, settingsName)) || strings.Contains(said, "%!") {
			t.Errorf("%s: %v", content, err)
		}
	}
}
