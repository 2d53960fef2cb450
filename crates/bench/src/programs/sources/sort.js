// 900,000 objects sorted by a key, then by another.
const count = 900_000;
let seed = 1;
const random = () => (seed = (Math.imul(seed, 1103515245) + 12345) >>> 0);
const objects = [];
for (let n = 0; n < count; n++) {
  objects.push({ key: random(), name: "object " + n, other: random() % 1000, next: null });
}
objects.sort((a, b) => a.key - b.key);
for (let n = 1; n < count; n++) objects[n - 1].next = objects[n];
let sum = 0;
for (const object of objects) sum = (sum * 31 + object.key + object.name.length) % 1000000007;
objects.sort((a, b) => a.other - b.other || a.key - b.key);
for (const object of objects) sum = (sum * 31 + object.other) % 1000000007;
console.log(`${count} objects, checksum ${sum}`);
