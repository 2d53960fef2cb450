"""workers.py COUNT: forked workers read and change the parent's data; the parent's stays."""
import hashlib
import multiprocessing
import sys

data = []


def text(key, version):
    return "%d/%d " % (key, version) * (5 + key % 7)


def work(part):
    first, step = part
    digest = hashlib.sha256()
    for key in range(first, len(data), step):
        if data[key] != text(key, 1):
            return "wrong item %d: %r" % (key, data[key])
        digest.update(data[key].encode())
        data[key] = text(key, 2)
    for key in range(first, len(data), step):
        if data[key] != text(key, 2):
            return "wrong item %d after a change: %r" % (key, data[key])
    return digest.hexdigest()


def main():
    context = multiprocessing.get_context("fork")
    data.extend(text(key, 1) for key in range(int(sys.argv[1])))
    results = []
    for turn in range(2):
        with context.Pool(3, maxtasksperchild=1) as pool:
            results += pool.map(work, [(turn * 3 + i, 7) for i in range(3)], chunksize=1)
    # The pool forks beside this thread: a child would print what is in the buffer, too.
    for result in results:
        print(result)
    for key, item in enumerate(data):
        if item != text(key, 1):
            sys.exit("wrong item %d in the parent: %r" % (key, item))
    print("workers: ok")


main()
