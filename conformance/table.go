package conformance

import "slices"

// A testCase is a sentence of the contract and the code that sees whether it holds. Cases with a number such as OWN-05
// are failures that real users of locks have met; docs/conformance.md lists them.
type testCase struct {
	name  string
	rule  string
	needs []need
	alone bool // it measures the whole process or server, so that no other case may run at the same time
	run   func(*env)
}

// A need is what a case can't do without. It is named after the field of Backend that provides it.
type need string

const (
	needDelete     need = "Admin.Delete"
	needReplace    need = "Admin.Replace"
	needEndSession need = "Admin.EndSession"
	needDropWaiter need = "Admin.DropWaiter"
	needOccupy     need = "Admin.Occupy"
	needEntry      need = "Admin.Entry"
	needEntries    need = "Admin.Entries"
	needSessions   need = "Admin.Sessions"
	needAddrs      need = "Addrs"
	needStop       need = "Servers.Stop"  // and Start
	needPause      need = "Servers.Pause" // and Resume
	needTakeOver   need = "TakeOver"
	needProcesses  need = "processes" // a store that several processes share, and Run to start them
)

var needs = []need{
	needDelete, needReplace, needEndSession, needDropWaiter, needOccupy, needEntry, needEntries, needSessions,
	needAddrs, needStop, needPause, needTakeOver, needProcesses,
}

func (n need) met(b *Backend) bool {
	switch n {
	case needDelete:
		return b.Admin.Delete != nil
	case needReplace:
		return b.Admin.Replace != nil
	case needEndSession:
		return b.Admin.EndSession != nil
	case needDropWaiter:
		return b.Admin.DropWaiter != nil
	case needOccupy:
		return b.Admin.Occupy != nil
	case needEntry:
		return b.Admin.Entry != nil
	case needEntries:
		return b.Admin.Entries != nil
	case needSessions:
		return b.Admin.Sessions != nil
	case needAddrs:
		return len(b.Addrs) > 0
	case needStop:
		return b.Servers.Stop != nil && b.Servers.Start != nil
	case needPause:
		return b.Servers.Pause != nil && b.Servers.Resume != nil
	case needTakeOver:
		return b.TakeOver > 0
	case needProcesses:
		return b.URL != nil && b.Connector == nil && canStartProcesses
	}
	return false
}

// cases is the suite.
var cases = slices.Concat(
	exclusionCases,
	leaseCases,
	tokenCases,
	waitingCases,
	releaseCases,
	errorCases,
	nameCases,
	faultCases,
	resourceCases,
	shutdownCases,
)
