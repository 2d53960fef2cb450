// Cases of a static program of Go: each keeps words that it knows, more than there is memory for, does something
// beside that, and says `NAME: ok`. With the word `paged` after the number it waits before that until much of as many
// words has left memory.
package main

import (
	"bytes"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"os/signal"
	"runtime"
	"runtime/debug"
	"strconv"
	"sync"
	"syscall"
	"time"
	"unsafe"
)

const (
	mib  = 1 << 20
	page = 4096 / 8
)

func die(format string, words ...any) {
	fmt.Fprintf(os.Stderr, format+"\n", words...)
	os.Exit(1)
}

func must(err error) {
	if err != nil {
		die("%v", err)
	}
}

func word(at int) uint64 { return uint64(at)*0x9e3779b97f4a7c15 + 1 }

// Two words a page, so that no page is one word repeated.
func numbered(bytes int) []uint64 {
	words := make([]uint64, bytes/8)
	fill(words)
	return words
}

func fill(words []uint64) {
	for at := 0; at < len(words); at += page {
		words[at], words[at+1] = word(at), word(at+1)
	}
}

func expect(words []uint64, when string) {
	for at := 0; at < len(words); at += page {
		if words[at] != word(at) || words[at+1] != word(at+1) {
			die("wrong word %s: page %d", when, at/page)
		}
	}
}

func status() []byte {
	text, err := os.ReadFile("/proc/self/status")
	must(err)
	return text
}

// How much of it is in memory, in bytes.
func resident() int {
	_, rest, _ := bytes.Cut(status(), []byte("RssAnon:"))
	kib, err := strconv.Atoi(string(bytes.Fields(rest)[0]))
	must(err)
	return kib << 10
}

// Has words until half of them have left memory.
func paged(bytes int) {
	words := numbered(bytes)
	for resident() > bytes/2 {
		time.Sleep(time.Millisecond)
	}
	expect(words, "of what has left")
}

// By several goroutines, with garbage in between.
func fills(bytes int) {
	var group sync.WaitGroup
	for left := 4; left > 0; left-- {
		group.Add(1)
		go func() {
			defer group.Done()
			words := numbered(bytes / 4)
			for left := 3; left > 0; left-- {
				expect(words, "of a goroutine")
				garbage := make([][]byte, 64)
				for at := range garbage {
					garbage[at] = make([]byte, 64<<10)
					garbage[at][at] = 1
				}
			}
		}()
	}
	group.Wait()
}

// Late enough to have been met.
func waits(bytes int) {
	words := numbered(bytes / 4)
	time.Sleep(600 * time.Millisecond)
	more := numbered(bytes * 3 / 4)
	for left := 3; left > 0; left-- {
		expect(words, "from before")
		expect(more, "from afterwards")
	}
}

// Signals to the process while its pages come and go.
func signals(bytes int) {
	words := numbered(bytes)
	heard := make(chan os.Signal, 64)
	signal.Notify(heard, syscall.SIGUSR1)
	done, count := make(chan bool), 0
	go func() {
		for left := 200; left > 0; left-- {
			must(syscall.Kill(os.Getpid(), syscall.SIGUSR1))
			time.Sleep(time.Millisecond)
		}
		close(done)
	}()
	for over := false; !over; {
		select {
		case <-heard:
			count++
		case <-done:
			over = true
		default:
			expect(words, "among signals")
		}
	}
	// Whoever passes them on may get no CPU for as long as others want both.
	if count == 0 {
		<-heard
	}
	expect(words, "after signals")
}

// Threads that end: a goroutine that keeps its thread to itself takes it along.
func threads(bytes int) {
	words := numbered(bytes)
	for left := 20; left > 0; left-- {
		var group sync.WaitGroup
		for left := 16; left > 0; left-- {
			group.Add(1)
			go func() {
				defer group.Done()
				runtime.LockOSThread()
				own := numbered(16 * 4096)
				expect(own, "of a thread")
			}()
		}
		group.Wait()
		expect(words[:len(words)/4], "beside threads")
	}
	expect(words, "after threads")
}

// What the runtime gives back to the system and takes again.
func givesBack(bytes int) {
	kept := numbered(bytes / 2)
	for left := 6; left > 0; left-- {
		words := numbered(bytes / 2)
		expect(words, "before it is given back")
		words = nil
		debug.FreeOSMemory()
	}
	expect(kept, "after memory was given back")
}

