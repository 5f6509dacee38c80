// Package interop tests that locks of locker and of others exclude each other on the same entry, in both directions and
// under contention. It is a module of its own, so that what it needs reaches nobody.
package interop
