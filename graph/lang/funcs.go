package lang

import (
	"fmt"
	"math/big"
	"net/netip"
	"path/filepath"
	"sort"
	"unicode/utf8"

	"github.com/zclconf/go-cty/cty"
	"github.com/zclconf/go-cty/cty/function"
	"github.com/zclconf/go-cty/cty/function/stdlib"
)

// pure are the functions of the cty standard library, under the names that HCL's
// users know.
var pure = map[string]function.Function{
	"abs": stdlib.AbsoluteFunc, "ceil": stdlib.CeilFunc, "chomp": stdlib.ChompFunc, "chunklist": stdlib.ChunklistFunc,
	"coalesce": stdlib.CoalesceFunc, "coalescelist": stdlib.CoalesceListFunc, "compact": stdlib.CompactFunc,
	"concat": stdlib.ConcatFunc, "contains": stdlib.ContainsFunc, "csvdecode": stdlib.CSVDecodeFunc,
	"distinct": stdlib.DistinctFunc, "element": stdlib.ElementFunc, "flatten": stdlib.FlattenFunc, "floor": stdlib.FloorFunc,
	"format": stdlib.FormatFunc, "formatlist": stdlib.FormatListFunc, "indent": stdlib.IndentFunc, "join": stdlib.JoinFunc,
	"jsondecode": stdlib.JSONDecodeFunc, "jsonencode": stdlib.JSONEncodeFunc, "keys": stdlib.KeysFunc,
	"length": stdlib.LengthFunc, "log": stdlib.LogFunc, "lookup": stdlib.LookupFunc, "lower": stdlib.LowerFunc,
	"max": stdlib.MaxFunc, "merge": stdlib.MergeFunc, "min": stdlib.MinFunc, "parseint": stdlib.ParseIntFunc,
	"pow": stdlib.PowFunc, "range": stdlib.RangeFunc, "regex": stdlib.RegexFunc, "regexall": stdlib.RegexAllFunc,
	"regexreplace": stdlib.RegexReplaceFunc, "replace": stdlib.ReplaceFunc, "reverse": stdlib.ReverseListFunc,
	"setintersection": stdlib.SetIntersectionFunc, "setproduct": stdlib.SetProductFunc, "setsubtract": stdlib.SetSubtractFunc,
	"setunion": stdlib.SetUnionFunc, "signum": stdlib.SignumFunc, "slice": stdlib.SliceFunc, "sort": stdlib.SortFunc,
	"split": stdlib.SplitFunc, "strlen": stdlib.StrlenFunc, "substr": stdlib.SubstrFunc, "title": stdlib.TitleFunc,
	"tobool": stdlib.MakeToFunc(cty.Bool), "tonumber": stdlib.MakeToFunc(cty.Number), "tostring": stdlib.MakeToFunc(cty.String),
	"tolist": stdlib.MakeToFunc(cty.List(cty.DynamicPseudoType)), "tomap": stdlib.MakeToFunc(cty.Map(cty.DynamicPseudoType)),
	"toset": stdlib.MakeToFunc(cty.Set(cty.DynamicPseudoType)),
	"trim":  stdlib.TrimFunc, "trimprefix": stdlib.TrimPrefixFunc, "trimspace": stdlib.TrimSpaceFunc, "trimsuffix": stdlib.TrimSuffixFunc,
	"upper": stdlib.UpperFunc, "values": stdlib.ValuesFunc, "zipmap": stdlib.ZipmapFunc,
	"cidrhost": cidrHost, "cidrnetmask": cidrNetmask, "cidrsubnet": cidrSubnet,
}

// functions answers all functions of the language. file and env are as o says.
func functions(path string, o Options) map[string]function.Function {
	all := make(map[string]function.Function, len(pure)+2)
	for n, f := range pure {
		all[n] = f
	}
	all["file"] = function.New(&function.Spec{
		Description: "the text of a file; a relative path begins at the configuration file",
		Params:      []function.Parameter{{Name: "path", Type: cty.String}},
		Type:        function.StaticReturnType(cty.String),
		Impl: func(args []cty.Value, _ cty.Type) (cty.Value, error) {
			p := args[0].AsString()
			if !filepath.IsAbs(p) {
				p = filepath.Join(filepath.Dir(path), p)
			}
			b, err := o.ReadFile(p)
			if err != nil {
				return cty.NilVal, function.NewArgErrorf(0, "%s cannot be read: %s", p, cause(err))
			}
			if !utf8.Valid(b) {
				return cty.NilVal, function.NewArgErrorf(0, "%s is no UTF-8 text", p)
			}
			return cty.StringVal(string(b)), nil
		},
	})
	all["env"] = function.New(&function.Spec{
		Description: "the value of an environment variable, else the second argument",
		Params:      []function.Parameter{{Name: "name", Type: cty.String}},
		VarParam:    &function.Parameter{Name: "default", Type: cty.String},
		Type:        function.StaticReturnType(cty.String),
		Impl: func(args []cty.Value, _ cty.Type) (cty.Value, error) {
			if v, ok := o.Env(args[0].AsString()); ok {
				return cty.StringVal(v), nil
			}
			if len(args) > 1 {
				return args[1], nil
			}
			return cty.NilVal, function.NewArgErrorf(0, "%s is not set in the environment", args[0].AsString())
		},
	})
	return all
}

