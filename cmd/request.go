package cmd

import (
	"cmp"
	"fmt"
	"net/netip"
	"strings"
	"text/tabwriter"

	"github.com/spf13/cobra"

	"github.com/lbgraph/lbgraph/control/admin"
)

// question is a request that a command asks about.
type question struct{ admin.Request }

// flags adds the flags that say more of a request than its URL.
func (q *question) flags(c *cobra.Command, client *string) {
	c.Flags().StringVar(&q.Method, "method", "GET", "`method` of the request")
	c.Flags().StringArrayVar(&q.Headers, "header", nil, "further field of the request, as `\"Name: value\"`; may be repeated")
	c.Flags().StringVar(&q.Listener, "listener", "", "`node` that accepts it, or STREAM/NODE, where the URL's port does not say")
	c.Flags().StringVar(client, "client", "", "`address` of the client")
}

func (q *question) parse(client string) (err error) {
	if client != "" {
		if q.Client, err = netip.ParseAddr(client); err != nil {
			return misuse("--client is %q, which is no address", client)
		}
	}
	return nil
}

// wayOf draws what became, or would become, of a session.
func wayOf(t *admin.Session) string {
	var b strings.Builder
	live := t.Total != nil
	if live {
		fmt.Fprintf(&b, "%s  ", t.Time.Local().Format("15:04:05.000000"))
	}
	what := "TCP " + t.ServerName
	if t.Method != "" {
		// Clients say what they like; a terminal is not to obey them.
		what = fmt.Sprintf("%s %s%s", safe(t.Method), safe(t.Host), safe(t.Path))
	} else if t.Protocol != "TCP" {
		what = t.Protocol + " unreadable"
	}
	fmt.Fprintf(&b, "%s from %s by %s/%s: ", strings.TrimSpace(what), t.Client, t.Stream, t.Listener)
	switch {
	case t.Status > 0 && t.Status != 499:
		fmt.Fprintf(&b, "%d", t.Status)
	case live:
		b.WriteString(t.Outcome)
	case t.Backend != "":
		b.WriteString(cmp.Or(t.Name, t.Backend))
	case t.Reason != "":
		b.WriteString("closed")
	default:
		b.WriteString("a backend")
	}
	if t.Reason != "" {
		fmt.Fprintf(&b, ", %s at %s", t.Reason, t.Node)
	}
	if t.Error != "" {
		fmt.Fprintf(&b, " (%s)", safe(t.Error))
	}
	b.WriteByte('\n')
	w := tabwriter.NewWriter(&b, 0, 0, 2, ' ', 0)
	for _, s := range t.Steps {
		cells := []string{"  " + s.Node, s.Kind}
		if live {
			cells = append(cells, fmt.Sprintf("at %.1f ms", s.At), fmt.Sprintf("%.1f ms", s.Took))
			if s.Kind == "" { // it was left before the session began
				cells[2], cells[3] = "", ""
			}
		}
		end := ""
		if s.Output != "" {
			end = "-> " + s.Output
		}
		fmt.Fprintln(w, strings.Join(append(cells, end, s.Says), "\t"))
	}
	_ = w.Flush()
	if live {
		var parts []string
		for _, p := range []struct {
			name string
			ms   *float64
		}{{"queue", t.Queue}, {"connect", t.Connect}, {"first byte", t.FirstByte}, {"total", t.Total}} {
			if p.ms != nil {
				parts = append(parts, fmt.Sprintf("%s %.1f ms", p.name, *p.ms))
			}
		}
		if t.Backend != "" {
			name := t.Backend
			if t.Name != "" {
				name = t.Name + " at " + name
			}
			parts = append(parts, "backend "+name)
		}
		if t.Tries > 1 {
			parts = append(parts, fmt.Sprintf("%d tries", t.Tries))
		}
		parts = append(parts, fmt.Sprintf("%d bytes in, %d out", t.BytesIn, t.BytesOut))
		fmt.Fprintf(&b, "  %s\n", strings.Join(parts, ", "))
	}
	return trimmed(b.String())
}

// trimmed drops the blanks that aligned columns leave at the ends of lines.
func trimmed(s string) string {
	var b strings.Builder
	for line := range strings.Lines(s) {
		b.WriteString(strings.TrimRight(line, " \n") + "\n")
	}
	return b.String()
}

// safe replaces what a terminal might obey.
func safe(s string) string {
	return strings.Map(func(r rune) rune {
		if r < ' ' || r >= 0x7f && r < 0xa0 {
			return '\ufffd'
		}
		return r
	}, strings.ToValidUTF8(s, "\ufffd"))
}
