package state

// PoolMember answers the backend that a slot of a pool stands for, and its status
// there at this moment. Backend 0, which is Down, stands for slots that are free or
// dead.
func (s *Snapshot) PoolMember(pool, slot uint32) (backend uint32, status Status) {
	if uint64(pool) >= uint64(len(s.Pools)) {
		return 0, Down
	}
	p := &s.Pools[pool]
	if i := uint64(p.base) + uint64(slot); p.base != 0 && uint64(slot) < uint64(len(p.Members)) && i < uint64(len(s.Words)) {
		return s.Words[i].Load()
	}
	return 0, Down
}
