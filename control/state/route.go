package state

import "net/netip"

// SetRoute says whether the kernel has a way to a backend. A backend of which
// nothing was said has one.
func (s *Store) SetRoute(a netip.Addr, ok bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if b := s.backendOf[a.Unmap()]; b != nil && b.NoRoute == ok {
		b.NoRoute = !ok
		s.shape.backends = nil
		s.later()
	}
}
