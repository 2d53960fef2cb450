// Goroutines that fill memory and find what they wrote, with so little of Go's library that it is soon compiled another way.
package main

import (
	"sync"
	"syscall"
)

const (
	bytes = 24 << 20
	page  = 4096 / 8
)

func word(at int) uint64 { return uint64(at)*0x9e3779b97f4a7c15 + 1 }

// Two words a page, so that no page is one word repeated.
func fill(words []uint64) {
	for at := 0; at < len(words); at += page {
		words[at], words[at+1] = word(at), word(at+1)
	}
}

func expect(words []uint64) {
	for at := 0; at < len(words); at += page {
		if words[at] != word(at) || words[at+1] != word(at+1) {
			panic("wrong word")
		}
	}
}

// How much of it is in memory, with what is of files.
func resident() int {
	file, err := syscall.Open("/proc/self/statm", syscall.O_RDONLY, 0)
	if err != nil {
		panic(err)
	}
	defer syscall.Close(file)
	var text [128]byte
	len, _ := syscall.Read(file, text[:])
	pages, field := 0, 0
	for _, letter := range text[:len] {
		if letter == ' ' {
			field++
		} else if field == 1 {
			pages = pages*10 + int(letter-'0')
		}
	}
	return pages * 4096
}

func main() {
	var group sync.WaitGroup
	parts := make([][]uint64, 4)
	each := func(work func(int)) {
		for part := range parts {
			group.Add(1)
			go func(part int) {
				defer group.Done()
				work(part)
			}(part)
		}
		group.Wait()
	}
	each(func(part int) {
		parts[part] = make([]uint64, bytes/8/len(parts))
		fill(parts[part])
	})
	for resident() > bytes/2 {
		syscall.Nanosleep(&syscall.Timespec{Nsec: 1e6}, nil)
	}
	each(func(part int) { expect(parts[part]) })
	syscall.Write(1, []byte("fills: ok\n"))
}
