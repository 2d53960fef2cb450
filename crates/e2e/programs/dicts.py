"""dicts.py COUNT: builds large dicts, changes them, and checks every entry."""
import hashlib
import sys


def value(key, version):
    return ("%d:%d " % (key, version)) * (4 + key % 13)


def main():
    count = int(sys.argv[1])
    table = {key: value(key, 1) for key in range(count)}
    words = {str(key): [key, key * 2, (key, "x" * (key % 50))] for key in range(count)}
    state = 12345
    for _ in range(count // 3):
        state = (state * 6364136223846793005 + 1442695040888963407) % 2**64
        key = (state >> 33) % count
        table[key] = value(key, 2)
        words[str(key)].append(key)
    digest = hashlib.sha256()
    for key in range(count):
        entry = table[key]
        if entry != value(key, 1) and entry != value(key, 2):
            sys.exit("wrong entry %d: %r" % (key, entry))
        row = words[str(key)]
        if row[:2] != [key, key * 2] or len(row[2][1]) != key % 50:
            sys.exit("wrong row %d: %r" % (key, row))
        digest.update(entry.encode())
        digest.update(repr(row).encode())
    del table
    again = sorted(words, key=lambda key: hashlib.md5(key.encode()).digest())
    digest.update("".join(again).encode())
    print("dicts: ok", digest.hexdigest())


main()
