package main

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/leasekit/locker/driver"
)

// terminalSession is a process that leads a session on a terminal of its own.
type terminalSession struct {
	*process
	keyboard *os.File
	mu       sync.Mutex
	screen   strings.Builder
}

// onTerminal starts a command on a new terminal. It can call $locker.
func onTerminal(t *testing.T, p place, name string, args ...string) *terminalSession {
	t.Helper()
	master, err := os.OpenFile("/dev/ptmx", os.O_RDWR|unix.O_NOCTTY, 0)
	require.NoError(t, err)
	number, err := unix.IoctlGetInt(int(master.Fd()), unix.TIOCGPTN)
	require.NoError(t, err)
	require.NoError(t, unix.IoctlSetPointerInt(int(master.Fd()), unix.TIOCSPTLCK, 0))
	slave, err := os.OpenFile("/dev/pts/"+strconv.Itoa(number), os.O_RDWR|unix.O_NOCTTY, 0)
	require.NoError(t, err)
	defer slave.Close()
	s := &terminalSession{process: p.command(t), keyboard: master}
	s.Path, s.Args = name, append([]string{name}, args...)
	if s.Path, err = exec.LookPath(name); err != nil {
		t.Skip(err)
	}
	s.Env = append(s.Env, "locker="+binary, "PS1=", "TERM=dumb")
	s.Stdin, s.Stdout, s.Stderr = slave, slave, slave
	s.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Setctty: true, Ctty: 0}
	go func() {
		b := make([]byte, 4096)
		for {
			n, err := master.Read(b)
			s.mu.Lock()
			s.screen.Write(b[:n])
			s.mu.Unlock()
			if err != nil {
				return
			}
		}
	}()
	t.Cleanup(func() {
		master.Close()
		if t.Failed() {
			t.Logf("screen: %q", s.shown())
		}
	})
	s.start()
	return s
}

func (s *terminalSession) shown() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.screen.String()
}

func (s *terminalSession) press(keys string) {
	s.t.Helper()
	_, err := s.keyboard.WriteString(keys)
	require.NoError(s.t, err)
}

func (s *terminalSession) shows(text string) {
	s.t.Helper()
	eventually(s.t, "it shows "+text, func() bool { return strings.Contains(s.shown(), text) })
}

func TestCLI14Terminal(t *testing.T) {
	s := onTerminal(t, filePlace(t), binary, "run", "job", "sh", "-c",
		`test -t 0 && test -t 1 && test -t 2 && echo all three; read x; echo "got $x"; exec sleep 1000`) // dash can lose an INT while it forks
	s.shows("all three")
	s.press("hello\n")
	s.shows("got hello")
	s.press("\x03")
	require.Equal(t, 130, s.code(), "^C reaches the command")
	require.Empty(t, s.marked())
}

// While locker waits, one line says for whom, and it is gone before the command prints anything.
func TestWaitingLine(t *testing.T) {
	places(t, func(t *testing.T, p place) {
		holder := p.holding(t, "--ttl", "30s", "job", "sh", "-c", "echo; exec sleep 1000")
		quiet := p.command(t, "run", "job", "echo", "mine").start()
		s := onTerminal(t, p, binary, "run", "job", "echo", "mine")
		host, err := os.Hostname()
		require.NoError(t, err)
		s.shows(`locker: waiting for "job", held by ` + host + ":" + strconv.Itoa(holder.Process.Pid) + " for ")
		first := s.shown()
		eventually(t, "it is kept up to date", func() bool { return s.shown() != first })
		s.press("unread\n")
		holder.signal(syscall.SIGTERM)
		holder.code()
		require.Equal(t, 0, s.code())
		s.shows("mine")
		require.Regexp(t, `\r {40,}\rmine\r\n$`, s.shown(), "the line is wiped away")
		require.Equal(t, 0, quiet.code())
		require.Equal(t, "mine\n", quiet.stdout())
		require.Empty(t, quiet.stderr(), "without a terminal nothing is said")
	})
	for _, flag := range []string{"--quiet", "--no-wait"} {
		p := filePlace(t)
		p.holding(t, "job", "sh", "-c", "echo; exec sleep 1000")
		s := onTerminal(t, p, binary, "run", flag, "--wait", "2s", "job", "true")
		if flag == "--no-wait" {
			s = onTerminal(t, p, binary, "run", flag, "job", "true")
		}
		require.Equal(t, 75, s.code())
		require.NotContains(t, s.shown(), "waiting for")
	}
}

