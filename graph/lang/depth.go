package lang

import (
	"bytes"

	"github.com/hashicorp/hcl/v2"
	"github.com/hashicorp/hcl/v2/hclsyntax"
)

// maxDepth is how deep brackets and operators may nest: the parsers and the
// evaluation recurse, and a stack that overflows cannot be recovered from.
const maxDepth = 1000

// tooDeep finds where a file nests too deep.
func tooDeep(src []byte, path string, json bool) (hcl.Range, bool) {
	if json {
		return jsonTooDeep(src, path)
	}
	tokens, _ := hclsyntax.LexConfig(src, path, hcl.InitialPos)
	return tokensTooDeep(tokens)
}

// tokensTooDeep counts open brackets, and the operators of an expression: those
// up to a comma, or to the end of a line outside of parentheses and brackets.
func tokensTooDeep(tokens hclsyntax.Tokens) (hcl.Range, bool) {
	var open []hclsyntax.TokenType
	ops := 0
	for _, t := range tokens {
		switch t.Type {
		case hclsyntax.TokenOBrace, hclsyntax.TokenOBrack, hclsyntax.TokenOParen, hclsyntax.TokenTemplateInterp, hclsyntax.TokenTemplateControl:
			open = append(open, t.Type)
		case hclsyntax.TokenCBrace, hclsyntax.TokenCBrack, hclsyntax.TokenCParen, hclsyntax.TokenTemplateSeqEnd:
			open = open[:max(len(open)-1, 0)]
		case hclsyntax.TokenComma:
			ops = 0
		case hclsyntax.TokenNewline:
			if len(open) == 0 || open[len(open)-1] == hclsyntax.TokenOBrace {
				ops = 0
			}
		case hclsyntax.TokenIdent, hclsyntax.TokenNumberLit, hclsyntax.TokenStringLit, hclsyntax.TokenQuotedLit, hclsyntax.TokenEqual,
			hclsyntax.TokenOQuote, hclsyntax.TokenCQuote, hclsyntax.TokenComment, hclsyntax.TokenOHeredoc, hclsyntax.TokenCHeredoc:
		default:
			ops++
		}
		if len(open)+ops > maxDepth {
			return t.Range, true
		}
	}
	return hcl.Range{}, false
}

// jsonTooDeep counts the open brackets of JSON, and looks into its strings: they
// are templates, and in some places types.
func jsonTooDeep(src []byte, path string) (hcl.Range, bool) {
	depth, quote := 0, -1
	line, begin := 1, 0
	here := func(i int) hcl.Range {
		return hcl.Range{
			Filename: path, Start: hcl.Pos{Line: line, Column: i - begin + 1, Byte: i}, End: hcl.Pos{Line: line, Column: i - begin + 2, Byte: i + 1},
		}
	}
	for i := 0; i < len(src); i++ {
		c := src[i]
		switch {
		case quote >= 0:
			if c == '\\' {
				i++
			} else if c == '"' {
				text := src[quote+1 : i]
				if bytes.Count(text, []byte("(")) > maxDepth {
					return here(quote), true
				}
				if bytes.Contains(text, []byte("${")) || bytes.Contains(text, []byte("%{")) {
					tokens, _ := hclsyntax.LexTemplate(text, path, hcl.InitialPos)
					if _, deep := tokensTooDeep(tokens); deep {
						return here(quote), true
					}
				}
				quote = -1
			}
		case c == '"':
			quote = i
		case c == '{', c == '[':
			depth++
		case c == '}', c == ']':
			depth--
		case c == '\n':
			line, begin = line+1, i+1
		}
		if depth > maxDepth {
			return here(i), true
		}
	}
	return hcl.Range{}, false
}
