"""A list of dictionaries with an index by name; records are looked up, changed and replaced at random."""

import random

COUNT = 300_000
draw = random.Random(1)
records = [{"id": n, "name": f"name {n}", "tags": [n % 7, n % 11, n], "value": n * 0.5} for n in range(COUNT)]
index = {record["name"]: record for record in records}
total = 0.0
for step in range(300_000):
    record = index[f"name {draw.randrange(COUNT)}"]
    total += record["value"]
    record["value"] = step * 0.25
    record["tags"][step % 3] = step
    if step % 10 == 0:
        replaced = dict(record, value=total)
        records[record["id"]] = index[record["name"]] = replaced
checksum = 0
for record in records:
    checksum = (checksum * 31 + sum(record["tags"]) + int(record["value"])) % 1_000_000_007
print(len(index), "records, checksum", checksum)
