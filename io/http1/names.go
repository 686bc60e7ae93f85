package http1

// An ID stands for a field name that framing or forwarding has to know.
type ID uint8

// The known names. All others are Other.
const (
	Other ID = iota
	Host
	Connection
	KeepAlive
	ProxyConnection
	ContentLength
	TransferEncoding
	TE
	Trailer
	Upgrade
	Expect
	HTTP2Settings
	ProxyAuthenticate
	ProxyAuthorization
	Forwarded
	RealIP         // X-Real-IP
	ForwardedFor   // X-Forwarded-For
	ForwardedHost  // X-Forwarded-Host
	ForwardedProto // X-Forwarded-Proto
	ForwardedOther // any other X-Forwarded-…
	LookAlike      // a name of ours that is spelled with underscores
	idEnd          // their number
	_              = 64 - idEnd
)

// A Set is a set of IDs.
type Set uint64

// SetOf answers the set of ids.
func SetOf(ids ...ID) (s Set) {
	for _, id := range ids {
		s |= 1 << id
	}
	return s
}

// Has tells whether id is in the set.
func (s Set) Has(id ID) bool { return s>>id&1 != 0 }

// HopByHop is what concerns one connection alone, and is never passed on (RFC 9110
// section 7.6.1), and the framing fields, which are written anew. What goes on of
// TE and Upgrade is written anew, too.
const HopByHop Set = 1<<Connection | 1<<KeepAlive | 1<<ProxyConnection | 1<<ContentLength | 1<<TransferEncoding |
	1<<TE | 1<<Upgrade | 1<<HTTP2Settings | 1<<ProxyAuthenticate | 1<<ProxyAuthorization

// Managed is the fields by which proxies tell who the client is.
const Managed Set = 1<<Forwarded | 1<<RealIP | 1<<ForwardedFor | 1<<ForwardedHost | 1<<ForwardedProto | 1<<ForwardedOther | 1<<LookAlike

// Classes of bytes.
const (
	token      = 1 << iota // RFC 9110 section 5.6.2
	underscore             // "_", which gateways take for "-"
	target                 // may stand in a request target
	host                   // may stand in the value of Host (RFC 3986 section 3.2)
)

var class = func() (t [256]uint8) {
	for c := range 256 {
		b := byte(c)
		alnum := b >= '0' && b <= '9' || b >= 'a' && b <= 'z' || b >= 'A' && b <= 'Z'
		if alnum || in("!#$%&'*+-.^_`|~", b) {
			t[c] |= token
		}
		// Letters beyond ASCII are passed on as they are: servers take them, and no
		// two read another end of the target.
		if b > ' ' && b != 0x7f && b != '#' {
			t[c] |= target
		}
		if alnum || in("-._~!$&'()*+,;=%:[]", b) {
			t[c] |= host
		}
	}
	t['_'] |= underscore
	return t
}()

func in(s string, b byte) bool {
	for i := range len(s) {
		if s[i] == b {
			return true
		}
	}
	return false
}

// EqualFold tells whether b is name, which is in lower case and of letters, digits
// and "-". b is of token characters.
func EqualFold(b []byte, name string) bool {
	if len(b) != len(name) {
		return false
	}
	for i := range len(name) {
		// No other token character becomes a letter, a digit or "-" by this bit.
		if b[i]|0x20 != name[i] {
			return false
		}
	}
	return true
}

// names are the known names by their length.
var names = [...][]struct {
	name string
	id   ID
}{
	2:  {{"te", TE}},
	4:  {{"host", Host}},
	6:  {{"expect", Expect}},
	7:  {{"trailer", Trailer}, {"upgrade", Upgrade}},
	9:  {{"forwarded", Forwarded}, {"x-real-ip", RealIP}},
	10: {{"connection", Connection}, {"keep-alive", KeepAlive}},
	14: {{"content-length", ContentLength}, {"http2-settings", HTTP2Settings}},
	15: {{"x-forwarded-for", ForwardedFor}},
	16: {{"x-forwarded-host", ForwardedHost}, {"proxy-connection", ProxyConnection}},
	17: {{"x-forwarded-proto", ForwardedProto}, {"transfer-encoding", TransferEncoding}},
	18: {{"proxy-authenticate", ProxyAuthenticate}},
	19: {{"proxy-authorization", ProxyAuthorization}},
}

const forwardedPrefix = "x-forwarded-"

// Identify answers the ID of a field name, which is of token characters.
func Identify(name []byte) ID {
	id := identify(name)
	if id == Other && lookAlike(name) {
		return LookAlike
	}
	return id
}

// identify is Identify but for look-alikes.
func identify(name []byte) ID {
	if len(name) < len(names) {
		for _, n := range names[len(name)] {
			if EqualFold(name, n.name) {
				return n.id
			}
		}
	}
	if len(name) >= len(forwardedPrefix) && EqualFold(name[:len(forwardedPrefix)], forwardedPrefix) {
		return ForwardedOther
	}
	return Other
}

// lookAlike tells whether a name with underscores is one of ours to those who take
// "_" for "-" (RFC 3875 section 4.1.18).
func lookAlike(name []byte) bool {
	alike := func(pattern string) bool {
		for i := range len(pattern) {
			if c := name[i]; c|0x20 != pattern[i] && !(c == '_' && pattern[i] == '-') {
				return false
			}
		}
		return true
	}
	if len(name) >= len(forwardedPrefix) && alike(forwardedPrefix) {
		return true
	}
	if len(name) < len(names) {
		for _, n := range names[len(name)] {
			if alike(n.name) {
				return true
			}
		}
	}
	return false
}