var cidrHost = function.New(&function.Spec{
	Description: "address number n of a prefix; negative n counts from its end",
	Params:      []function.Parameter{{Name: "prefix", Type: cty.String}, {Name: "n", Type: cty.Number}},
	Type:        function.StaticReturnType(cty.String),
	Impl: func(args []cty.Value, _ cty.Type) (cty.Value, error) {
		p, err := prefixArg(args[0])
		if err != nil {
			return cty.NilVal, err
		}
		n, err := wholeArg(args[1], 1)
		if err != nil {
			return cty.NilVal, err
		}
		a, err := offset(p, n, p.Addr().BitLen()-p.Bits())
		if err != nil {
			return cty.NilVal, err
		}
		return cty.StringVal(a.String()), nil
	},
})

var cidrSubnet = function.New(&function.Spec{
	Description: "prefix number n of those that are newbits longer than prefix",
	Params: []function.Parameter{
		{Name: "prefix", Type: cty.String}, {Name: "newbits", Type: cty.Number}, {Name: "n", Type: cty.Number},
	},
	Type: function.StaticReturnType(cty.String),
	Impl: func(args []cty.Value, _ cty.Type) (cty.Value, error) {
		p, err := prefixArg(args[0])
		if err != nil {
			return cty.NilVal, err
		}
		more, err := wholeArg(args[1], 1)
		if err != nil {
			return cty.NilVal, err
		}
		if more.Sign() < 0 || !more.IsInt64() || more.Int64() > int64(p.Addr().BitLen()-p.Bits()) {
			return cty.NilVal, function.NewArgErrorf(1, "%s has %d bits left", p, p.Addr().BitLen()-p.Bits())
		}
		n, err := wholeArg(args[2], 2)
		if err != nil {
			return cty.NilVal, err
		}
		bits := p.Bits() + int(more.Int64())
		if n.Sign() < 0 || n.BitLen() > int(more.Int64()) {
			return cty.NilVal, function.NewArgErrorf(2, "%s has no subnet %s with %s more bits", p, n, more)
		}
		a, err := offset(p, n.Lsh(n, uint(p.Addr().BitLen()-bits)), p.Addr().BitLen()-p.Bits())
		if err != nil {
			return cty.NilVal, err
		}
		return cty.StringVal(netip.PrefixFrom(a, bits).String()), nil
	},
})

var cidrNetmask = function.New(&function.Spec{
	Description: "the netmask of an IPv4 prefix",
	Params:      []function.Parameter{{Name: "prefix", Type: cty.String}},
	Type:        function.StaticReturnType(cty.String),
	Impl: func(args []cty.Value, _ cty.Type) (cty.Value, error) {
		p, err := prefixArg(args[0])
		if err != nil {
			return cty.NilVal, err
		}
		if !p.Addr().Is4() {
			return cty.NilVal, function.NewArgErrorf(0, "%s is no IPv4 prefix", p)
		}
		m := ^uint32(0) << (32 - p.Bits())
		if p.Bits() == 0 {
			m = 0
		}
		return cty.StringVal(netip.AddrFrom4([4]byte{byte(m >> 24), byte(m >> 16), byte(m >> 8), byte(m)}).String()), nil
	},
})

func prefixArg(v cty.Value) (netip.Prefix, error) {
	p, err := netip.ParsePrefix(v.AsString())
	if err != nil {
		return p, function.NewArgErrorf(0, "%q is no prefix", v.AsString())
	}
	return p.Masked(), nil
}

func wholeArg(v cty.Value, i int) (*big.Int, error) {
	f := v.AsBigFloat()
	if !f.IsInt() || f.MantExp(nil) > 200 {
		return nil, function.NewArgErrorf(i, "it is no whole number, or too large")
	}
	n, _ := f.Int(nil)
	return n, nil
}

// offset answers the address n behind the first of p, within its last bits bits.
func offset(p netip.Prefix, n *big.Int, bits int) (netip.Addr, error) {
	size := new(big.Int).Lsh(big.NewInt(1), uint(bits))
	if n.Sign() < 0 {
		n = new(big.Int).Add(size, n)
	}
	if n.Sign() < 0 || n.Cmp(size) >= 0 {
		return netip.Addr{}, fmt.Errorf("%s has no such address", p)
	}
	base := new(big.Int).SetBytes(p.Addr().AsSlice())
	b := base.Add(base, n).FillBytes(make([]byte, p.Addr().BitLen()/8))
	a, _ := netip.AddrFromSlice(b)
	return a, nil
}

func sortedKeys[V any](m map[string]V) []string {
	ks := make([]string, 0, len(m))
	for k := range m {
		ks = append(ks, k)
	}
	sort.Strings(ks)
	return ks
}
