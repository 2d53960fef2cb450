# A hash of 1,200,000 short strings, looked up at random, every fourth time changed.
my $keys = 1_200_000;
my %hash;
$hash{"key$_"} = "value $_ of the hash" for 1 .. $keys;
srand 1;
my $sum = 0;
for my $round (1 .. 400_000) {
    my $key = "key" . (1 + int(rand $keys));
    $sum = ($sum * 31 + length $hash{$key}) % 1_000_000_007;
    $hash{$key} = "round $round" if $round % 4 == 0;
}
print scalar(keys %hash), " keys, checksum $sum\n";
