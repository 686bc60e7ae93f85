package daemon

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"

	"github.com/hashicorp/hcl/v2"

	"github.com/lbgraph/lbgraph/graph"
	"github.com/lbgraph/lbgraph/graph/lang"
)

// A Source is where a configuration comes from.
type Source struct {
	Path string
	Vars map[string]string // as from -var
}

// Loaded is a configuration that was read and checked, and all that it was made of.
type Loaded struct {
	Source
	File   *graph.File // nil with errors among Diags
	Parsed *graph.File // nil only if the file is not in the language
	Diags  hcl.Diagnostics
	// Sources are all files that were read, also those that the file includes or
	// whose text it takes, by path; nil where one could not be read.
	Sources map[string][]byte
	// Env is the environment variables that were asked for; nil is one that is not
	// set.
	Env map[string]*string
}

// Load reads and checks the configuration.
func (s Source) Load() Loaded { return s.load(os.ReadFile, os.LookupEnv) }

func (s Source) load(read func(string) ([]byte, error), env func(string) (string, bool)) Loaded {
	l := Loaded{Source: s, Sources: map[string][]byte{}, Env: map[string]*string{}}
	l.Parsed, l.Diags = lang.Load(s.Path, lang.Options{
		Vars: s.Vars,
		ReadFile: func(path string) ([]byte, error) {
			b, err := read(path)
			if err != nil {
				l.Sources[path] = nil
				return nil, err
			}
			if b == nil {
				b = []byte{}
			}
			l.Sources[path] = b
			return b, nil
		},
		Env: func(name string) (string, bool) {
			v, ok := env(name)
			if l.Env[name] = nil; ok {
				l.Env[name] = &v
			}
			return v, ok
		},
	})
	if l.Parsed == nil {
		return l
	}
	if l.Diags = append(l.Diags, graph.Check(l.Parsed)...); !l.Diags.HasErrors() {
		l.File = l.Parsed
	}
	return l
}

// Files are the paths of all files that were read, in order.
func (l Loaded) Files() []string { return slices.Sorted(maps.Keys(l.Sources)) }

// Changed tells whether a file reads differently now.
func (l Loaded) Changed() bool {
	for path, was := range l.Sources {
		now, err := os.ReadFile(path)
		if (err != nil) != (was == nil) || !bytes.Equal(now, was) {
			return true
		}
	}
	return false
}

// cached is the form of a cache file: all that a configuration was made of, so that
// it means the same whatever became of its files.
type cached struct {
	Path  string             `json:"path"`
	Vars  map[string]string  `json:"vars"`
	Env   map[string]*string `json:"env"`
	Files map[string][]byte  `json:"files"`
}

// Save writes what the configuration was made of to a file that its owner alone may
// read, in one step.
func (l Loaded) Save(path string) error {
	b, err := json.Marshal(cached{l.Path, l.Vars, l.Env, l.Sources})
	if err != nil {
		return err
	}
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		return err
	}
	f, err := os.CreateTemp(filepath.Dir(path), "."+filepath.Base(path)+"-*") // mode 0600
	if err != nil {
		return err
	}
	_, err = f.Write(b)
	err = errors.Join(err, f.Sync(), f.Close())
	if err == nil {
		err = os.Rename(f.Name(), path)
	}
	if err != nil {
		_ = os.Remove(f.Name())
	}
	return err
}

// LoadSaved reads and checks what Save wrote.
func LoadSaved(path string) (Loaded, error) {
	b, err := os.ReadFile(path)
	if err != nil {
		return Loaded{}, err
	}
	var c cached
	if err := json.Unmarshal(b, &c); err != nil || c.Path == "" {
		return Loaded{}, fmt.Errorf("%s is no configuration that was kept", path)
	}
	read := func(name string) ([]byte, error) {
		if b := c.Files[name]; b != nil {
			return b, nil
		}
		return nil, &os.PathError{Op: "open", Path: name, Err: os.ErrNotExist}
	}
	env := func(name string) (string, bool) {
		if v := c.Env[name]; v != nil {
			return *v, true
		}
		return "", false
	}
	l := Source{c.Path, c.Vars}.load(read, env)
	if l.File == nil {
		return l, fmt.Errorf("%s does not pass the checks of this version", path)
	}
	return l, nil
}