// Mappings around the runtime.
func maps(bytes int) {
	view := func(at uintptr, len int) []uint64 {
		return unsafe.Slice((*uint64)(*(*unsafe.Pointer)(unsafe.Pointer(&at))), len/8)
	}
	made, err := syscall.Mmap(-1, 0, bytes, syscall.PROT_READ|syscall.PROT_WRITE, syscall.MAP_PRIVATE|syscall.MAP_ANON)
	must(err)
	start := uintptr(unsafe.Pointer(&made[0]))
	words := view(start, bytes)
	fill(words)
	expect(words, "of a mapping")
	const mayMove = 1
	moved, _, failed := syscall.Syscall6(syscall.SYS_MREMAP, start, uintptr(bytes), uintptr(2*bytes), mayMove, 0, 0)
	if failed != 0 {
		die("mremap: %v", failed)
	}
	expect(view(moved, bytes), "of a mapping that moved")
	half := uintptr(bytes / 2)
	_, _, failed = syscall.Syscall(syscall.SYS_MADVISE, moved, half, syscall.MADV_DONTNEED)
	if failed != 0 {
		die("madvise: %v", failed)
	}
	for at, value := range view(moved, bytes/2) {
		if value != 0 {
			die("word %d was to be gone", at)
		}
	}
	rest := view(moved+half, bytes/2)
	for at := 0; at < len(rest); at += page {
		if rest[at] != word(bytes/16+at) {
			die("wrong word beside what is gone: page %d", at/page)
		}
	}
	_, _, failed = syscall.Syscall(syscall.SYS_MUNMAP, moved, uintptr(2*bytes), 0)
	if failed != 0 {
		die("munmap: %v", failed)
	}
}

// Programs with a loader and without.
func starts(bytes int) {
	words := numbered(bytes)
	for round := 0; round < 8; round++ {
		text := fmt.Sprint("round ", round)
		cat := exec.Command("/bin/cat")
		cat.Stdin = bytesOf(text)
		told, err := cat.Output()
		must(err)
		own, err := exec.Command("/proc/self/exe", "says", text).Output()
		must(err)
		if string(told) != text || string(own) != text {
			die("%q and %q instead of %q", told, own, text)
		}
		expect(words, "beside programs that were started")
	}
}

func bytesOf(text string) io.Reader { return bytes.NewReader([]byte(text)) }

// A server and its clients.
func serves(bytes int) {
	words := numbered(bytes)
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	must(err)
	go func() {
		for {
			client, err := listener.Accept()
			must(err)
			go func() {
				var at int
				for {
					if _, err := fmt.Fscan(client, &at); err != nil {
						return
					}
					fmt.Fprintln(client, words[at*page])
				}
			}()
		}
	}()
	pages := len(words) / page
	var group sync.WaitGroup
	for client := 0; client < 8; client++ {
		group.Add(1)
		go func(client int) {
			defer group.Done()
			server, err := net.Dial("tcp", listener.Addr().String())
			must(err)
			defer server.Close()
			for number := 0; number < 400; number++ {
				at := (client*7919 + number*104729) % pages
				fmt.Fprintln(server, at)
				var answer uint64
				_, err := fmt.Fscan(server, &answer)
				must(err)
				if answer != word(at*page) {
					die("page %d: %d", at, answer)
				}
			}
		}(client)
	}
	group.Wait()
}

// Nobody traces it any more, it has the agent's thread, and everything else is as it was started.
func bare(bytes int) {
	for !contains(status(), "TracerPid:\t0\n") {
		time.Sleep(time.Millisecond)
	}
	if text := status(); !contains(text, "SigBlk:\t0000000000000000\n") {
		die("%s", text)
	}
	descriptors, err := os.ReadDir("/proc/self/fd")
	must(err)
	for _, descriptor := range descriptors {
		name, _ := os.Readlink("/proc/self/fd/" + descriptor.Name())
		if contains([]byte(name), "agent") || contains([]byte(name), "userfaultfd") {
			die("descriptor %s is %s", descriptor.Name(), name)
		}
	}
	words := numbered(bytes)
	expect(words, "of a program left alone")
}

func contains(text []byte, part string) bool { return bytes.Contains(text, []byte(part)) }

func main() {
	if len(os.Args) == 3 && os.Args[1] == "says" {
		fmt.Print(os.Args[2])
		return
	}
	cases := map[string]func(int){
		"fills": fills, "waits": waits, "signals": signals, "threads": threads, "gives-back": givesBack, "maps": maps,
		"starts": starts, "serves": serves, "bare": bare,
	}
	isPaged := len(os.Args) == 4 && os.Args[3] == "paged"
	if len(os.Args) != 3 && !isPaged || cases[os.Args[1]] == nil {
		die("which case, and how many MiB?")
	}
	size, err := strconv.Atoi(os.Args[2])
	must(err)
	if isPaged {
		paged(size * mib)
		debug.FreeOSMemory()
	}
	cases[os.Args[1]](size * mib)
	fmt.Printf("%s: ok\n", os.Args[1])
}
