-- An in-memory database: build, index, change, join, aggregate, check.
PRAGMA temp_store = memory;
CREATE TABLE item (id INTEGER PRIMARY KEY, owner INTEGER, name TEXT, body TEXT, price INTEGER);
WITH RECURSIVE number (n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM number WHERE n < 62500)
INSERT INTO item
SELECT n, (n * 7919) % 1009, printf('name-%d', (n * 104729) % 125003),
       printf('%0*d', 40 + n % 60, n * 65537), (n * 31) % 9973 FROM number;
CREATE INDEX item_name ON item (name);
CREATE INDEX item_owner ON item (owner, price);
CREATE TABLE owner (id INTEGER PRIMARY KEY, title TEXT);
INSERT INTO owner SELECT DISTINCT owner, printf('owner-%d', owner) FROM item;
UPDATE item SET body = body || '-changed', price = price + 1 WHERE id % 5 = 0;
DELETE FROM item WHERE id % 11 = 0;
SELECT count(*), sum(price), sum(length(body)), min(name), max(name) FROM item;
SELECT title, count(*), sum(price) FROM item JOIN owner ON owner.id = item.owner
 GROUP BY title ORDER BY sum(price) DESC, title LIMIT 20;
SELECT id, name, price FROM item WHERE name BETWEEN 'name-5' AND 'name-6'
 ORDER BY name, id LIMIT 20;
SELECT count(DISTINCT body), count(DISTINCT name) FROM item;
SELECT sum((id * 1000003 + price * 101 + length(body)) % 999983) FROM item;
PRAGMA integrity_check;
