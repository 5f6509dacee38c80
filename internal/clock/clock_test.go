package clock

import (
	"testing"
	"testing/synctest"
	"time"
)

func TestSubTakesTheLargerDifference(t *testing.T) {
	start := At(10*time.Second, 100*time.Second)
	for _, c := range []struct {
		name string
		now  Instant
		want time.Duration
	}{
		{"clocks agree", At(13*time.Second, 103*time.Second), 3 * time.Second},
		{"suspended for an hour", At(13*time.Second, 103*time.Second+time.Hour), time.Hour + 3*time.Second},
		{"wall clock stepped back", At(13*time.Second, 50*time.Second), 3 * time.Second},
		{"boot clock not read", At(13*time.Second, 0), 3 * time.Second},
	} {
		if got := c.now.Sub(start); got != c.want {
			t.Errorf("%s: Sub = %v, want %v", c.name, got, c.want)
		}
	}
}

func TestBeforeIsReachedByEitherClock(t *testing.T) {
	deadline := At(10*time.Second, 100*time.Second).Add(5 * time.Second)
	for _, c := range []struct {
		name string
		now  Instant
		want bool
	}{
		{"not yet", At(14*time.Second, 104*time.Second), true},
		{"exactly", At(15*time.Second, 105*time.Second), false},
		{"only the boot clock", At(11*time.Second, 106*time.Second), false},
		{"only the monotonic clock", At(16*time.Second, 104*time.Second), false},
	} {
		if got := c.now.Before(deadline); got != c.want {
			t.Errorf("%s: Before = %v, want %v", c.name, got, c.want)
		}
	}
}

func TestReadings(t *testing.T) {
	a := System()
	if a.IsZero() || a.boot == 0 {
		t.Fatalf("System() = %+v: a clock was not read", a)
	}
	if m := Monotonic(); m.mono < a.mono || m.boot != 0 {
		t.Errorf("Monotonic() = %+v after %+v", m, a)
	}
	if d := System().Sub(a); d < 0 || d > time.Minute {
		t.Errorf("two readings in a row are %v apart", d)
	}
}

func TestMonotonicIsVirtualInABubble(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := Monotonic()
		time.Sleep(time.Hour)
		if d := Monotonic().Sub(a); d != time.Hour {
			t.Errorf("an hour of virtual time measured as %v", d)
		}
	})
}

func BenchmarkSystem(b *testing.B) {
	for b.Loop() {
		System()
	}
}

func BenchmarkMonotonic(b *testing.B) {
	for b.Loop() {
		Monotonic()
	}
}
