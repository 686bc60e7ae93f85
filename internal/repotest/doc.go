// Package repotest holds tests over the repository itself: the floor plan,
// package comments, the parts every kind of node has, the words and links of the
// documents, and the list of dependencies. It has no other code.
package repotest
