package lang

import (
	"regexp"
	"strings"

	"github.com/hashicorp/hcl/v2"
)

// remedies are what to do about the mistakes that the HCL library finds, by its
// summaries, where its own words end with what is wrong.
var remedies = map[string]string{
	"Attempt to get attribute from null value":        "Give it a value first.",
	"Attempt to index null value":                     "Give it a value first.",
	"Argument or block definition required":           "Write name = value, or remove what stands here.",
	"Duplicate argument":                              "Leave one out.",
	"Duplicate attribute definition":                  "Leave one out.",
	"Error in function call":                          "Give it other arguments.",
	"Extra characters after interpolation expression": "Close it with } before them.",
	"Extraneous data after value":                     "Remove what follows.",
	"Incorrect JSON value type":                       "Write { … } instead.",
	"Invalid argument name":                           "Begin it with a letter.",
	"Invalid block definition":                        "For an argument, write name = value.",
	"Invalid character encoding":                      "Save the file as UTF-8.",
	"Invalid expression":                              "Write a value here, or remove the operator before it.",
	"Invalid function argument":                       "Give it another argument.",
	"Invalid index":                                   "Choose one that is there.",
	"Invalid JSON keyword":                            "Write true, false, null, or text in quotes.",
	"Invalid number literal":                          "Text, such as an address, stands in quotes.",
	"Invalid operand":                                 "Give it another value.",
	"Invalid single-argument block definition":        "Give each argument a line of its own; text stands in quotes.",
	"Invalid template interpolation value":            "Use one element, or join or jsonencode.",
	"Inconsistent conditional result types":           "Let both results have one type.",
	"Invalid type specification":                      "Write string, number, bool, list(…), map(…) or object({…}).",
	"Iteration over non-iterable value":               "Iterate over a list or an object.",
	"Missing argument separator":                      "Put a comma between the arguments.",
	"Missing attribute seperator comma":               "Put a comma between the properties.",
	"Missing attribute separator":                     "Put a comma or a new line between the attributes.",
	"Missing attribute value":                         "Write name = value.",
	"Missing block label":                             "Write { \"name\": { … } }.",
	"Missing item separator":                          "Put a comma between the elements, or close the list.",
	"Missing key/value separator":                     "Write name = value.",
	"Missing newline after argument":                  "Begin a new line.",
	"Missing newline after block definition":          "Begin a new line.",
	"Not enough function arguments":                   "Add what is missing.",
	"Root value must be object":                       "Write { … } around it.",
	"Too many function arguments":                     "Leave out what is too much.",
	"Trailing comma in array":                         "Remove the comma.",
	"Trailing comma in object":                        "Remove the comma.",
	"Unbalanced parentheses":                          "Add the parenthesis that is missing.",
	"Unclosed configuration block":                    "Add the brace that is missing.",
	"Unclosed object":                                 "Add the brace that is missing.",
	"Unsupported attribute":                           "Choose one that it has.",
	"Unterminated function call":                      "Add the parenthesis that is missing.",
	"Unterminated object constructor expression":      "Add the brace that is missing.",
	"Unterminated template string":                    "Add the quote that is missing.",
	"Unterminated tuple constructor expression":       "Add the bracket that is missing.",
}

var (
	oneSentence  = regexp.MustCompile(`^[^.?]*(\.[^ ][^.?]*)*[.?]?$`)
	libraryPlace = regexp.MustCompile(`(\S+):(\d+),(\d+)(-\d+)?(,\d+)?`)
)

// ownForm brings a diagnostic of the HCL library into the form of ours: places as
// file:line:column, a sentence what, a sentence what to do.
func ownForm(d *hcl.Diagnostic) *hcl.Diagnostic {
	c := &hcl.Diagnostic{Severity: d.Severity, Summary: d.Summary, Detail: d.Detail, Subject: d.Subject}
	if d.Subject != nil && strings.Contains(c.Detail, d.Subject.Filename+":") {
		c.Detail = libraryPlace.ReplaceAllString(c.Detail, "$1:$2:$3")
	}
	if d.Summary == "Invalid multi-line string" {
		c.Detail = `The text does not end on its line. Add the quote that is missing, or write \n for a new line.`
	}
	if more, ok := remedies[d.Summary]; ok && oneSentence.MatchString(c.Detail) {
		c.Detail = sentence(c.Detail) + " " + more
	}
	return c
}

// independent drops what follows from a syntax error told before: of several on
// one line the one about a character counts, else the first; strings that do not
// end make every later quote wrong; and JSON is read no further than the first.
func independent(diags hcl.Diagnostics, json bool) hcl.Diagnostics {
	var out hcl.Diagnostics
	line := map[int]int{}
	unended := false
	for _, d := range diags {
		at := place(d).Start.Line
		if i, told := line[at]; told {
			if d.Summary == "Invalid character" && out[i].Summary != d.Summary {
				out[i] = d
			}
			continue
		}
		if d.Summary == "Invalid multi-line string" {
			if unended {
				continue
			}
			unended = true
		}
		line[at] = len(out)
		out = append(out, d)
		if json {
			break
		}
	}
	return out
}
