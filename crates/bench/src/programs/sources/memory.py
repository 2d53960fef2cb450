"""A table in memory with an index: filled, looked up and changed at random, then read in another order."""

import random
import sqlite3

ROWS = 500_000
draw = random.Random(1)
base = sqlite3.connect(":memory:")
base.execute("create table item (id integer primary key, name text, place integer, note text)")
rows = ((n, f"name {draw.randrange(ROWS)}", draw.randrange(1000), f"note {n} " * 12) for n in range(ROWS))
base.executemany("insert into item values (?, ?, ?, ?)", rows)
base.execute("create index by_name on item (name)")
total = 0
for step in range(40_000):
    name = f"name {draw.randrange(ROWS)}"
    for (place,) in base.execute("select place from item where name = ?", (name,)):
        total = (total * 31 + place) % 1_000_000_007
    if step % 4 == 0:
        base.execute("update item set place = ? where id = ?", (step, draw.randrange(ROWS)))
found = base.execute("select count(*), sum(place), sum(length(note)) from item").fetchone()
print(*found, "checksum", total)
