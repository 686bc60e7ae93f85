package lang

import (
	"github.com/hashicorp/hcl/v2"
	"github.com/hashicorp/hcl/v2/hclsyntax"
)

// tooDeep finds where a file nests deeper than the recursive parsers should go.
// It counts open brackets and, between two commas or line ends, operators.
func tooDeep(src []byte, path string, json bool) (hcl.Range, bool) {
	if json {
		return jsonTooDeep(src, path)
	}
	tokens, _ := hclsyntax.LexConfig(src, path, hcl.InitialPos)
	depth, ops := 0, 0
	for _, t := range tokens {
		switch t.Type {
		case hclsyntax.TokenOBrace, hclsyntax.TokenOBrack, hclsyntax.TokenOParen, hclsyntax.TokenTemplateInterp, hclsyntax.TokenTemplateControl:
			depth++
		case hclsyntax.TokenCBrace, hclsyntax.TokenCBrack, hclsyntax.TokenCParen, hclsyntax.TokenTemplateSeqEnd:
			depth = max(depth-1, 0)
		case hclsyntax.TokenNewline, hclsyntax.TokenComma:
			ops = 0
		case hclsyntax.TokenIdent, hclsyntax.TokenNumberLit, hclsyntax.TokenStringLit, hclsyntax.TokenQuotedLit, hclsyntax.TokenEqual,
			hclsyntax.TokenOQuote, hclsyntax.TokenCQuote, hclsyntax.TokenComment, hclsyntax.TokenOHeredoc, hclsyntax.TokenCHeredoc:
		default:
			ops++
		}
		if depth+ops > maxDepth {
			return t.Range, true
		}
	}
	return hcl.Range{}, false
}

func jsonTooDeep(src []byte, path string) (hcl.Range, bool) {
	depth, quoted := 0, false
	pos := hcl.InitialPos
	for i := 0; i < len(src); i++ {
		c := src[i]
		switch {
		case quoted:
			if c == '\\' {
				i++
			} else if c == '"' {
				quoted = false
			}
		case c == '"':
			quoted = true
		case c == '{', c == '[':
			depth++
		case c == '}', c == ']':
			depth--
		case c == '\n':
			pos.Line++
		}
		if depth > maxDepth {
			pos.Byte = i
			return hcl.Range{Filename: path, Start: pos, End: hcl.Pos{Line: pos.Line, Column: 2, Byte: i + 1}}, true
		}
	}
	return hcl.Range{}, false
}
