# A table of 100,000 rows, filled, looked up and changed at random (most often near its start), then
# added up: the program of ./demo.
my $rows = 100_000;
my @table = map { join ",", $_, map { $_ * 7919 } $_ .. $_ + 60 } 1 .. $rows;
srand 1;
for my $round (1 .. $rows) {
    my $at = int((rand) ** 16 * $rows);
    my @row = split /,/, $table[$at];
    $row[0] == $at + 1 or die "row $at holds $row[0]";
    $row[1 + $round % 60] = $round;
    $table[$at] = join ",", @row;
}
my $sum = 0;
$sum = ($sum * 31 + unpack "%32C*", $_) % 1_000_000_007 for @table;
print "$rows rows, checksum $sum\n";
