package main

import (
	"fmt"
	"strconv"
	"time"

	"github.com/leasekit/locker"
)

// durationFlag is a duration with a unit, by the same rule as in URLs: a bare number is an error.
type durationFlag struct {
	d   time.Duration
	set bool
	min time.Duration
}

func (f *durationFlag) Set(s string) error {
	d, err := time.ParseDuration(s)
	if _, numErr := strconv.ParseFloat(s, 64); err != nil || numErr == nil {
		return fmt.Errorf("%q isn't a duration with a unit, such as 15s or 500ms", s)
	}
	if d < f.min {
		return fmt.Errorf("%v is less than %v", d, f.min)
	}
	f.d, f.set = d, true
	return nil
}

func (f *durationFlag) String() string {
	if !f.set {
		return ""
	}
	return f.d.String()
}

func (f *durationFlag) Type() string { return "duration" }

// kindFlag is "efficiency" or "correctness".
type kindFlag struct{ kind locker.Kind }

func (f *kindFlag) Set(s string) error { return f.kind.UnmarshalText([]byte(s)) }
func (f *kindFlag) Type() string       { return "kind" }
func (f *kindFlag) String() string {
	if f.kind == 0 {
		return ""
	}
	return f.kind.String()
}
