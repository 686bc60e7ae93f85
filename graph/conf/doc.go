// Package conf reads HCL into tagged structs, documents the same structs, and
// compares two of them. One struct is thus the whole truth about a block of the
// file: what it may say, what it says, and what the reference pages tell.
//
// The tags of a field:
//
//	hcl:"name"            a required argument
//	hcl:"name,optional"   an argument; the value in the struct is its default
//	hcl:"name,block"      a nested block: a struct, a pointer (nil without the
//	                      block), or a slice of structs for repeated blocks
//	hcl:"name,label"      in the struct of a block: one of the names behind its type
//	doc:"…"               half a sentence for people
//	range:"lo,hi"         bounds of numbers and durations, either may be empty
//	enum:"a,b"            the allowed values of text and integers
//	ref:"pool"            the text is the name of a declared block of that type,
//	                      given as pool.web or "web"
//	secret:"true"         Changes does not print the value
//
// An argument is a string, a bool, an integer or float of any size, a
// time.Duration ("5s"), a netip.Addr, a netip.Prefix (an address is the prefix of
// its full length), a netip.AddrPort, an encoding.TextUnmarshaler (whose error says
// what to write, as in "write a port from 0 to 65535"), a pointer to one of these (nil
// where the file is silent), a slice of them, a map[string] of them, or a struct
// or a slice of structs, given as objects. An hcl.Expression is kept as it is, for
// the caller to evaluate. Anonymous structs are as if written
// out. Fields without an hcl tag are left alone. A struct that has defaults of
// its own as the element of a slice implements Defaulter.
//
// Negative durations are refused unless the range allows them. What the file
// says is never rounded, cut or wrapped: what does not fit is a diagnostic.
package conf
