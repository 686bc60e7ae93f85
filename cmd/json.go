package cmd

import "encoding/json"

// json writes v to standard output, unless there is an error already.
func (a *app) json(v any, err error) error {
	if err != nil {
		return err
	}
	e := json.NewEncoder(a.out)
	e.SetIndent("", "  ")
	e.SetEscapeHTML(false)
	return e.Encode(v)
}