// A name and a label from elsewhere can't move the cursor.
func TestWaitingText(t *testing.T) {
	w := &waitingLine{name: "a\x1b[2J"}
	text := w.text(driver.Entry{Held: true, Owner: "b\rc", Since: time.Now().Add(-time.Hour), Waiters: 3}, nil, 5*time.Second)
	require.Equal(t, `locker: waiting for "a\x1b[2J", held by "b\rc" for 1h0m0s, 3 waiting (5s)`, text)
	var out strings.Builder
	w.out, w.width = &out, func() int { return 10 }
	w.print(text)
	w.print("ab")
	w.print("")
	require.Equal(t, "\rlocker: w\rab       \r  \r", out.String())
}

// A script without job control has the terminal again after the command.
func TestTerminalIsGivenBack(t *testing.T) {
	for _, command := range []string{"true", "./cannot-be-run", "sh -c 'kill -KILL $$'", "sh -c 'read x </dev/tty'"} {
		s := onTerminal(t, filePlace(t), "sh", "-c", `echo "#!/missing" >cannot-be-run; chmod +x cannot-be-run; echo begin; "$locker" run job `+command+`; read y; echo "back $y"`)
		s.shows("begin")
		s.press("one\n")
		s.press("two\n")
		require.Equal(t, 0, s.code())
		eventually(t, "it shows what the script has read", func() bool { return regexp.MustCompile(`back (one|two)`).MatchString(s.shown()) })
	}
}

// In a pipeline the other parts keep the terminal, until the command needs it.
func TestTerminalInAPipeline(t *testing.T) {
	s := onTerminal(t, filePlace(t), "sh", "-c", `"$locker" run job sh -c 'echo running; sleep 0.5; read x </dev/tty; echo "command $x"' | (read y </dev/tty; echo "pipe $y"; cat)`)
	s.press("one\n")
	s.shows("pipe one")
	s.shows("running")
	s.press("two\n")
	s.shows("command two")
	require.Equal(t, 0, s.code())
}

// job returns the processes that the shell runs: the locker and its command.
func (s *terminalSession) job() (locker, command string) {
	s.t.Helper()
	eventually(s.t, "the command runs", func() bool {
		for _, pid := range s.marked() {
			line, _ := os.ReadFile(filepath.Join("/proc", strconv.Itoa(pid), "cmdline"))
			switch {
			case strings.HasPrefix(string(line), binary):
				locker = strconv.Itoa(pid)
			case strings.HasPrefix(string(line), "sleep"):
				command = strconv.Itoa(pid)
			}
		}
		return locker != "" && command != ""
	})
	return locker, command
}

func TestCLI01StopKeyAndJobControl(t *testing.T) {
	p := filePlace(t)
	s := onTerminal(t, p, "sh", "-i", "-m")
	s.press("\"$locker\" run job sleep 1000; echo \"code $?\"\n")
	locker, command := s.job()
	for range 2 {
		eventually(t, "the command waits", func() bool { return state(command) == "S" })
		s.press("\x1a")
		eventually(t, "both stop", func() bool { return state(locker) == "T" && state(command) == "T" })
		require.Equal(t, 75, p.run(t, "run", "--no-wait", "job", "true").code())
		s.press("fg\n")
		eventually(t, "both go on", func() bool { return state(locker) != "T" && state(command) == "S" })
	}
	s.press("\x03")
	eventually(t, "the command has ended", func() bool { return state(locker) == "" })
	s.press("echo \"last $?\"\n")
	s.shows("last 130")
	s.press("exit\n")
	s.code()
}

// While the job is stopped nobody renews. A command whose lease has ended meanwhile doesn't go on.
func TestEXP01StoppedJob(t *testing.T) {
	p := filePlace(t)
	s := onTerminal(t, p, "sh", "-i", "-m")
	s.press("\"$locker\" run --ttl 1s job sleep 1000\n")
	locker, command := s.job()
	s.press("\x1a")
	eventually(t, "both stop", func() bool { return state(locker) == "T" && state(command) == "T" })
	time.Sleep(2 * time.Second) // longer than the TTL is the point
	s.press("fg\n")
	eventually(t, "both have ended", func() bool { return state(locker) == "" && state(command) == "" })
	s.press("echo \"last $?\"\n")
	s.shows("last 79")
	s.press("exit\n")
	s.code()
}
